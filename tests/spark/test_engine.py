"""The engine on Spark gives what the local one gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.pipeline import spark_engine
from penstock.pipeline.engine_choice import lanes
from penstock.pipeline.slots import Slots
from penstock.pipeline.spark_engine import SparkEngine
from penstock.version import VERSION
from support.pipeline_tasks import (
    always_dies,
    dies_once,
    fails_once,
    notes_and_waits,
    refuses_seven,
    squared,
)
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=[False, True], ids=["jobs", "frames"])
def engine(spark: SparkSession, request: pytest.FixtureRequest) -> SparkEngine:
    return SparkEngine(spark, frames=request.param)


def test_each_item_has_its_result(engine: SparkEngine) -> None:
    assert dict(engine.run(squared, range(20))) == {n: n * n for n in range(20)}
    assert list(engine.run(squared, [])) == []


def test_results_come_before_the_last_item_ends(spark: SparkSession, tmp_path: Path) -> None:
    """The second item waits for a file that is written when the first's result has come."""
    seen, release = str(tmp_path / "seen"), str(tmp_path / "release")
    engine = SparkEngine(spark)
    results = engine.run(notes_and_waits, [(seen, ""), (str(tmp_path / "other"), release)])
    assert next(results) == (0, 1)
    Path(release).write_text("go")
    assert list(results) == [(1, 1)]


def test_what_fails_retriably_is_tried_again(engine: SparkEngine, tmp_path: Path) -> None:
    items = [str(tmp_path / str(number)) for number in range(3)]
    assert dict(engine.run(fails_once, items)) == {0: 1, 1: 1, 2: 1}


def test_an_items_own_error_comes_back(engine: SparkEngine) -> None:
    with pytest.raises(InvalidRequestError, match="item 7"):
        list(engine.run(refuses_seven, range(20)))
    # and the session goes on
    assert dict(engine.run(squared, [3])) == {0: 9}


def test_an_executor_of_another_penstock_runs_nothing(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_engine, "VERSION", "99.0")
    with pytest.raises(InvalidRequestError, match=rf"has Penstock {VERSION}, the driver 99\.0"):
        list(engine.run(squared, [3]))


def test_a_lost_worker_costs_nothing_but_time(engine: SparkEngine, tmp_path: Path) -> None:
    items = [str(tmp_path / str(number)) for number in range(3)]
    assert dict(engine.run(dies_once, items, attempts=4)) == {0: 1, 1: 1, 2: 1}


def test_what_is_left_is_cancelled(spark: SparkSession, tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    results = SparkEngine(spark).run(
        notes_and_waits, [(str(tmp_path / "a"), ""), (str(tmp_path / "b"), never)]
    )
    assert next(results) == (0, 1)
    results.close()
    # Spark's tracker hears of an end a moment after the job's own thread. Uncancelled it would last
    # for five minutes.
    eventually(lambda: spark.sparkContext.statusTracker().getActiveJobsIds() == [])


def test_two_bulk_jobs_keep_no_table_waiting(spark: SparkSession, tmp_path: Path) -> None:
    """Of two places they have one, one after the other, and their tasks don't end before the
    table's have."""
    first, bulk = lanes(SparkEngine(spark))
    assert (first.parallelism, bulk.parallelism) == (2, 1)
    release = str(tmp_path / "release")
    began = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    found: dict[int, list[tuple[int, int]]] = {}

    def run(number: int, paths: list[Path]) -> None:
        found[number] = list(bulk.run(notes_and_waits, [(str(path), release) for path in paths]))

    threads = [
        Thread(target=run, args=(0, began[:2])),
        Thread(target=run, args=(1, began[2:])),
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: any(path.exists() for path in began))
    assert dict(first.run(squared, range(6))) == {n: n * n for n in range(6)}
    assert sum(path.exists() for path in began) == 1
    Path(release).write_text("go")
    for thread in threads:
        thread.join()
    assert {number: dict(results) for number, results in found.items()} == {
        0: {0: 1, 1: 1},
        1: {0: 1},
    }


def test_places_come_back_whatever_a_bulk_job_comes_to(spark: SparkSession, tmp_path: Path) -> None:
    slots = Slots(1)
    engine = SparkEngine(spark, slots=slots)
    with pytest.raises(InvalidRequestError, match="item 7"):
        list(engine.run(refuses_seven, range(5, 12)))
    items = [str(tmp_path / str(number)) for number in range(2)]
    assert dict(engine.run(dies_once, items, attempts=4)) == {0: 1, 1: 1}
    results = engine.run(notes_and_waits, [(str(tmp_path / "a"), ""), (str(tmp_path / "b"), "")])
    next(results)
    results.close()
    with pytest.raises(RetryableError, match=r"\d items"):
        list(engine.run(always_dies, range(3), attempts=2))
    assert slots.take(1, waits=False) == 1


POOLS = """
from penstock.pipeline.engine_choice import choose_engine, lanes, opened

with opened(choose_engine("spark", "local[2]", memory="512m")) as engine:
    lanes(engine)
    context = engine.session.sparkContext._jsc.sc()
    print(context.getSchedulingMode().toString())
    for name in ("tables", "bulk"):
        print(name, context.getPoolForName(name).get().minShare())
"""


def test_a_places_next_task_is_a_tables() -> None:
    environment = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    done = subprocess.run(
        [sys.executable, "-c", POOLS],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["FAIR", "tables 1000000", "bulk 0"]
