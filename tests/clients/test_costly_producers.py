"""Producers that send a real server process more than it has answered, and some that are gone by
then: memory stays within a bounded multiple of what is sent, and falls once they are gone."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path

from support.loopback import PRODUCE, request
from support.probe import create_topic
from support.resident import resident_kib
from support.server import running_server
from support.strangers import PATIENCE_S
from unit.kafka.test_produce import batch

TOPIC = b"t"
PARTITIONS = 100_000
"""Of a request: 8 MB, read in turns of the loop."""
AHEAD_PARTITIONS = 450
"""Of a request that is read in one turn of the loop."""
AHEAD_BYTES = 4 << 20
AHEAD_GROWTH_KIB_MAX = 38 << 10
"""The frames, twice: as requests and as records in the cache; and what is read of some of them."""
ROUNDS = 60
GROWTH_KIB_MAX = 96 << 10
"""One request that is read, which takes 13 times its bytes, and those that are received."""


def produce(partitions: int) -> bytes:
    one = struct.pack(">ii", 0, len(batch())) + batch()
    head = struct.pack(">hhiih1si", -1, -1, 30_000, 1, len(TOPIC), TOPIC, partitions)
    return request(PRODUCE, 3, 1, head + one * partitions)


def send_and_reset(port: int, data: bytes) -> None:
    """Connect, send, and end the connection with a reset."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as producer:
        producer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        producer.sendall(data)


def test_memory_does_not_grow_with_the_produces_that_a_client_sends_ahead(tmp_path: Path) -> None:
    data = produce(AHEAD_PARTITIONS)
    count = AHEAD_BYTES // len(data)
    with running_server(tmp_path, {}) as server:
        create_topic(server.bootstrap, TOPIC.decode(), 1)
        before, most = resident_kib(server), 0
        with socket.create_connection(("127.0.0.1", server.kafka_port), PATIENCE_S) as producer:
            sender = threading.Thread(target=producer.sendall, args=(data * count,))
            sender.start()
            answers = producer.makefile("rb")
            for _ in range(count):
                (length,) = struct.unpack(">i", answers.read(4))
                answers.read(length)
                most = max(most, resident_kib(server))
            sender.join()
        assert most - before < AHEAD_GROWTH_KIB_MAX, (before, most)
        print(f"resident: {before} KiB before, {most} KiB at most")


def test_memory_does_not_grow_with_the_producers_that_are_gone(tmp_path: Path) -> None:
    data = produce(PARTITIONS)
    with running_server(tmp_path, {}) as server:
        create_topic(server.bootstrap, TOPIC.decode(), 1)
        before = resident_kib(server)
        most = 0
        for _ in range(ROUNDS):
            send_and_reset(server.kafka_port, data)
            most = max(most, resident_kib(server))
        assert most - before < GROWTH_KIB_MAX, (before, most)
        print(f"resident: {before} KiB before, {most} KiB at most")
