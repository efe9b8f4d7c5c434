"""What lies damaged under a real server: real clients raise, and log, metric and status name it.

Each kind of damage is done to a stopped server's data, as a disk or an operator may. One partition
of the topic is damaged, the other is read beside it.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.raw_fetch import fetch_from
from support.server import ServerProcess

COUNT = 60
ONE_OBJECT = {"SEGMENT_AGE_MS": "3600000", "TAIL_CACHE_BYTES": "1MiB"}
"""Whatever a slow machine takes to produce, the stop moves all of it to one object."""
CLIENT_S = 60.0
"""Only a client that hangs takes so long."""


def value(number: int) -> bytes:
    return b"%06d" % number + b"x" * 2000


def produce(bootstrap: str, **config: str) -> None:
    """One batch per record, in two partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1, "log_level": 0})
    for number in range(COUNT):
        for partition in range(2):
            producer.produce("t", value(number), partition=partition)
    assert producer.flush(60) == 0


def only_object(data: Path) -> Path:
    (path,) = (path for path in (data / "objects/segments").rglob("*") if path.is_file())
    return path


def flip_in_partition_0(data: Path) -> None:
    """A bit of a record of the first partition's second half; runs of a segment are by partition,
    the first is the first half."""
    path = only_object(data)
    whole = bytearray(path.read_bytes())
    at = whole.index(value(COUNT - 10))
    whole[at + 1000] ^= 8
    path.write_bytes(whole)


def remove_object(data: Path) -> None:
    only_object(data).unlink()


def http(server: ServerProcess, path: str) -> tuple[int, str]:
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=30) as answer:
        return answer.status, answer.read().decode()


@pytest.fixture
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A server that was started on damaged data, and what was done to it."""
    server = ServerProcess(
        tmp_path / "data", tmp_path / "server.log", ONE_OBJECT | {"DEFAULT_PARTITIONS": "2"}
    )
    server.start()
    try:
        produce(server.bootstrap)
        assert server.stop() == 0
        request.param(server.data)
        server.start()
        yield server
    finally:
        if server.process is not None:
            server.stop()


def with_librdkafka(bootstrap: str) -> tuple[list[bytes], str]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    until_s = time.monotonic() + CLIENT_S
    try:
        while time.monotonic() < until_s:
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                return found, error.name()
            found.append(message.value())
    finally:
        consumer.close()
    return found, ""


def with_kafka_python(bootstrap: str) -> tuple[list[bytes], str]:
    import kafka

    partition = kafka.TopicPartition("t", 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
    found: list[bytes] = []
    until_s = time.monotonic() + CLIENT_S
    try:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        while time.monotonic() < until_s:
            for records in consumer.poll(timeout_ms=200).values():
                found += [record.value for record in records]
    except kafka.errors.KafkaError as error:
        return found, type(error).__name__
    finally:
        consumer.close()
    return found, ""


def with_aiokafka(bootstrap: str) -> tuple[list[bytes], str]:
    import aiokafka

    async def read() -> tuple[list[bytes], str]:
        partition = aiokafka.TopicPartition("t", 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
        found: list[bytes] = []
        await consumer.start()
        try:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            until_s = time.monotonic() + CLIENT_S
            while time.monotonic() < until_s:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [record.value for record in records]
        except aiokafka.errors.KafkaError as error:
            return found, type(error).__name__
        finally:
            await consumer.stop()
        return found, ""

    return asyncio.run(read())


CLIENTS: dict[str, tuple[Callable[[str], tuple[list[bytes], str]], str]] = {
    "librdkafka": (with_librdkafka, "INVALID_MSG"),
    "kafka-python": (with_kafka_python, "CorruptRecordError"),
    "aiokafka": (with_aiokafka, "CorruptRecordException"),
}


@pytest.mark.parametrize(
    "damaged", [flip_in_partition_0, remove_object], indirect=True, ids=["bit", "object"]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_clients_raise_and_the_server_names_what_is_damaged(damaged: ServerProcess) -> None:
    """No wrong record, no silence; one bit costs nobody else anything."""
    started_s = time.monotonic()
    answer = fetch_from(damaged.bootstrap, "t", 0, COUNT - 10)
    assert answer.error == "CORRUPT_MESSAGE"
    assert time.monotonic() - started_s < CLIENT_S
    _, text = http(damaged, "/v1/status")
    (found,) = json.loads(text)["damage"]["ranges"]
    assert found["partition"] == "t-0"
    assert found["start"] <= COUNT - 10 < found["end"]
    lines = [line for line in damaged.log.read_text().splitlines() if "offsets" in line]
    assert len(lines) == 1
    assert "t-0" in lines[0]
    assert found["place"] in lines[0]
    _, metrics = http(damaged, "/metrics")
    assert f'penstock_damage_total{{kind="{found["kind"]}"}} ' in metrics
    assert 'penstock_fetch_errors_total{kind="DamagedError"} ' in metrics
    assert http(damaged, "/readyz")[0] == 200
    whole = found["kind"] == "missing_object"
    right_end = 0 if whole else COUNT - 10
    expected = [value(number) for number in range(right_end)]
    for name, (read, error) in CLIENTS.items():
        assert read(damaged.bootstrap) == (expected, error), name
    if whole:
        return
    other = [
        record
        for offset in range(0, COUNT, 10)
        for record in fetch_from(damaged.bootstrap, "t", 1, offset).values[:10]
    ]
    assert other == [value(number) for number in range(COUNT)]
