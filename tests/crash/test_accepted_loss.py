"""An operator gives up what is damaged; real clients step over the gap up to the log's end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from crash.test_damage import COUNT, damaged, flip_in_partition_0, http, remove_object, value
from penstock.cli.main import root
from support.raw_fetch import fetch_from
from support.server import ServerProcess

__all__ = ["damaged"]

CLIENT_S = 60.0


def with_librdkafka(bootstrap: str, end: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    partition = TopicPartition("t", 0, 0)
    consumer.assign([partition])
    found: list[bytes] = []
    until_s = time.monotonic() + CLIENT_S
    try:
        while time.monotonic() < until_s:
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message.value())
            # Its position is that of records that it has given out: the last of them is enough.
            elif len(found) >= end:
                return found
    finally:
        consumer.close()
    return found


def with_kafka_python(bootstrap: str, end: int) -> list[bytes]:
    import kafka

    partition = kafka.TopicPartition("t", 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    found: list[bytes] = []
    until_s = time.monotonic() + CLIENT_S
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        while time.monotonic() < until_s and consumer.position(partition) < COUNT:
            for records in consumer.poll(timeout_ms=200).values():
                found += [record.value for record in records]
        assert consumer.position(partition) == COUNT, end
    finally:
        consumer.close()
    return found


def with_aiokafka(bootstrap: str, end: int) -> list[bytes]:
    import aiokafka

    async def read() -> list[bytes]:
        partition = aiokafka.TopicPartition("t", 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
        found: list[bytes] = []
        await consumer.start()
        try:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            until_s = time.monotonic() + CLIENT_S
            while time.monotonic() < until_s and await consumer.position(partition) < COUNT:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [record.value for record in records]
            assert await consumer.position(partition) == COUNT, end
        finally:
            await consumer.stop()
        return found

    return asyncio.run(read())


CLIENTS: list[Callable[[str, int], list[bytes]]] = [
    with_librdkafka,
    with_kafka_python,
    with_aiokafka,
]


def without_wal(data: Path, damage: Callable[[Path], None]) -> None:
    """Damage something of which the WAL has no copy any more."""
    for path in (data / "wal").glob("*.wal"):
        path.unlink()
    damage(data)


@pytest.mark.parametrize(
    "damaged",
    [
        partial(without_wal, damage=flip_in_partition_0),
        partial(without_wal, damage=remove_object),
    ],
    indirect=True,
    ids=["bit", "object"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_clients_step_over_what_was_given_up(damaged: ServerProcess) -> None:
    assert fetch_from(damaged.bootstrap, "t", 0, COUNT - 10).error == "CORRUPT_MESSAGE"
    looked = CliRunner().invoke(root, ["repair", "--http", f"http://{damaged.http}", "--json"])
    assert looked.exit_code == 1, looked.output
    run = next(one for one in json.loads(looked.output)["runs"] if one["partition"] == "t-0")
    assert run["state"] == "damaged"
    lost = [offset for start, end in run["lost"] for offset in range(start, end)]
    assert COUNT - 10 in lost
    given_up = CliRunner().invoke(
        root, ["repair", "--http", f"http://{damaged.http}", "--accept-loss", "--json"]
    )
    assert given_up.exit_code == 0, given_up.output
    expected = [value(number) for number in range(COUNT) if number not in lost]
    for read in CLIENTS:
        assert read(damaged.bootstrap, len(expected)) == expected, read.__name__
    _, text = http(damaged, "/v1/status")
    status = json.loads(text)
    rows = [row for row in status["lost_ranges"]["ranges"] if row["partition"] == "t-0"]
    ranges = [(row["start"], row["end"]) for row in rows]
    assert ranges == [tuple(pair) for pair in run["lost"]]
    # And so after a restart.
    assert damaged.stop() == 0
    damaged.start()
    assert with_kafka_python(damaged.bootstrap, len(expected)) == expected
