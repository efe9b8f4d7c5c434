"""The script that Spark takes for a Python: this one, without Spark's zips on its path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipeline import worker_python as module
from penstock.pipeline.worker_python import make_python, worker_python

TELL = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"


def run(program: Path, path: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [program, "-c", TELL, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rstrip("\n").split("|")


@pytest.mark.slow
def test_only_sparks_own_are_left_out(tmp_path: Path) -> None:
    program = make_python(sys.executable, iter([tmp_path]))
    own = ["/s p/python/lib/pyspark.zip", "/s p/python/lib/py4j-0.10.9.9-src.zip"]
    own.append("/s p/jars/spark-core_2.13-4.3.0.jar")
    theirs = ["/a b", "/*", "/some.zip"]
    for path, kept in (
        ([*own, *theirs], ":".join(theirs)),
        (own, ""),
        ([*theirs, *own], ":".join(theirs)),
        (theirs, ":".join(theirs)),
    ):
        told = run(program, ":".join(path), "a b", "", "*")
        assert told == [sys.prefix, kept, "a b", "", "*"]


def test_it_is_made_once(tmp_path: Path) -> None:
    first = make_python(sys.executable, iter([tmp_path]))
    made = first.stat().st_ino
    assert make_python(sys.executable, iter([tmp_path])) == first
    assert first.stat().st_ino == made
    assert make_python("/another python", iter([tmp_path])) != first


def test_a_pyspark_that_is_found_by_a_path_is_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sysconfig, "get_path", lambda _: str(tmp_path))
    assert worker_python() == sys.executable


def test_where_nothing_can_be_written_it_is_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setattr(module, "cache_folders", lambda _: iter([blocked / "cache"]))
    assert worker_python() == sys.executable
