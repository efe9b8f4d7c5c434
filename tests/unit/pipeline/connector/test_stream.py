"""The reader for Spark 4.1, driven as that Spark does it: it asks for the newest offsets before it
says where a batch begins."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from penstock.model.errors import ConflictError, NotFoundError
from penstock.pipeline.connector.options import parse
from penstock.pipeline.connector.stream import PlainStreamReader
from support.api_server import ApiServer, serve_in_thread

Offsets = dict[str, Any]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data") as found:
        yield found


class Query:
    """A query and its checkpoint; each `reader` is that of a process of its own."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.committed: Offsets | None = None
        self.reader: PlainStreamReader | None = None

    def restart(self, **options: str) -> None:
        given = {"url": self.api.client.options.urls[0], "subscribePattern": "[a-z]+"} | options
        if self.reader is not None:
            self.reader.stop()
        self.reader = PlainStreamReader(
            parse({"startingOffsets": "earliest"} | given, mode="stream"), ("value",)
        )

    def batch(self) -> list[tuple[str, int, int]]:
        """Plan a batch and commit it: what it reads."""
        assert self.reader is not None
        start = self.committed or self.reader.initialOffset()
        end = as_kept(self.reader.latestOffset())
        tasks = self.reader.partitions(as_kept(start), end)
        self.committed = end
        return spans(tasks)

    def topics(self) -> Offsets:
        assert self.committed is not None
        known: Offsets = self.committed["topics"]
        return known


def as_kept(offsets: Offsets) -> Offsets:
    kept: Offsets = json.loads(json.dumps(offsets))
    return kept


def spans(tasks: list[InputPartition]) -> list[tuple[str, int, int]]:
    return sorted((one.topic, one.start, one.end) for task in tasks for one in task.ranges)  # type: ignore[attr-defined]


@pytest.fixture
def query(api: ApiServer) -> Iterator[Query]:
    """One that has read ten records of each of two topics, and was ended."""
    for name in ("a", "b"):
        api.create(name)
        api.produce(name, 0, count=10)
    query = Query(api)
    query.restart()
    assert query.batch() == [("a", 0, 10), ("b", 0, 10)]
    yield query
    assert query.reader is not None
    query.reader.stop()


def test_it_goes_on_where_it_was(api: ApiServer, query: Query) -> None:
    api.produce("a", 0, count=3)
    query.restart()
    assert query.batch() == [("a", 10, 13)]
    api.produce("b", 0, count=2)
    assert query.batch() == [("b", 10, 12)]


def test_a_topic_that_was_deleted_meanwhile_is_an_error_or_stays_known(
    api: ApiServer, query: Query
) -> None:
    api.delete("b")
    api.produce("a", 0, count=3)
    query.restart()
    with pytest.raises(NotFoundError, match="was deleted"):
        query.batch()
    query.restart(failOnDataLoss="false")
    assert query.batch() == [("a", 10, 13)]
    assert query.batch() == []
    assert query.topics()["b"]["partitions"] == {"0": 10}
    api.create("b")
    api.produce("b", 0, count=4)
    with pytest.raises(ConflictError, match="made again"):
        query.batch()


def test_a_topic_that_was_made_anew_meanwhile_is_an_error(api: ApiServer, query: Query) -> None:
    api.delete("b")
    api.create("b")
    query.restart(failOnDataLoss="false")
    with pytest.raises(ConflictError, match="made again"):
        query.batch()


@pytest.mark.slow
def test_what_is_not_subscribed_and_what_was_lost_stay_in_the_checkpoint(
    api: ApiServer, query: Query
) -> None:
    api.produce("a", 0, count=5)
    api.trim("a", 0, 12)
    query.restart(subscribePattern="a", failOnDataLoss="false")
    assert query.batch() == [("a", 12, 15)]
    # Spark has written down this batch's end before it says where the batch begins.
    assert query.batch() == []
    assert query.topics()["a"]["lost"] == 2
    assert query.topics()["b"]["partitions"] == {"0": 10}
    api.produce("b", 0, count=1)
    query.restart()
    assert query.batch() == [("b", 10, 11)]
    assert query.batch() == []
    assert query.topics()["a"]["lost"] == 2


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_a_log_that_went_back_is_an_error(api: ApiServer, query: Query, allowed: str) -> None:
    assert query.committed is not None
    query.committed["topics"]["b"]["partitions"]["0"] = 11
    query.restart(failOnDataLoss=allowed)
    with pytest.raises(ConflictError, match="gone back"):
        query.batch()


def test_a_first_batch_at_latest_that_is_run_again_reads_nothing(api: ApiServer) -> None:
    """Its start moved behind its end meanwhile: that is no log that went back."""
    api.create("a")
    api.produce("a", 0, count=10)
    query = Query(api)
    query.restart(startingOffsets="latest")
    assert query.reader is not None
    end = as_kept(query.reader.latestOffset())
    api.produce("a", 0, count=5)
    query.restart(startingOffsets="latest")
    assert query.reader.partitions(as_kept(query.reader.initialOffset()), end) == []
    query.reader.stop()
