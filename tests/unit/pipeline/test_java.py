"""The directory that Spark takes for a Java: links, a script, made once and by whoever is first."""

import subprocess
from pathlib import Path

import pytest

from penstock.model.errors import NotFoundError
from penstock.pipeline.java import make_home

# Tells its arguments, one a line.
FAKE_JAVA = '#!/bin/sh\nfor one in "$@"; do echo "[$one]"; done\n'


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    found = tmp_path / "a wheel's"
    (found / "bin").mkdir(parents=True)
    (found / "lib").mkdir()
    (found / "lib" / "modules").write_text("modules")
    (found / "release").write_text('MODULES="java.base"')
    java = found / "bin" / "java"
    java.write_text(FAKE_JAVA)
    java.chmod(0o755)
    (found / "bin" / "keytool").write_text("")
    return found


def run(home: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_only_the_module_that_the_wheel_lacks_is_left_out(runtime: Path, tmp_path: Path) -> None:
    home = make_home(runtime, iter([tmp_path / "cache"]))
    assert run(home, "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "*", "-x") == [
        "[-cp]", "[a b]", "[]", "[*]", "[-x]",
    ]  # fmt: skip
    assert run(home) == []
    assert run(home, "--add-modules=java.sql") == ["[--add-modules=java.sql]"]


def test_all_else_is_the_wheels(runtime: Path, tmp_path: Path) -> None:
    home = make_home(runtime, iter([tmp_path / "cache"]))
    assert (home / "lib" / "modules").read_text() == "modules"
    assert (home / "bin" / "keytool").samefile(runtime / "bin" / "keytool")


def test_it_is_made_once_and_leaves_no_drafts(runtime: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = make_home(runtime, iter([cache]))
    made = (first / "bin" / "java").stat().st_ino
    assert make_home(runtime, iter([cache])) == first
    assert (first / "bin" / "java").stat().st_ino == made
    assert [entry.name for entry in cache.iterdir()] == [first.name]


def test_one_that_is_broken_is_made_anew(runtime: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    home = make_home(runtime, iter([cache]))
    (home / "lib").unlink()
    (home / "lib").symlink_to(tmp_path / "gone")
    assert make_home(runtime, iter([cache])) == home
    assert (home / "lib").samefile(runtime / "lib")


def test_another_wheel_gets_another_directory(runtime: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    runtime_copy = other / "java-runtime"
    other.mkdir()
    runtime_copy.symlink_to(runtime)
    cache = tmp_path / "cache"
    assert make_home(runtime, iter([cache])) != make_home(runtime_copy, iter([cache]))


def test_a_folder_that_cannot_be_written_is_passed_over(runtime: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    home = make_home(runtime, iter([blocked / "cache", tmp_path / "temporary"]))
    assert home.parent == tmp_path / "temporary"


def test_where_nothing_can_be_written_the_error_says_what_to_set(
    runtime: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(NotFoundError, match="XDG_CACHE_HOME"):
        make_home(runtime, iter([blocked / "cache"]))
