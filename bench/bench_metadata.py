"""How does the metadata database do with 50,000 partitions and 10 million runs?

A report, not a test. The state is made by SQL, as long appending would take hours:

    PYTHONPATH=src python bench/bench_metadata.py [--directory DIR] [--runs 10000000]

Aims: a commit of 1,600 runs over 640 partitions below 10 ms at the median with fsync, and the
same with ten million runs in the state as with none; 100,000 runs/s applied for a minute; a start
from a snapshot of ten million runs below 10 s.
"""

import argparse
import asyncio
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench_commit import SystemClock, SystemRandom
from penstock.model.ids import PARTITION_BITS
from penstock.objects import open_store
from penstock.replica.archive import Archive
from penstock.replica.bootstrap import bootstrap
from penstock.replica.snapshot import verify_snapshot
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import CommitRuns, CreateTopic, RunCommit
from penstock.state.orders import LocalJournal, open_local_journal
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView

PARTITIONS = 50_000
TOPICS = 50
RUNS_PER_OBJECT = 1_600
COMMIT_PARTITIONS = 640
COMMIT_RUNS = 1_600
BATCH_BYTES = 4096


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print wall and CPU seconds of a block."""
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    yield
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(f"{name:<58} {wall_s:8.2f} s wall {cpu_s:8.2f} s CPU", flush=True)


def open_order(path: Path, *, fsync: bool = True) -> LocalJournal:
    """The database's order."""
    return open_local_journal(path, clock=SystemClock(), random=SystemRandom(), fsync=fsync)


def make_state(path: Path, runs: int) -> None:
    """Topics by commands, the rest by SQL: `runs` object runs of one batch and ten records."""
    order = open_order(path, fsync=False)
    for number in range(TOPICS):
        order.append(
            [
                CreateTopic(
                    name=f"topic-{number}",
                    topic_id=number.to_bytes(16, "big"),
                    partitions=PARTITIONS // TOPICS,
                )
            ]
        )
    order.close()
    each = runs // PARTITIONS
    if not each:
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        execute = connection.execute
        execute("PRAGMA synchronous = OFF")
        execute("BEGIN")
        objects = -(-runs // RUNS_PER_OBJECT)
        execute(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers"
            " WHERE n < ?) INSERT INTO objects (object_id, key, bytes, live_runs)"
            " SELECT n, printf('segments/%016x', n), ?, ? FROM numbers",
            (objects, RUNS_PER_OBJECT * BATCH_BYTES, RUNS_PER_OBJECT),
        )
        # Time goes by partition after partition in each object, as flushes do.
        execute(
            "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers"
            " WHERE n + 1 < :each) INSERT INTO object_runs SELECT partition_key, n * 10,"
            " n * 10 + 10, 1 + (n * :objects) / :each, 16 + (partition_key % 1600) * 4096, 4096,"
            " 1790000000000 + n, 1, random() & 9223372036854775807"
            " FROM partitions CROSS JOIN numbers"
            " ORDER BY partition_key, n",
            {"each": each, "objects": objects},
        )
        execute("UPDATE partitions SET next_offset = ?, bytes = ?", (each * 10, each * BATCH_BYTES))
        execute("COMMIT")
        execute("PRAGMA wal_checkpoint(TRUNCATE)")


def commit(index: int, *, runs: int, partitions: int, key: str) -> CommitRuns:
    """One flush: `runs` runs that no two of one partition are adjacent in."""
    per_topic = PARTITIONS // TOPICS
    found = []
    for number in range(runs):
        place = (index * 7919 + number % partitions) % PARTITIONS
        topic, partition = divmod(place, per_topic)
        found.append(
            RunCommit(
                partition_key=(topic + 1) << PARTITION_BITS | partition,
                position=16 + number * (BATCH_BYTES + 1),
                batches=[BATCH_BYTES, 10, 1_790_000_000_000 + index, -1, -1, -1],
                crcs=(number * 2_654_435_761 % (1 << 32)).to_bytes(4, "big"),
            )
        )
    found.sort(key=lambda run: run.partition_key)
    return CommitRuns(runs=found, object_key=f"{key}/{index:016x}", object_bytes=1 << 23)


def measure_commits(order: LocalJournal, name: str, *, rounds: int, seconds: float = 0.0) -> None:
    """Median and tail of commits, and runs/s of all of it, checkpoints included.

    CPU is the appending thread's: what an idle machine's wall time comes near to."""
    walls: list[float] = []
    cpus: list[float] = []
    checkpoint_s = 0.0
    while len(walls) < rounds or sum(walls) + checkpoint_s < seconds:
        command = commit(len(walls), runs=COMMIT_RUNS, partitions=COMMIT_PARTITIONS, key=name)
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        order.append([command])
        walls.append(time.perf_counter() - wall_s)
        cpus.append(time.thread_time() - cpu_s)
        if order.checkpoint_due:
            wall_s = time.perf_counter()
            order.checkpoint()
            checkpoint_s += time.perf_counter() - wall_s
    ordered = sorted(walls)
    runs = len(walls) * COMMIT_RUNS
    print(
        f"{name:<34} median {statistics.median(walls) * 1e3:6.2f} ms wall"
        f" {statistics.median(cpus) * 1e3:6.2f} ms CPU  p99"
        f" {ordered[int(len(ordered) * 0.99)] * 1e3:6.2f} ms"
        f" {runs / (sum(walls) + checkpoint_s):9,.0f} runs/s {runs / sum(cpus):9,.0f} runs/CPU s",
        flush=True,
    )


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--runs", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of sustained commits")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        for runs in (0, arguments.runs):
            path = directory / f"{runs}.sqlite"
            with timed(f"make {runs:,} runs"):
                make_state(path, runs)
            print(f"  {path.stat().st_size >> 20} MiB")
            order = open_order(path)
            measure_commits(order, f"{runs:,} runs: commits", rounds=200)
            measure_commits(order, f"{runs:,} sustained", rounds=0, seconds=arguments.seconds)
            order.close()
        with timed("open"):
            order = open_order(path)
        with timed("snapshot"):
            info = order.snapshot(directory / "snapshot")
        print(f"  {(directory / 'snapshot').stat().st_size >> 20} MiB")
        order.close()
        with timed("verify a snapshot"):
            verify_snapshot(directory / "snapshot")
        archive = Archive(
            open_store(str(directory / "bucket")),
            cluster_id="",
            scratch=directory / "scratch",
            executor=None,
        )
        with timed("put it into the archive"):
            asyncio.run(archive.put_snapshot(directory / "snapshot", info))
        with timed("start from a snapshot in the archive, a directory"):
            with timed("  fetch, compare the checksum, unpack, restore"):
                made = asyncio.run(
                    bootstrap(archive, directory / "restored", LogMachine, executor=None)
                )
                assert made is not None
            with timed("  open"):
                order = open_order(directory / "restored")
            with timed("  load the view"), closing(Queries(directory / "restored")) as queries:
                view = StateView.load(queries)
        assert len(list(view.topics())) == TOPICS
        order.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
