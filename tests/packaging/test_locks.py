"""The locks: hashed, without URLs or places, and in step with one another and the project."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
REQUIREMENTS = REPOSITORY / "requirements"
LOCKS = ("run", "test", "build")
RUN_MB_MAX = 150


def versions(name: str) -> dict[str, set[str]]:
    """Pinned versions by package; several where markers tell interpreters apart."""
    found: dict[str, set[str]] = {}
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    for package, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE):
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_pins_versions_with_hashes_and_names_no_place(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "://" not in text
    assert "/" not in re.sub(r"sha256:[0-9a-f]+", "", text)
    assert "index" not in text
    assert "find-links" not in text


def test_the_run_lock_holds_every_dependency_of_the_project() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=;~! \[]", wanted)[0] for wanted in project["dependencies"]}
    assert names <= versions("run").keys()


def test_the_locks_agree_where_they_share_packages() -> None:
    run, test, build = (versions(name) for name in LOCKS)
    for other in (test, build):
        for package in run.keys() & other.keys():
            assert run[package] == other[package]
    for package in test.keys() & build.keys():
        assert test[package] == build[package]


def test_the_build_backend_is_the_locked_one() -> None:
    system = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]
    (wanted,) = system["requires"]
    assert wanted == f"hatchling=={next(iter(versions('build')['hatchling']))}"


def test_what_runs_takes_less_than_150_mb() -> None:
    """Measured where these tests run, over the files of the run lock's packages."""
    total = 0
    for package in versions("run"):
        files = metadata.distribution(package).files or []
        paths = [Path(str(file.locate())) for file in files]
        total += sum(path.stat().st_size for path in paths if path.is_file())
    assert 1 << 20 < total < RUN_MB_MAX << 20
