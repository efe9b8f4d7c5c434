"""Measure what it costs to look at each record of what is produced: on, off, and against a copy.

This is a report, not a test. Compare two commits by running it at both, in turns, on one machine:

    PYTHONPATH=src:tests:bench python bench/bench_validation.py [--rounds 7] [--server]

Times are CPU (`time.process_time`), so that other work on the machine hardly counts; figures are
medians of rounds that take turns. A batch has 1 MiB or 16 KiB (what clients make at their defaults)
of records before compression, whose values are words of a small vocabulary, so that they compress
three to five times. `mixed` values have from half to one and a half times as many bytes.

- `off`: the header and CRC-32C, as with `penstock.validate.records=false`;
- `on`: that, and the look at all records;
- `copy`: reading all decompressed bytes from a stream, in pieces, which no look inside can beat.

With `--server` a server takes the same batches over a socket, for a topic with validation and for
one without, by turns; the figure is the CPU of its process for each MB of records, decompressed.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import wire
from penstock.records.batch import HEADER_BYTES, BatchLimits, check_batch, codec_of
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.streams import CODECS, PIECE_BYTES, open_stream
from servers import Running, contenders
from support.batches import check_records

BATCH_BYTES = 1 << 20
BATCHES = 60
"""One round sends so many through a server: a process's CPU is counted in steps of 10 ms."""
SHAPES = (
    (100, False, BATCH_BYTES),
    (100, True, BATCH_BYTES),
    (100, False, 16 << 10),
    (1024, False, BATCH_BYTES),
)
"""Bytes of values, whether they are mixed, and bytes of a batch."""
NOW = 1_790_000_000_000
LIMITS = BatchLimits(
    message_bytes_max=1 << 30,
    timestamp_before_max_ms=(1 << 63) - 1,
    timestamp_after_max_ms=(1 << 63) - 1,
    log_append_time=False,
    compacts=False,
)


def batch_of(
    value_bytes: int, codec: str, *, mixed: bool = False, batch_bytes: int = BATCH_BYTES
) -> tuple[memoryview, int]:
    """A batch, and how many records it has."""
    chance = random.Random(value_bytes)
    words = [chance.randbytes(chance.randint(2, 9)).hex().encode() for _ in range(500)]
    records = []
    for number in range(batch_bytes // value_bytes):
        size = chance.randint(value_bytes // 2, value_bytes * 3 // 2) if mixed else value_bytes
        value = b" ".join(chance.choices(words, k=size // 4 + 1))[:size]
        records.append(
            Record(offset_delta=number, timestamp=NOW + number, key=None, value=value, headers=())
        )
    return memoryview(encode_batch(records, codec=codec)), len(records)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of one call, of enough calls to be measured."""
    calls = 0
    started = time.process_time()
    while (spent := time.process_time() - started) < 0.05:
        work()
        calls += 1
    return spent / calls


def copy(batch: memoryview) -> None:
    """Read everything."""
    stream = open_stream(codec_of(batch), batch[HEADER_BYTES:])
    while stream.read(PIECE_BYTES):
        pass


def in_process(rounds: int) -> None:
    """The border's functions, in this process."""
    print("MB per CPU s of records, decompressed; and CPU of the look at records by a copy's")
    print("| records | codec | off | on | us a record | copy | look/copy |")
    print("|" + " --- |" * 2 + " ---: |" * 5)
    for value_bytes, mixed, batch_bytes in SHAPES:
        for codec in CODECS:
            batch, count = batch_of(value_bytes, codec, mixed=mixed, batch_bytes=batch_bytes)
            new = check_batch(batch, LIMITS, NOW)
            works: dict[str, Callable[[], object]] = {
                "off": lambda batch=batch: check_batch(batch, LIMITS, NOW),
                "look": lambda new=new: check_records(new, LIMITS, NOW),
                "copy": lambda batch=batch: copy(batch),
            }
            times: dict[str, list[float]] = {name: [] for name in works}
            for work in works.values():
                work()
            for _ in range(rounds):
                for name, work in works.items():
                    times[name].append(cpu_s(work))
            off, look, copied = (statistics.median(times[name]) for name in works)
            size = count * value_bytes / 1e6
            print(
                f"| {value_bytes} B{', mixed' * mixed} x {count:,} | {codec} | {size / off:,.0f} "
                f"| {size / (off + look):,.0f} | {look / count * 1e6:.2f} "
                f"| {size / copied:,.0f} | {look / copied:.1f} |",
                flush=True,
            )


def create(topic: str, validates: bool) -> bytes:
    """CreateTopics 2 of one topic."""
    configs = {
        "penstock.validate.records": str(validates).lower(),
        "max.message.bytes": str(4 * BATCH_BYTES),
    }
    body = struct.pack(">i", 1) + wire.string(topic) + struct.pack(">ihii", 1, 1, 0, len(configs))
    for name, value in configs.items():
        body += wire.string(name) + wire.string(value)
    return wire.request(19, 2, 1, body + struct.pack(">ib", 30_000, 0))


def as_version_7(message: bytes) -> bytes:
    """A Produce 3 as the version that zstd is taken from; their requests are alike."""
    return message[:6] + struct.pack(">h", 7) + message[8:]


def through_a_server(rounds: int) -> None:
    """The CPU of a server's process, on and off by turns."""
    contender = contenders()["penstock"]
    with (
        tempfile.TemporaryDirectory() as folder,
        Running(contender, Path(folder) / "data") as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        for topic, validates in (("on", True), ("off", False)):
            wire.ask(connection, create(topic, validates))
        print("\nCPU ms of the server for each MB of records, decompressed; 1 MiB a batch")
        print("| records | codec | off | on | on/off |\n| --- | --- | ---: | ---: | ---: |")
        for value_bytes, mixed, batch_bytes in SHAPES:
            for codec in CODECS:
                batch, count = batch_of(value_bytes, codec, mixed=mixed, batch_bytes=batch_bytes)
                batches = BATCHES * BATCH_BYTES // batch_bytes
                size = count * value_bytes / 1e6
                spent: dict[str, list[float]] = {"on": [], "off": []}
                for _ in range(rounds):
                    for topic, figures in spent.items():
                        message = as_version_7(wire.produce(topic, 0, bytes(batch)))
                        before = server.cpu_s()
                        for _ in range(batches):
                            answer = wire.ask(connection, message)
                            at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
                            assert struct.unpack_from(">h", answer, at) == (0,), answer
                        figures.append((server.cpu_s() - before) / batches / size * 1000)
                on, off = (statistics.median(spent[name]) for name in ("on", "off"))
                print(
                    f"| {value_bytes} B{', mixed' * mixed} x {count:,} | {codec} "
                    f"| {off:.2f} | {on:.2f} "
                    f"| {on / off:.1f} |",
                    flush=True,
                )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--server", action="store_true", help="through a server as well")
    arguments = parser.parse_args()
    in_process(arguments.rounds)
    if arguments.server:
        through_a_server(arguments.rounds)


if __name__ == "__main__":
    main()
