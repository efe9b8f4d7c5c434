"""Measure what the dearest valid request of each kind costs, and how long others wait meanwhile.

This is a report, not a test: the tests count the work between two turns of the event loop, here it
is seconds. Compare two commits by running it at both, in turns, on one machine:

    PYTHONPATH=src:tests:bench python bench/bench_requests.py [--only NAME,NAME]

Each request is sent to a server of its own that has some topics. `CPU s` is the server's for the
request and its answer, `others wait` the longest of ApiVersions requests that another connection
sends all the while, by the wall clock, so other programs count in. The answer is read whole, or
the server closes the connection: then `refused`.
"""

from __future__ import annotations

import argparse
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import wire
from servers import Running, contenders

TIMEOUT_S = 120
BEHIND = 2
"""Correlation id of a request that is sent behind the one that is measured."""
Setup = Callable[[socket.socket], None]


def uvarint(number: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def flexible(api_key: int, version: int, body: bytes) -> bytes:
    """A request whose header has tagged fields, none."""
    return wire.request(api_key, version, 1, b"\0" + body)


def compact(text: str) -> bytes:
    """A compact string."""
    return uvarint(len(text) + 1) + text.encode()


def create_topics(names: list[str], partitions: int = 1, *, validate_only: bool = False) -> bytes:
    """CreateTopics 2."""
    body = struct.pack(">i", len(names))
    for name in names:
        body += wire.string(name) + struct.pack(">ihii", partitions, 1, 0, 0)
    return wire.request(19, 2, 1, body + struct.pack(">i?", 60_000, validate_only))


def metadata(names: list[str]) -> bytes:
    """Metadata 1, which creates what is not there."""
    return wire.request(3, 1, 1, struct.pack(">i", len(names)) + b"".join(map(wire.string, names)))


def describe_configs(names: list[str]) -> bytes:
    """DescribeConfigs 3 with synonyms and documentation."""
    body = struct.pack(">i", len(names))
    for name in names:
        body += b"\x02" + wire.string(name) + struct.pack(">i", -1)
    return wire.request(32, 3, 1, body + b"\1\1")


def offset_fetch(groups: int) -> bytes:
    """OffsetFetch 8 that names one group so often."""
    group = compact("g") + b"\0\0"
    return flexible(9, 8, uvarint(groups + 1) + group * groups + b"\0\0")


def describe_groups(groups: int) -> bytes:
    """DescribeGroups 0 that names one group so often."""
    return wire.request(15, 0, 1, struct.pack(">i", groups) + wire.string("g") * groups)


def empty_produce(partitions: int) -> bytes:
    """Produce 3 of partitions without records, of a topic that is not there."""
    body = struct.pack(">hhii", -1, 1, 1000, 1) + wire.string("nosuch")
    return wire.request(
        0, 3, 1, body + struct.pack(">i", partitions) + struct.pack(">ii", 0, -1) * partitions
    )


def empty_fetch(partitions: int) -> bytes:
    """Fetch 4 of partitions of a topic that is not there."""
    body = struct.pack(">iiiibi", -1, 100, 1, 1 << 20, 0, 1) + wire.string("nosuch")
    return wire.request(
        1, 4, 1, body + struct.pack(">i", partitions) + struct.pack(">iqi", 0, 0, 1000) * partitions
    )


def one_record_batches(batches: int, acks: int) -> bytes:
    """Produce 3 of one-record batches of topic "ten", all to one partition."""
    batch = wire.record_batch(b"v")
    body = struct.pack(">hhii", -1, acks, 10_000, 1) + wire.string("ten")
    one = struct.pack(">ii", 0, len(batch)) + batch
    return wire.request(0, 3, 1, body + struct.pack(">i", batches) + one * batches)


def commit_offsets(partitions: int, metadata_bytes: int) -> bytes:
    """OffsetCommit 2 to "big" by a consumer without a group's protocol."""
    body = wire.string("g") + struct.pack(">i", -1) + wire.string("")
    body += struct.pack(">qi", -1, 1) + wire.string("big") + struct.pack(">i", partitions)
    text = wire.string("x" * metadata_bytes)
    for number in range(partitions):
        body += struct.pack(">iq", number, 5) + text
    return wire.request(8, 2, 1, body)


def list_offsets(partitions: int) -> bytes:
    """ListOffsets 1 of the end of partitions of "big"."""
    body = struct.pack(">ii", -1, 1) + wire.string("big") + struct.pack(">i", partitions)
    body += b"".join(struct.pack(">iq", number, -1) for number in range(partitions))
    return wire.request(2, 1, 1, body)


def no_setup(connection: socket.socket) -> None:
    """Nothing."""
    del connection


def committed(connection: socket.socket) -> None:
    """A group with 1,000 committed offsets of 4,000 characters each."""
    wire.ask(connection, commit_offsets(1000, 4000))


def with_2000_topics(connection: socket.socket) -> None:
    """Topics t_000000 to t_001999."""
    for start in range(0, 2000, 500):
        names = [f"t_{number:06d}" for number in range(start, start + 500)]
        wire.ask(connection, create_topics(names))


def named(prefix: str, count: int) -> list[str]:
    """Names of topics."""
    return [f"{prefix}_{number:06d}" for number in range(count)]


CASES: dict[str, tuple[Setup, Callable[[], bytes]]] = {
    "OffsetFetch, one group 100 times": (committed, lambda: offset_fetch(100)),
    "DescribeGroups, one group 10,000 times": (committed, lambda: describe_groups(10_000)),
    "Metadata, one topic of 1,000 partitions 10,000 times": (
        no_setup,
        lambda: metadata(["big"] * 10_000),
    ),
    "Metadata, 2,000 new names": (with_2000_topics, lambda: metadata(named("a", 2000))),
    "DescribeConfigs, one topic 2,000 times": (no_setup, lambda: describe_configs(["ten"] * 2000)),
    "DescribeConfigs, 2,000 topics": (
        with_2000_topics,
        lambda: describe_configs(named("t", 2000)),
    ),
    "CreateTopics, 4,000, validate only": (
        no_setup,
        lambda: create_topics(named("c", 4000), validate_only=True),
    ),
    "CreateTopics, 4,000": (no_setup, lambda: create_topics(named("c", 4000))),
    "Produce, 1,000,000 empty partitions": (no_setup, lambda: empty_produce(1_000_000)),
    "Produce, 100,000 empty partitions": (no_setup, lambda: empty_produce(100_000)),
    "Fetch, 1,000,000 empty partitions": (no_setup, lambda: empty_fetch(1_000_000)),
    "Fetch, 100,000 empty partitions": (no_setup, lambda: empty_fetch(100_000)),
    "Produce, 10,000 batches of one record": (no_setup, lambda: one_record_batches(10_000, -1)),
    "Produce, the same with acks=0": (no_setup, lambda: one_record_batches(10_000, 0)),
    "OffsetCommit, 100,000 partitions": (no_setup, lambda: commit_offsets(100_000, 0)),
    "ListOffsets, 100,000 partitions": (no_setup, lambda: list_offsets(100_000)),
}


class Others:
    """Another client, which asks ApiVersions all the time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.worst_s = 0.0

    def _run(self) -> None:
        message = wire.request(18, 0, 1, b"")
        while not self._stopped.is_set():
            started = time.perf_counter()
            wire.ask(self._socket, message)
            self.worst_s = max(self.worst_s, time.perf_counter() - started)
            time.sleep(0.001)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._socket.close()


def answer_bytes(port: int, message: bytes) -> int:
    """Send it and read its answer; 0: none is owed; -1: the connection was closed instead."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        try:
            connection.sendall(message)
            # Answered behind it, when all that it does is done.
            connection.sendall(wire.request(18, 0, BEHIND, b""))
            with connection.makefile("rb") as stream:
                total = 0
                while head := stream.read(8):
                    size, correlation_id = struct.unpack(">ii", head)
                    left = size - 4
                    while left:
                        left -= len(stream.read(min(left, 1 << 20)))
                    if correlation_id == BEHIND:
                        return total
                    total += 4 + size
        except ConnectionError:
            pass
    return -1


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="parts of the names of cases, by commas")
    wanted = [part for part in parser.parse_args().only.split(",") if part]
    print("| request | bytes | answer, bytes | CPU s | others wait, ms | resident, MB more |")
    print("| --- |" + " ---: |" * 5)
    for name, (setup, make) in CASES.items():
        if wanted and not any(part in name for part in wanted):
            continue
        with (
            tempfile.TemporaryDirectory() as folder,
            Running(contenders()["penstock"], Path(folder) / "data") as server,
        ):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                wire.ask(connection, create_topics(["big"], 1000))
                wire.ask(connection, create_topics(["ten"], 10))
                setup(connection)
            message = make()
            # Imported at the first request of its kind, and not what is asked for here.
            answer_bytes(server.port, metadata(["ten"]))
            rss, cpu = server.rss_mb(), server.cpu_s()
            with Others(server.port) as others:
                length = answer_bytes(server.port, message)
            answer = "refused" if length < 0 else f"{length:,}"
            print(
                f"| {name} | {len(message):,} | {answer} | {server.cpu_s() - cpu:.2f} "
                f"| {others.worst_s * 1000:.0f} | {server.rss_mb() - rss:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
