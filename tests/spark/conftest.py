"""One Spark session for all tests of this folder: local, two cores, the wheel's Java.

Functions of these test modules can be sent to its workers: they find the modules by their names.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.class_archive import use
from support.longest_first import begin_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDERS = (REPOSITORY / "src", REPOSITORY / "tests", REPOSITORY)

MEMORY = "1g"
MASTER = "local[2]"


def pytest_configure(config: pytest.Config) -> None:
    use(os.environ)
    # pandas and pyspark of their own making; ours still fail a test.
    for module in ("pyspark", "pandas", "py4j", "numba", "pyiceberg"):
        config.addinivalue_line("filterwarnings", rf"ignore::DeprecationWarning:{module}(\..*)?")
        config.addinivalue_line("filterwarnings", rf"ignore::FutureWarning:{module}(\..*)?")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Two processes share the files, each whole; the rest is spread behind these.
    longest = ("test_stream", "test_compaction", "test_write_stream", "test_tables_processes")
    begin_with(items, Path(__file__).parent, longest)


@pytest.fixture(scope="session")
def spark_environment() -> Iterator[None]:
    """What Spark's Python workers need to find: they are children of the JVM."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(folder) for folder in FOLDERS]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths + ([before] if before else []))
    missing = [path for path in paths if path not in sys.path]
    sys.path += missing
    yield
    for path in missing:
        sys.path.remove(path)
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def spark(spark_environment: None) -> Iterator["SparkSession"]:
    """The session; tests leave it as they found it: their views dropped, their queries stopped."""
    from penstock.pipeline.session import session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = session(
            MASTER,
            memory=MEMORY,
            name="penstock-tests",
            conf={"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"},
        )
    yield found
    found.stop()
