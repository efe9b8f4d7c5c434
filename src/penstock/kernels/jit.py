"""Compiling kernels: numba, with machine code kept on disk for the next process.

A kernel is compiled at its first call and takes a second or more; loaded from the cache it takes
milliseconds. The cache lies in the user's cache folder, never in the installed package. Where that
folder can't be written (executors often have a read-only home) a private folder of the system's
temporary one takes its place, and without that kernels are compiled once per process: slower to
begin, never wrong.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba
from numba.core import config as numba_config
from numba.core.caching import FunctionCache

P = ParamSpec("P")
R = TypeVar("R")

CACHE_VARIABLE: Final = "PENSTOCK_KERNEL_CACHE"
"""An environment variable: the folder of the cache; "off": none is used."""
_OFF: Final = "off"


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function by numba at its first call, without the GIL and without bound checks.

    So its code must check every index that comes from bytes.
    """
    folder = cache_folder()
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
    if folder is None:
        return cast(Callable[P, R], numba.njit(**options)(function))
    # numba asks its configuration where the cache is while it decorates, and at no other time:
    # the setting is put back so that kernels of others in this process are cached where they were.
    config: Any = numba_config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(folder)
    compiled: Any = numba.njit(**options)(function)
    try:
        # As `njit(cache=True)` does, with a cache that several processes may write.
        compiled._cache = _SharedCache(function, folder)  # noqa: SLF001
    except RuntimeError:
        # "no locator available": the folder was taken away since it was looked at.
        pass
    finally:
        config.CACHE_DIR = before
    return cast(Callable[P, R], compiled)


class _SharedCache(FunctionCache):
    """numba's cache of one kernel's machine code, of one file for each types of its arguments.

    numba reads the kernel's index, takes the next number for its file and writes the index back: of
    two processes that do so at once for different types, one would find the other's code under its
    own from then on. So one does it after the other.
    """

    def __init__(self, function: Callable[..., object], folder: Path) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._folder = folder

    def save_overload(self, sig: object, data: object) -> None:
        """Keep what was compiled for these types."""
        with _one_at_a_time(self._folder):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Among all processes, where the file system has locks. A folder that has gone has no users."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@functools.cache
def cache_folder() -> Path | None:
    """The folder in which machine code is kept; None where there is none that can be written.

    Its name holds a digest of all kernels' sources: numba itself notices a change only of the
    file that a kernel stands in, and not of the helpers from other files that were compiled in.
    """
    given = os.environ.get(CACHE_VARIABLE, "")
    if given == _OFF:
        return None
    name = f"kernels-{sys.implementation.cache_tag}-{numba.__version__}-{_sources_digest()}"
    candidates = [Path(given)] if given else [_user_folder()]
    candidates.append(Path(tempfile.gettempdir()) / f"penstock-{_user_number()}")
    for candidate in candidates:
        if _is_ours(candidate) and _is_writable(candidate / name):
            return candidate / name
    return None


def _user_folder() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    if given:
        return Path(given) / "penstock"
    with contextlib.suppress(RuntimeError):  # there is no home
        home = Path.home()
        return (home / "Library/Caches" if sys.platform == "darwin" else home / ".cache") / (
            "penstock"
        )
    return Path(os.devnull) / "none"


def _user_number() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _is_ours(folder: Path) -> bool:
    """Whether only this user can write into it: what is loaded from it is run."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return True
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
