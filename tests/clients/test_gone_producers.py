"""Producers that send long requests to a real server process and are gone before it has answered:
what they sent takes memory for as long as the log has some of it, and no longer."""

from __future__ import annotations

import socket
import struct
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
ROUNDS = 60
GROWTH_KIB_MAX = 96 << 10
"""One request that is read, which takes 13 times its bytes, and those that are received."""


def long_produce() -> bytes:
    one = struct.pack(">ii", 0, len(batch())) + batch()
    head = struct.pack(">hhiih1si", -1, -1, 30_000, 1, len(TOPIC), TOPIC, PARTITIONS)
    return request(PRODUCE, 3, 1, head + one * PARTITIONS)


def send_and_reset(port: int, data: bytes) -> None:
    """Connect, send, and end the connection with a reset."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as producer:
        producer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        producer.sendall(data)


def test_memory_does_not_grow_with_the_producers_that_are_gone(tmp_path: Path) -> None:
    data = long_produce()
    with running_server(tmp_path, {}) as server:
        create_topic(server.bootstrap, TOPIC.decode(), 1)
        before = resident_kib(server)
        most = 0
        for _ in range(ROUNDS):
            send_and_reset(server.kafka_port, data)
            most = max(most, resident_kib(server))
        assert most - before < GROWTH_KIB_MAX, (before, most)
        print(f"resident: {before} KiB before, {most} KiB at most")
