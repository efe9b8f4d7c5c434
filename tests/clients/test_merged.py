"""Small batches that compaction has merged: every client reads the same records, and a producer
that retries its last batches gets their first offsets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.config.addresses import parse_address
from penstock.kafka.errors import ErrorCode
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from support import raw_wire
from support.adapters import ADAPTERS
from support.agents import run_cli
from support.connection import Connection
from support.raw_fetch import fetch_bytes
from support.server import ServerProcess

pytestmark = pytest.mark.skipif(
    "PENSTOCK_TEST_BOOTSTRAP" in os.environ, reason="compacts by an API that only this server has"
)

TOPIC = "merged"
COUNT = 120
PRODUCERS = (1 << 40, (1 << 40) + 1)


class Sender:
    """Sends one-record batches of producers that it makes up, as their clients would."""

    def __init__(self, bootstrap: str) -> None:
        self._connection = Connection(parse_address(bootstrap, setting="server"), timeout_s=60)

    def send(self, producer: int, sequence: int) -> int:
        record = Record(
            offset_delta=0,
            timestamp=1_700_000_000_000 + sequence,
            key=b"%d" % producer,
            value=b"%d of %d" % (sequence, producer),
            headers=(("h", b"%d" % sequence),),
        )
        batch = encode_batch(
            [record],
            codec="lz4" if sequence % 2 else "none",
            producer_id=producer,
            producer_epoch=0,
            base_sequence=sequence,
        )
        body = raw_wire.produce_request(TOPIC, 0, batch, timeout_ms=30_000)
        answer = self._connection.exchange("produce", raw_wire.PRODUCE_VERSION, body)
        code, offset = raw_wire.produce_answer(answer)
        assert code == 0, code
        return offset

    def close(self) -> None:
        self._connection.close()


def fetch_code(bootstrap: str, version: int) -> int:
    """The error of the partition in one Fetch of a version from 9 to 11."""
    body = raw_wire.fetch_request(TOPIC, 0, 0, wait_ms=0)
    if version < 11:
        body = body[:-2]  # no rack
    connection = Connection(parse_address(bootstrap, setting="server"), timeout_s=60)
    try:
        answer = connection.exchange("fetch", version, body)
    finally:
        connection.close()
    # Versions below 11 have no preferred replica, which is looked over.
    return raw_wire.fetch_answer(memoryview(bytes(answer) + bytes(8)), 0).code


def read_by_confluent(bootstrap: str, start: int, isolation: str) -> list[tuple[int, bytes]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, start)])
        found: list[tuple[int, bytes]] = []
        while len(found) < 2 * COUNT - start:
            message = consumer.poll(30)
            assert message is not None, found[-1:]
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value()))
        return found
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("merged")
    server = ServerProcess(
        folder / "data", folder / "server.log", settings={"SEGMENT_AGE_MS": "100"}
    )
    server.start()
    try:
        yield server
        assert server.running(), server.tail()
    finally:
        status = server.stop() if server.process is not None else None
    assert status == 0, server.tail()
    verified = run_cli("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_merged_batches_are_what_they_were(server: ServerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config={"compression.type": "lz4"})])[TOPIC].result(
        60
    )
    sent: dict[tuple[int, int], int] = {}
    sender = Sender(server.bootstrap)
    for sequence in range(COUNT):
        for producer in PRODUCERS:
            sent[producer, sequence] = sender.send(producer, sequence)
        if sequence % 30 == 29:
            sender.close()
            # Its WAL is drained to an object when it ends.
            assert server.stop() == 0, server.tail()
            server.start()
            sender = Sender(server.bootstrap)
    starts = (0, 1, COUNT, 2 * COUNT - 1)
    before = {
        (start, level): read_by_confluent(server.bootstrap, start, level)
        for start in starts
        for level in ("read_uncommitted", "read_committed")
    }
    done = run_cli(
        "pipeline", "compact", "--engine", "local", "--url", f"http://{server.http}", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["merged_batches"] == 2 * COUNT
    _, code, data = fetch_bytes(server.bootstrap, TOPIC, 0, COUNT)
    assert code == 0
    records, following = raw_wire.read_batches(data, COUNT)
    assert (len(records), following) == (COUNT, 2 * COUNT)
    assert len(data) < 10_000, "one batch of all records"
    for (start, level), expected in before.items():
        assert read_by_confluent(server.bootstrap, start, level) == expected
    for adapter in ADAPTERS:
        found = adapter.read(server.bootstrap, TOPIC, 1, 2 * COUNT)
        assert [(one.offset, one.value) for one in found] == before[0, "read_committed"]
    for producer in PRODUCERS:
        for sequence in range(COUNT - 5, COUNT):
            assert sender.send(producer, sequence) == sent[producer, sequence]
        assert sender.send(producer, COUNT) >= 2 * COUNT, "and goes on"
    sender.close()
    assert [fetch_code(server.bootstrap, version) for version in (9, 10, 11)] == [0, 0, 0]
    altered = run_cli(
        "topic", "alter", TOPIC, "--config", "compression.type=zstd", "--server", server.bootstrap
    )
    assert altered.returncode == 0, altered.stderr
    unsupported = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert [fetch_code(server.bootstrap, version) for version in (9, 10)] == [unsupported, 0]
