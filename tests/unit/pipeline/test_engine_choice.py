"""Spark is the engine wherever it is installed; threads only by name, or without PySpark."""

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.engine_choice import EngineChoice, choose_engine, opened


def choose(
    engine: str | None = None,
    master: str | None = None,
    *,
    has_spark: bool = True,
    **environment: str,
) -> EngineChoice:
    return choose_engine(engine, master, environment=environment, has_spark=has_spark)


def test_spark_is_chosen_where_nothing_is_said() -> None:
    assert str(choose()) == "engine spark, master local[*]"


def test_the_master_is_the_options_else_the_environments() -> None:
    both = {"SPARK_REMOTE": "sc://remote", "SPARK_MASTER": "spark://head:7077"}
    assert choose(master="yarn", **both).master == "yarn"
    assert choose(**both).master == "sc://remote"
    assert choose(SPARK_MASTER="spark://head:7077", SPARK_REMOTE="").master == "spark://head:7077"
    assert choose("spark", **both).master == "sc://remote"


def test_threads_run_by_name_or_without_pyspark() -> None:
    assert choose("local", SPARK_MASTER="spark://head:7077").name == "local"
    without = choose(has_spark=False, SPARK_MASTER="spark://head:7077")
    assert without.name == "local"
    assert str(without).endswith("(PySpark is not installed)")


def test_a_master_without_pyspark_isnt_threads() -> None:
    """Opening it then says what to install."""
    assert choose(master="spark://head:7077", has_spark=False).name == "spark"


def test_the_local_engine_has_no_master() -> None:
    with pytest.raises(InvalidRequestError, match=r"local\[2\]"):
        choose("local", "local[2]")


def test_threads_are_opened_as_many_as_said() -> None:
    with opened(EngineChoice(name="local", workers=3)) as engine:
        assert isinstance(engine, LocalEngine)
        assert engine.parallelism == 3
