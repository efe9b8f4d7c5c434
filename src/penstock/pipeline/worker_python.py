"""The Python of a local session's workers: this one, without Spark's zips on its path.

Spark puts its pyspark.zip first on the path of each Python that it starts. A zip holds only
sources,
which each process compiles again: that takes 1.3 s of CPU before a stream's source is loaded, and
0.4 s from the installed package, whose bytecode is kept. A worker must report to Spark within 10 s,
which can't be configured, and a busy machine is not always that fast.

So Spark is given a script that leaves these entries out and becomes this Python, which finds the
very package that the driver has.
"""

import os
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.model.errors import NotFoundError
from penstock.pipeline.kept_programs import cache_folders, keep, may_be_run, write_program

_SCRIPT: Final = """\
#!/bin/sh
# Made by Penstock: a Python that takes pyspark from where it is installed.
set -f
kept=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) kept=$kept${{kept:+:}}$entry ;;
  esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def worker_python() -> str:
    """The program for PYSPARK_PYTHON. This Python itself, where its pyspark is not installed but
    found by a path that workers may not have, or where nothing can be written."""
    if not _is_installed():
        return sys.executable
    try:
        return str(make_python(sys.executable, cache_folders(os.environ)))
    except NotFoundError:
        return sys.executable


def make_python(python: str, folders: Iterator[Path]) -> Path:
    """The script that becomes `python`, in the first of `folders` in which it works.

    Raises:
        NotFoundError: none of them can be written and run programs.
    """
    script = _SCRIPT.format(python=shlex.quote(python))

    def fill(draft: Path) -> None:
        write_program(draft / "python", script)

    def is_usable(kept: Path) -> bool:
        try:
            return may_be_run(kept / "python")
        except OSError:
            return False

    return keep("python", script, folders, fill=fill, is_usable=is_usable) / "python"


def _is_installed() -> bool:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return False
    found = Path(spec.origin).resolve().parents[1]
    return found in {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
