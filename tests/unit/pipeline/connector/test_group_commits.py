"""A stream's offsets come to a consumer group, and nothing of the query hangs on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.connector.options import parse
from penstock.pipeline.connector.stream import PlainStreamReader
from penstock.system.heard import Cause, swallowed_counts
from support.api_server import ApiServer, serve_in_thread
from support.ports import free_port
from support.waiting import eventually


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "data") as found:
        yield found


def reader_of(api: ApiServer, servers: str, **options: str) -> PlainStreamReader:
    given = {
        "url": api.client.options.urls[0],
        "subscribe": "t",
        "startingOffsets": "earliest",
        "commitGroup": "lake",
        "kafka.bootstrap.servers": servers,
    }
    return PlainStreamReader(parse(given | options, mode="stream"), ("value",))


def committed(api: ApiServer, group: str, partition: int) -> int:
    consumer = Consumer({"bootstrap.servers": str(api.server.kafka_address), "group.id": group})
    try:
        (found,) = consumer.committed([TopicPartition("t", partition)], timeout=30)
        return int(found.offset)
    finally:
        consumer.close()


@pytest.mark.slow
def test_a_batch_that_is_done_is_committed(api: ApiServer) -> None:
    api.create("t", partitions=2)
    api.produce("t", 0, count=3)
    reader = reader_of(api, str(api.server.kafka_address))
    end = reader.latestOffset()
    reader.commit(end)
    eventually(lambda: committed(api, "lake", 0), lambda offset: offset == 3)
    assert committed(api, "lake", 1) == 0
    api.produce("t", 1, count=2)
    reader.commit(reader.latestOffset())
    reader.stop()
    assert (committed(api, "lake", 0), committed(api, "lake", 1)) == (3, 2), "waits at its end"


@pytest.mark.slow
def test_a_commit_that_fails_is_counted_and_costs_the_query_nothing(api: ApiServer) -> None:
    api.create("t")
    api.produce("t", 0, count=1)
    reader = reader_of(api, f"127.0.0.1:{free_port()}")
    before = swallowed_counts()[Cause.COMMIT_GROUP]
    reader.commit(reader.latestOffset())
    end: dict[str, Any] = reader.latestOffset()
    assert end["topics"]["t"]["partitions"] == {"0": 1}
    reader.stop()
    assert swallowed_counts()[Cause.COMMIT_GROUP] > before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"commitGroup": ""}, "nothing goes to Kafka's port but the offsets of commitGroup"),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
    ],
)
def test_both_options_are_given_or_none(options: dict[str, str], says: str) -> None:
    least = {"url": "http://h:1", "subscribe": "t"}
    given = least | {"commitGroup": "g", "kafka.bootstrap.servers": "h:1"}
    with pytest.raises(InvalidRequestError, match=says):
        parse(given | options, mode="stream")
    with pytest.raises(InvalidRequestError, match="a batch commits no offsets"):
        parse(given, mode="batch")
    assert parse(least, mode="stream").commits_to is None
