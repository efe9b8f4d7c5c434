"""Folders with small programs that Spark runs in place of others: made once, and kept in the user's
cache, where that can be written and what lies there can be run; else in a temporary directory that
goes with this process."""

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from penstock.model.errors import NotFoundError


def keep(
    kind: str,
    content: str,
    folders: Iterator[Path],
    *,
    fill: Callable[[Path], None],
    is_usable: Callable[[Path], bool],
) -> Path:
    """The folder of a program, in the first of `folders` in which it works.

    Args:
        kind: the first part of its name.
        content: all that goes into it, whose hash is the rest: another environment's, or another
            release's, is a folder of its own, and one that is there never changes under those
            that run it.
        folders: where to try; they needn't exist.
        fill: puts everything into an empty folder.
        is_usable: whether all is in a folder, and may be run there.

    Raises:
        NotFoundError: none of them can be written and run programs.
    """
    name = f"{kind}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    tried = []
    for folder in folders:
        kept = folder / name
        if is_usable(kept):
            return kept
        tried.append(str(folder))
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(kept, fill, is_usable)
        except OSError:
            continue
        if is_usable(kept):
            return kept
    raise NotFoundError(
        "prepare programs",
        kind,
        f"none of {', '.join(tried)} can be written and run programs",
        "set XDG_CACHE_HOME or TMPDIR to a directory that can",
    )


def cache_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders to try. The environment says where the user's cache is."""
    cache = environment.get("XDG_CACHE_HOME", "")
    if Path(cache).is_absolute():
        yield Path(cache) / "penstock"
    elif home := environment.get("HOME", ""):
        yield Path(home) / ".cache" / "penstock"
    temporary = Path(tempfile.mkdtemp(prefix="penstock-programs-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    yield temporary


def write_program(path: Path, script: str) -> None:
    """A script that its owner can run."""
    path.write_text(script)
    path.chmod(0o700)


def may_be_run(program: Path) -> bool:
    """Whether it is there, in a folder of ours, and may be run (not so where mounted `noexec`).

    Raises: OSError: there is no such folder.
    """
    return program.parent.stat().st_uid == os.getuid() and os.access(program, os.X_OK)


def _make(kept: Path, fill: Callable[[Path], None], is_usable: Callable[[Path], bool]) -> None:
    """Make it under another name and rename it: two that make it at once don't meet."""
    draft = Path(tempfile.mkdtemp(prefix=f".{kept.name}-", dir=kept.parent))
    try:
        fill(draft)
        try:
            draft.rename(kept)
        except OSError:
            # Another process was faster, or what lies there is broken: it leads to what has gone.
            if is_usable(kept):
                return
            shutil.rmtree(kept)
            draft.rename(kept)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
