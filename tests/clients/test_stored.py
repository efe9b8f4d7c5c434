"""What lies in segments alone, and is sent from their files, reads as what was written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.adapters import ADAPTERS, ClientAdapter, ConfluentAdapter
from support.records import NewRecord
from support.server import ServerProcess

pytestmark = pytest.mark.skipif(
    "PENSTOCK_TEST_BOOTSTRAP" in os.environ, reason="needs a server that it may start anew"
)

PARTITIONS = 3
TOPIC = "stored"
RECORDS = [
    NewRecord(
        partition=index % PARTITIONS,
        key=str(index).encode(),
        value=Random(index).randbytes((index * 7919) % 40_000),
        timestamp_ms=1_700_000_000_000 + index,
        headers=(),
    )
    for index in range(900)
]
"""18 MB, which no socket takes at once."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that was started anew: nothing is in memory, all in segments."""
    folder = tmp_path_factory.mktemp("stored")
    server = ServerProcess(folder / "data", folder / "server.log")
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
        third = len(RECORDS) // 3
        for start in range(0, len(RECORDS), third):
            # In several objects, each made when the server drains its WAL at its end.
            ConfluentAdapter().write(server.bootstrap, TOPIC, RECORDS[start : start + third])
            assert server.stop() == 0, server.tail()
            evict(folder)
            server.start()
        yield server
        assert server.running(), server.tail()
    finally:
        status = server.stop() if server.process is not None else None
    assert status == 0, server.tail()


def evict(folder: Path) -> None:
    """Have the page cache forget a folder's files, where the system can be told to."""
    for path in folder.rglob("*"):
        if path.is_file() and hasattr(os, "posix_fadvise"):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@pytest.mark.parametrize("reader", ADAPTERS, ids=lambda reader: reader.name)
def test_every_client_reads_what_is_stored(stored: ServerProcess, reader: ClientAdapter) -> None:
    """First from the disk, then from the page cache."""
    for _ in range(2):
        read = reader.read(stored.bootstrap, TOPIC, PARTITIONS, len(RECORDS))
        assert len(read) == len(RECORDS)
        for partition in range(PARTITIONS):
            found = [record for record in read if record.partition == partition]
            assert [record.offset for record in found] == list(range(len(found)))
            wanted = [record for record in RECORDS if record.partition == partition]
            assert [record.without_offset() for record in found] == wanted
        evict(stored.data)


def test_a_reader_may_begin_anywhere(stored: ServerProcess) -> None:
    consumer = Consumer({"bootstrap.servers": stored.bootstrap, "group.id": "anywhere"})
    try:
        wanted = [record for record in RECORDS if record.partition == 1]
        for offset in (0, 1, 57, 133, 200, len(wanted) - 1):
            consumer.assign([TopicPartition(TOPIC, 1, offset)])
            message = consumer.poll(90)
            assert message is not None
            assert message.error() is None
            assert (message.offset(), message.value()) == (offset, wanted[offset].value)
    finally:
        consumer.close()
