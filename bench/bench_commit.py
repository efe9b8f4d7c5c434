"""What does one durable commit cost? Wall and CPU time of `Order.append`.

A report, not a test. Compare two commits of this repository by running it at both, on the same
machine and volume, and reading the medians:

    PYTHONPATH=src python bench/bench_commit.py [--directory DIR] [--producers 1000000]

The floor of this disk, 4 KiB written and fdatasynced without a pause, is measured before and after
the commits: a shared disk is another disk a minute later.

Aims: one run below 0.3 ms wall at the median and 90 us of CPU; 1,600 runs over 640 partitions
below 10 ms; producers expire in entries of bounded time.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fsync_floor import measure
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.state.commands import (
    AnyCommand,
    CommitOffsets,
    CommitRuns,
    CreateTopic,
    ExpireProducers,
    MovedRun,
    OffsetWrite,
    RunCommit,
    StoreSegment,
)
from penstock.state.orders import LocalJournal, open_local_journal
from penstock.state.read.queries import Queries

TOPIC_ID = b"bench-topic-id-1"
PARTITIONS = 640
BATCH_BYTES = 4096


class SystemClock:
    """The real clock."""

    def now_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return time.monotonic()


class SystemRandom:
    """The real randomness."""

    def token_bytes(self, count: int) -> bytes:
        """See `Random`."""
        return os.urandom(count)

    def below(self, bound: int) -> int:
        """See `Random`."""
        return int.from_bytes(os.urandom(8)) % bound


def keys() -> list[PartitionKey]:
    """The topic's partitions."""
    return [partition_key(TopicKey(1), number) for number in range(PARTITIONS)]


def report_floor(directory: Path) -> None:
    """What no durable commit can be below."""
    floor = measure(directory, 1000, pause_s=0)
    p50_us, p99_us = floor["p50_ms"] * 1000, floor["p99_ms"] * 1000
    print(f"{'floor: 4 KiB and fdatasync':<44} p50 {p50_us:>9.0f} us   p99 {p99_us:>9.0f} us")


def report(
    name: str, rounds: int, make: Callable[[int], list[AnyCommand]], order: LocalJournal
) -> None:
    """Append `rounds` times; print wall percentiles and CPU per append."""
    walls: list[float] = []
    cpu_s = 0.0
    for index in range(rounds):
        commands = make(index)
        if order.checkpoint_due:
            order.checkpoint()
        cpu_before_s = time.thread_time()
        started_s = time.perf_counter()
        order.append(commands)
        walls.append((time.perf_counter() - started_s) * 1e6)
        cpu_s += time.thread_time() - cpu_before_s
    walls.sort()
    p99_us = walls[int(rounds * 0.99)]
    print(
        f"{name:<44} p50 {statistics.median(walls):>9.0f} us   p99 {p99_us:>9.0f} us"
        f"   CPU {cpu_s / rounds * 1e6:>8.0f} us"
    )


def producers_expire(order: LocalJournal, queries: Queries, count: int) -> None:
    """Many producers that each wrote once: how long do entries take that forget them?"""
    per_entry = 1_000
    started_s = time.perf_counter()
    position = 0
    for first in range(0, count, per_entry):
        runs = [
            RunCommit(
                partition_key=partition_key(TopicKey(1), (first + index) % PARTITIONS),
                position=position + index * BATCH_BYTES,
                batches=[BATCH_BYTES, 1, 1, 1_000_000 + first + index, 0, 0],
            )
            for index in range(per_entry)
        ]
        position += per_entry * BATCH_BYTES
        order.append([CommitRuns(runs=runs, wal=5)])
    written_s = time.perf_counter() - started_s
    size_bytes = _size(order, queries)
    walls: list[float] = []
    after = (-1, -1)
    while page := queries.producers_page(after, limit=per_entry):
        after = (page[-1][0], page[-1][1])
        items = [value for row in page for value in row]
        started_s = time.perf_counter()
        order.append([ExpireProducers(items=items)])
        walls.append((time.perf_counter() - started_s) * 1e3)
    walls.sort()
    print(
        f"{count} producers: written in {written_s:.1f} s, file {size_bytes >> 20} MiB;"
        f" {len(walls)} entries forget them, p50 {statistics.median(walls):.1f} ms,"
        f" max {walls[-1]:.1f} ms"
    )


def _size(order: LocalJournal, queries: Queries) -> int:
    order.checkpoint()
    return Path(queries.path).stat().st_size


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--directory", type=Path, help="on the volume to measure")
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--producers", type=int, default=100_000)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        path = directory / "metadata.sqlite"
        order = open_local_journal(path, clock=SystemClock(), random=SystemRandom())
        queries = Queries(path)
        order.append([CreateTopic(name="bench", topic_id=TOPIC_ID, partitions=PARTITIONS)])
        partitions = keys()

        def one_run(index: int) -> list[AnyCommand]:
            run = RunCommit(
                partition_key=partitions[index % 12],
                position=index * BATCH_BYTES,
                batches=[BATCH_BYTES, 10, 1_700_000_000_000, -1, -1, -1],
            )
            return [CommitRuns(runs=[run], wal=1)]

        def one_idempotent_run(index: int) -> list[AnyCommand]:
            run = RunCommit(
                partition_key=partitions[12],
                position=index * BATCH_BYTES,
                batches=[BATCH_BYTES, 10, 1_700_000_000_000, 7, 0, index * 10],
            )
            return [CommitRuns(runs=[run], wal=2)]

        def many_runs(index: int, *, producer: int) -> list[AnyCommand]:
            runs = [
                RunCommit(
                    partition_key=partitions[number % PARTITIONS],
                    position=(index * 1600 + number) * BATCH_BYTES,
                    batches=[
                        BATCH_BYTES,
                        10,
                        1_700_000_000_000,
                        producer + number // PARTITIONS if producer >= 0 else -1,
                        0,
                        index * 10,
                    ],
                )
                for number in range(1600)
            ]
            return [CommitRuns(runs=runs, wal=3)]

        def offsets(index: int) -> list[AnyCommand]:
            write = OffsetWrite(topic_id=TOPIC_ID, partition=index % 12, offset=index)
            return [CommitOffsets(group_id="group", offsets=[write])]

        rounds = arguments.rounds
        report_floor(directory)
        report("one run", rounds, one_run, order)
        report("one run of an idempotent producer", rounds, one_idempotent_run, order)
        report("one group offset", rounds, offsets, order)
        report("1,600 runs, 640 partitions", 30, lambda i: many_runs(i, producer=-1), order)
        report(
            "1,600 runs, 640 partitions, idempotent",
            30,
            lambda i: many_runs(i, producer=100),
            order,
        )
        report_floor(directory)

        waiting = iter(
            [
                MovedRun(
                    partition_key=key,
                    position=16,
                    runs=[
                        value
                        for run in queries.runs_from(key, 0, limit=100_000)
                        for value in (run.base_offset, run.generation, run.position, run.length)
                    ],
                )
                for key in partitions[:12]
            ]
        )

        def segment(index: int) -> list[AnyCommand]:
            return [StoreSegment(object_key=f"key-{index}", object_bytes=1, runs=[next(waiting)])]

        report(f"a segment of about {rounds // 12} runs", 12, segment, order)
        producers_expire(order, queries, arguments.producers)
        queries.close()
        order.close()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
