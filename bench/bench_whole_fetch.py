"""Measure which part of a whole fetch's CPU the checks of stored batches take.

This is a report, not a test. Two servers run on copies of one data directory, one of which takes
all bytes for checked or is another checkout's (`--other PATH`, for example of the release that
checked nothing):

    PYTHONPATH=src:tests python bench/bench_whole_fetch.py [--mb 48] [--rounds 8] [--other PATH]

A consumer on a plain socket reads all of one partition by fetches of 1 MiB, which are sent from the
segment's file. The first pass, which checks, isn't counted. Rounds of both take turns; the figures
are medians of the server process's CPU time (user and system, all threads), so that other work on
the machine hardly counts. Aim: a second read costs less than 3 % of a whole fetch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import wire
from servers import free_ports

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "t"
UNCHECKED = (
    "import sys; from penstock.log.fetch.checked import CheckedRanges;"
    " CheckedRanges.end_of = lambda *_: 1 << 62;"
    " from penstock.cli.main import main; sys.exit(main())"
)
SHIPPED = "import sys; from penstock.cli.main import main; sys.exit(main())"
IN_FLIGHT = 50
PASSES = 5
"""One round makes so many."""


class Server:
    """One server process on a data directory."""

    def __init__(self, data: Path, source: Path, program: str) -> None:
        self.port = free_ports()
        self.process = subprocess.Popen(
            [
                sys.executable, "-c", program, "serve", "--data", str(data),
                "--kafka", f"127.0.0.1:{self.port}", "--http", f"127.0.0.1:{self.port + 1}",
            ],
            env={**os.environ, "PYTHONPATH": str(source / "src")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(200):
            try:
                self.connection = socket.create_connection(("127.0.0.1", self.port))
                break
            except OSError:
                time.sleep(0.1)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def stop(self) -> None:
        """Drain, so that all lies in segments."""
        self.connection.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)

    def cpu_s(self) -> float:
        """User and system time of all threads so far, to the nanosecond (Linux)."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def read_all(self, end: int) -> int:
        """Fetch the partition from its first to its last record; how many fetches that took."""
        offset = count = 0
        while offset < end:
            found = last_offset(self.ask(wire.fetch(TOPIC, 0, offset)))
            assert found > offset
            offset = found
            count += 1
        return count

    def ask(self, message: bytes) -> bytes:
        """Send a request; its answer."""
        return wire.ask(self.connection, message)


def last_offset(answer: bytes) -> int:
    """The offset after the last whole batch of a fetch's answer."""
    # Length, correlation id, throttle, topics, name, partitions, partition, error, high watermark,
    # last stable offset, aborted transactions.
    at = 4 + 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 4
    length = int.from_bytes(answer[at : at + 4], "big")
    at += 4
    end, following = at + length, 0
    while end - at >= 61:
        size = 12 + int.from_bytes(answer[at + 8 : at + 12], "big")
        if at + size > end:
            break
        base = int.from_bytes(answer[at : at + 8], "big")
        following = base + 1 + int.from_bytes(answer[at + 23 : at + 27], "big")
        at += size
    return following


def fill(data: Path, value_bytes: int, total: int) -> int:
    """Store batches of one record; how many."""
    server = Server(data, ROOT, SHIPPED)
    batch = wire.record_batch(bytes(value_bytes))
    server.ask(wire.metadata(TOPIC))
    time.sleep(0.5)
    count = total // len(batch)
    for first in range(0, count, IN_FLIGHT):
        sent = range(first, min(count, first + IN_FLIGHT))
        server.connection.sendall(b"".join(wire.produce(TOPIC, 0, batch, one) for one in sent))
        wire.read_frames(server.connection, len(sent))
    server.stop()
    return count


def main() -> None:
    """One line per size of batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--other", type=Path)
    options = parser.parse_args()
    for value_bytes in (1_000, 8_000):
        with tempfile.TemporaryDirectory() as folder:
            one, two = Path(folder) / "one", Path(folder) / "two"
            end = fill(one, value_bytes, options.mb << 20)
            shutil.copytree(one, two)
            other = options.other or ROOT
            program = SHIPPED if options.other else UNCHECKED
            servers = [Server(one, ROOT, SHIPPED), Server(two, other, program)]
            spent: list[list[float]] = [[], []]
            for turn in range(options.rounds + 1):
                for server, found in zip(servers, spent, strict=True):
                    began_s = server.cpu_s()
                    fetches = sum(server.read_all(end) for _ in range(PASSES))
                    if turn:
                        found.append((server.cpu_s() - began_s) / fetches)
            for server in servers:
                server.stop()
            checked, unchecked = map(statistics.median, spent)
            print(
                f"batches of {value_bytes:,} B: {1e6 * checked:,.0f} us of CPU a fetch of 1 MiB,"
                f" {1e6 * unchecked:,.0f} without ({checked / unchecked - 1:+.1%})",
                flush=True,
            )


if __name__ == "__main__":
    main()
