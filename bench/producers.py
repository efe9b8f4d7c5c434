"""Do memory and metadata stay bounded under a million producers that write one record each?

    python bench/producers.py [--count 1000000] [--expiration-s 20]  -> one JSON line

Each takes a producer id of its own and writes its first batch, as a job does that begins anew for
each of its records. The server forgets who was silent for `--expiration-s`
(`producer_id_expiration_ms`), and looks every 5 s. The state may hold as many producers as came in
that time and until the next look has ended, whatever their number in all: so the size of the
database and of the process in the last fifth of the run is given next to that in the second.
Compare two commits by running it in a checkout of each.
"""

from __future__ import annotations

import argparse
import json
import socket
import sqlite3
import statistics
import struct
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

import wire
from servers import Running, contenders

TOPIC = "jobs"
PARTITIONS = 12
AT_ONCE = 100
"""So many producers take their ids, then all of them write."""
PRODUCER_ID_AT = 4 + 4 + 4 + 2
ERROR_AT = 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4


@dataclass(frozen=True)
class Sample:
    """What the server holds at a moment."""

    done: int
    producers: int
    database_mb: float
    rss_mb: float


def write(port: int, count: int, done: list[int]) -> None:
    """Let so many producers come and go; `done[0]` is their number so far."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while done[0] < count:
            ids = [
                struct.unpack_from(">q", answer, PRODUCER_ID_AT)[0]
                for answer in answers(connection, [wire.init_producer_id()] * AT_ONCE)
            ]
            batches = [
                wire.produce(
                    TOPIC, number % PARTITIONS, wire.record_batch(b"x", producer_id=number)
                )
                for number in ids
            ]
            for answer in answers(connection, batches):
                error, offset = struct.unpack_from(">hq", answer, ERROR_AT)
                assert not error, f"produce: error {error}"
                assert offset >= 0, "no offset"
            assert len(set(ids)) == AT_ONCE, "two producers have one id"
            done[0] += AT_ONCE


def answers(connection: socket.socket, requests: list[bytes]) -> list[bytes]:
    """To each of the requests, which are sent at once, its whole frame."""
    connection.sendall(b"".join(requests))
    return wire.read_frames(connection, len(requests))


def sample(server: Running, done: int) -> Sample:
    """Look at the server's database, from beside it, and at its process."""
    database = next(server.data.rglob("metadata.sqlite"))
    size = sum(file.stat().st_size for file in database.parent.glob("metadata.sqlite*"))
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        ((producers,),) = connection.execute("SELECT count(*) FROM producers")
    finally:
        connection.close()
    return Sample(done, producers, size / 1e6, server.rss_mb())


def measure(count: int, expiration_s: float) -> dict[str, object]:
    """Run the load; medians of the second and the last fifth of it."""
    contender = contenders()["penstock"]
    environment = {
        **contender.environment,
        "PENSTOCK_PRODUCER_ID_EXPIRATION_MS": str(int(expiration_s * 1000)),
        "PENSTOCK_RETENTION_CHECK_MS": "5000",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        Running(replace(contender, environment=environment), Path(folder) / "data") as server,
    ):
        # What is retained is no question here.
        configs = {"retention.bytes": str(1 << 20), "segment.bytes": str(1 << 20)}
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=configs)])[TOPIC].result(30)
        del admin
        done = [0]
        started = time.monotonic()
        writer = threading.Thread(target=write, args=(server.port, count, done))
        writer.start()
        samples: list[Sample] = []
        while writer.is_alive():
            samples.append(sample(server, done[0]))
            if sys.stderr.isatty():
                print(f"\r{done[0]:,} of {count:,} producers", end="", file=sys.stderr)
            writer.join(0.2)
        seconds = time.monotonic() - started

        def fifth(number: int) -> dict[str, float]:
            part = [one for one in samples if number - 1 <= 5 * one.done / count <= number]
            return {
                name: round(statistics.median(getattr(one, name) for one in part), 1)
                for name in ("producers", "database_mb", "rss_mb")
            }

        return {
            "count": done[0],
            "seconds": round(seconds, 1),
            "expiration_s": expiration_s,
            "producers_peak": max(one.producers for one in samples),
            "database_mb_peak": round(max(one.database_mb for one in samples), 1),
            "rss_mb_peak": round(max(one.rss_mb for one in samples), 1),
            "second_fifth": fifth(2),
            "last_fifth": fifth(5),
            "ok": done[0] >= count,
        }


def main() -> None:
    """One JSON line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--expiration-s", type=float, default=20.0)
    options = parser.parse_args()
    print(json.dumps(measure(options.count, options.expiration_s)))


if __name__ == "__main__":
    main()
