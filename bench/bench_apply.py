"""How many runs does a follower apply per CPU second, by the number of partitions?

    PYTHONPATH=src python bench/bench_apply.py [--partitions 10000,100000] [--rounds 300]

Each entry is one object of RUNS runs of one batch, each of another partition, as flushes of a
cluster with many partitions are; the entries go over all partitions in turn. A follower commits
after each page of entries, without a sync. The aim is 100,000 runs per CPU second, also at 100,000
partitions. Prints us of CPU per run as well (for applying, for commits, for checkpoints), and pages
written to SQLite's WAL per run. To compare two commits run the same command in both; to compare
layouts of the state, bench_layout.py.
"""

import argparse
import random
import sqlite3
import struct
import tempfile
import time
from contextlib import closing
from pathlib import Path

from penstock.model.ids import PARTITION_BITS
from penstock.replica.replica import Replica
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import (
    AnyCommand,
    CommitRuns,
    CreateTopic,
    RegisterAgent,
    RunCommit,
    SetFeatureLevel,
)
from penstock.state.entries import Entry, encode_entry
from penstock.state.schema import FEATURE_LEVEL_MAX

RUNS = 1_600
ENTRIES_PER_COMMIT = 4
TOPIC_PARTITIONS = 1_000
NOW = 1_790_000_000_000


def main() -> None:
    """Print one line per number of partitions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", default="10000,100000")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--stored", type=int, default=100, help="runs per partition before")
    parser.add_argument("--warm", type=int, default=100, help="entries before measuring")
    arguments = parser.parse_args()
    for partitions in map(int, arguments.partitions.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            measure(
                Path(folder),
                partitions,
                rounds=arguments.rounds,
                warm=arguments.warm,
                stored=arguments.stored,
            )


def measure(folder: Path, partitions: int, *, rounds: int, warm: int, stored: int) -> None:
    """Apply entries to a new replica that holds `stored` runs per partition."""
    replica = Replica.open(folder / "r.sqlite", LogMachine(), fsync=False, keeps_journal=False)
    n = 0

    def apply(*commands: AnyCommand) -> None:
        nonlocal n
        entry = Entry(agent=1, epoch=1, n=n, stamp_ms=NOW, commands=list(commands))
        replica.apply(encode_entry(entry), stamp_ms=NOW, position=n + 1)
        n += 1

    apply(RegisterAgent(agent=1, level_max=FEATURE_LEVEL_MAX))
    apply(SetFeatureLevel(level=FEATURE_LEVEL_MAX))
    topics = partitions // TOPIC_PARTITIONS
    for number in range(topics):
        apply(
            CreateTopic(
                name=f"t{number}",
                topic_id=number.to_bytes(16, "big"),
                partitions=TOPIC_PARTITIONS,
            )
        )
    replica.commit()
    replica.close()
    store(folder / "r.sqlite", stored)
    replica = Replica.open(folder / "r.sqlite", LogMachine(), fsync=False, keeps_journal=False)
    keys = [t + 1 << PARTITION_BITS | p for t in range(topics) for p in range(TOPIC_PARTITIONS)]
    random.Random(7).shuffle(keys)
    bodies = []
    for index in range(warm + rounds):
        at = index * RUNS % partitions
        chosen = sorted((keys[at : at + RUNS] + keys[: max(0, at + RUNS - partitions)])[:RUNS])
        runs = [
            RunCommit(
                partition_key=key,
                position=16 + 4_097 * number,
                batches=[4_096, 10, NOW, -1, -1, -1],
                crcs=number.to_bytes(4, "big"),
            )
            for number, key in enumerate(chosen)
        ]
        command = CommitRuns(runs=runs, object_key=f"segments/{index:016x}", object_bytes=1 << 23)
        bodies.append(
            encode_entry(Entry(agent=1, epoch=1, n=n + index, stamp_ms=NOW, commands=[command]))
        )
    parts = [0.0, 0.0, 0.0]
    pages = 0
    for index, body in enumerate(bodies):
        if index == warm:
            parts, pages = [0.0, 0.0, 0.0], 0
        times = [time.process_time()]
        replica.apply(body, stamp_ms=NOW, position=n + index + 1)
        times.append(time.process_time())
        if index % ENTRIES_PER_COMMIT == 0:
            before = log_pages(replica.path)
            replica.commit()
            after = log_pages(replica.path)
            # There are fewer than before where SQLite began its WAL again.
            pages += after - before if after >= before else after
        times.append(time.process_time())
        if index % ENTRIES_PER_COMMIT == 0 and replica.checkpoint_due:
            replica.checkpoint()
        times.append(time.process_time())
        parts = [
            part + end - start for part, start, end in zip(parts, times, times[1:], strict=False)
        ]
    replica.commit()
    replica.close()
    runs = rounds * RUNS
    each = " + ".join(f"{1e6 * part / runs:.1f}" for part in parts)
    print(
        f"{partitions:>8,} partitions  {runs / sum(parts):>9,.0f} runs per CPU s"
        f"  ({each} us a run, {pages / runs:.2f} pages)",
        flush=True,
    )


def log_pages(path: Path) -> int:
    """Pages in SQLite's WAL since SQLite last began it again: `mxFrame` of the WAL index
    (sqlite.org/walformat.html)."""
    with path.with_name(f"{path.name}-shm").open("rb") as file:
        return int(struct.unpack_from("=I", file.read(20), 16)[0])


def store(path: Path, each: int) -> None:
    """Give each partition runs of ten records, by SQL."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO objects (key, bytes, live_runs) VALUES ('old', 1, 1)")
        connection.execute(
            "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers"
            " WHERE n + 1 < :each) INSERT INTO object_runs SELECT partition_key, n * 10,"
            " n * 10 + 10, 1, 16 + n * 4096, 4096, 1790000000000, 1,"
            " random() & 9223372036854775807 FROM partitions CROSS JOIN numbers"
            " ORDER BY partition_key, n",
            {"each": each},
        )
        connection.execute("UPDATE partitions SET next_offset = ?", (each * 10,))
        connection.execute("COMMIT")


if __name__ == "__main__":
    main()
