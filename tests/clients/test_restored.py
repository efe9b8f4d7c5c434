"""A server comes back as an older backup, and grows past where its consumers had come (KIP-320).

What a consumer does that has its position in the part that is gone is its own affair, but it must
notice: by an error, or by going on from where the restored log does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.config.addresses import parse_address
from penstock.kafka.wire.schema import build
from support.connection import Connection
from support.raw_fetch import fetch_from
from support.server import ServerProcess, run_penstock, running_server

TOPIC = "restored"
KEPT, GONE, NEW = 6, 4, 20
DEADLINE_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path, {"SEGMENT_AGE_MS": "100"}) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(60)
        yield server


def produce(server: ServerProcess, kind: bytes, count: int) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(count):
        producer.produce(TOPIC, kind + b" %d" % number, partition=0)
    assert producer.flush(DEADLINE_S) == 0


def back_up(server: ServerProcess, folder: Path) -> None:
    made = run_penstock("backup", "--to", str(folder), "--http", server.http)
    assert made.returncode == 0, made.stderr


def come_back(server: ServerProcess, backup: Path, data: Path) -> None:
    """Under the same address, as of the backup."""
    server.kill()
    done = run_penstock("restore", "--from", str(backup), "--data", str(data))
    assert done.returncode == 0, done.stderr
    server.data = data
    server.start()


def lose_and_regrow(server: ServerProcess, folder: Path, *, restores: int = 1) -> None:
    """What came behind the backup is lost, and more than that comes in its place."""
    for number in range(restores):
        come_back(server, folder / "backup", folder / f"restored-{number}")
        (folder / "backup").rename(folder / f"used-{number}")
        back_up(server, folder / "backup")
    produce(server, b"new", NEW)


ALL_NEW = [b"new %d" % number for number in range(NEW)]


class Confluent:
    """A consumer of librdkafka."""

    def __init__(self, server: ServerProcess, reset: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": f"reader-{reset}",
                "auto.offset.reset": reset,
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def read(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            message = self._consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if "log truncation detected" in error.str():
                    raise TruncatedError
                assert error.retriable() or error.code() in TRANSPORT, error
                continue
            found.append(message.value())
        return found

    def pause(self) -> None:
        self._consumer.pause([TopicPartition(TOPIC, 0)])

    def resume(self) -> None:
        self._consumer.resume([TopicPartition(TOPIC, 0)])

    def close(self) -> None:
        self._consumer.close()


TRANSPORT = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)


class TruncatedError(Exception):
    """The client says that its position was cut off."""


@pytest.mark.parametrize("reset", ["error", "earliest"])
def test_a_consumer_behind_what_was_cut_off_notices(
    server: ServerProcess, tmp_path: Path, reset: str
) -> None:
    produce(server, b"kept", KEPT)
    back_up(server, tmp_path / "backup")
    produce(server, b"gone", GONE)
    consumer = Confluent(server, reset)
    try:
        assert len(consumer.read(KEPT + GONE)) == KEPT + GONE
        lose_and_regrow(server, tmp_path)
        try:
            found = consumer.read(NEW)
        except TruncatedError:
            return
        # It went back to where the restored log goes on, or to the beginning.
        if found[0].startswith(b"kept"):
            found = found[KEPT:] + consumer.read(KEPT)
        assert found == ALL_NEW
        assert reset != "error"
    finally:
        consumer.close()


def test_a_consumer_before_it_reads_on(server: ServerProcess, tmp_path: Path) -> None:
    """After two restores: the epoch of its position is older than the last one."""
    produce(server, b"kept", KEPT)
    consumer = Confluent(server, "error")
    try:
        assert len(consumer.read(KEPT)) == KEPT
        # Else it has fetched what is lost before it is.
        consumer.pause()
        back_up(server, tmp_path / "backup")
        produce(server, b"gone", GONE)
        lose_and_regrow(server, tmp_path, restores=2)
        consumer.resume()
        assert consumer.read(NEW) == ALL_NEW
    finally:
        consumer.close()


async def test_aiokafka_reads_on(server: ServerProcess, tmp_path: Path) -> None:
    """It knows no epochs: positions alone tell it where to go on."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Place

    produce(server, b"kept", KEPT)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=server.bootstrap,
        enable_auto_commit=False,
        # No fetch that is under way when it pauses brings what is lost later.
        fetch_max_wait_ms=10,
    )
    await consumer.start()
    try:
        place = Place(TOPIC, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        for _ in range(KEPT):
            await asyncio.wait_for(consumer.getone(), DEADLINE_S)
        consumer.pause(place)
        await asyncio.to_thread(back_up, server, tmp_path / "backup")
        await asyncio.to_thread(produce, server, b"gone", GONE)
        await asyncio.to_thread(lose_and_regrow, server, tmp_path)
        consumer.resume(place)
        found = [(await asyncio.wait_for(consumer.getone(), DEADLINE_S)).value for _ in range(NEW)]
        assert found == ALL_NEW
    finally:
        await consumer.stop()


def test_a_committed_offset_is_gone_on_from_in_the_restored_log(
    server: ServerProcess, tmp_path: Path
) -> None:
    """It carries the leader epoch of the record before it, which is older than the log's."""
    produce(server, b"kept", KEPT)
    settings = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "committing",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    seen, deadline = 0, time.monotonic() + DEADLINE_S
    while seen < KEPT:
        assert time.monotonic() < deadline
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            seen += 1
            consumer.commit(message=message, asynchronous=False)
    consumer.close()
    back_up(server, tmp_path / "backup")
    lose_and_regrow(server, tmp_path)
    epoch = leader_epoch(server)
    consumer = Consumer(settings)
    try:
        (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], 60)
        assert (committed.offset, committed.leader_epoch) == (KEPT, 0)
        consumer.subscribe([TOPIC])
        found: list[bytes] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < NEW:
            assert time.monotonic() < deadline, found
            message = consumer.poll(0.5)
            if message is not None:
                if message.error() is not None:
                    raise KafkaException(message.error())
                assert message.leader_epoch() == epoch
                found.append(message.value())
        assert found == ALL_NEW
    finally:
        consumer.close()


def test_a_restored_servers_epoch_is_the_next_and_fetches_of_others_are_refused(
    server: ServerProcess, tmp_path: Path
) -> None:
    produce(server, b"kept", KEPT)
    assert leader_epoch(server) == 0
    back_up(server, tmp_path / "backup")
    produce(server, b"gone", GONE)
    lose_and_regrow(server, tmp_path)
    restored = leader_epoch(server)
    assert restored > 100_000_000, "seconds since 2020"
    errors = {0: "FENCED_LEADER_EPOCH", restored + 1: "UNKNOWN_LEADER_EPOCH"}
    for epoch, error in errors.items():
        fetched = fetch_from(server.bootstrap, TOPIC, 0, KEPT, leader_epoch=epoch)
        assert (fetched.error, fetched.values) == (error, [])
    for epoch in (restored, -1):
        fetched = fetch_from(server.bootstrap, TOPIC, 0, KEPT, leader_epoch=epoch)
        assert fetched.offsets[0] == KEPT
        assert fetched.values == ALL_NEW[: len(fetched.values)]
    assert server.stop() == 0
    verified = run_penstock("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def leader_epoch(server: ServerProcess) -> int:
    """Of the topic's partition, as Metadata tells it."""

    def ask(types: ModuleType) -> Any:
        topic = build(types.MetadataRequestTopic, name=TOPIC, topic_id=None)
        return build(
            types.MetadataRequest,
            topics=(topic,),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
            include_cluster_authorized_operations=False,
        )

    connection = Connection(parse_address(server.bootstrap, setting="server"), timeout_s=DEADLINE_S)
    try:
        answer = connection.request("metadata", ask)
    finally:
        connection.close()
    return int(answer.topics[0].partitions[0].leader_epoch)
