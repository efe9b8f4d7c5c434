"""Measure what a run costs in SQLite, by how the state lays runs out.

    PYTHONPATH=src python bench/bench_layout.py [--partitions 10000,100000] [--layouts rows,packed]

Each layout takes runs as bench_apply.py makes them: transactions of four objects with 1,600 runs,
the partitions in turn, a checkpoint after twelve transactions. Nothing is decoded or judged: what
is measured comes on top of that. Prints us of CPU per run (for writing rows, for COMMIT, for
checkpoints), pages written to SQLite's WAL per run, and us per look-up of the run that holds an
offset: of a partition's newest run, and of any run.

    rows     a row per run by (partition, offset): what the state has
    tree     the same, and new runs first in a tree of their own, folded by partition in turn
    chain    new runs in the journal's order, a row each; a partition's head names its newest run,
             and each run the one before; 16 of them are folded into rows at once
    packed   the same in blobs of 64 runs, folded from memory into one row of 16 runs
    columns  the same by arrays in place of rows, from heads that lie packed, 100 in a row; here
             the sums of the runs are calculated, too

docs/decisions/0016-*.md says what came of it.
"""

import argparse
import random
import sqlite3
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench_apply import log_pages
from penstock.replica.statements import insert_rows

OBJECT_RUNS: Final = 1_600
OBJECTS_PER_COMMIT: Final = 4
COMMITS_PER_CHECKPOINT: Final = 12
STORED: Final = 96
"""Runs per partition at the start."""
RECORDS: Final = 10
FOLDED: Final = 16
BLOB_RUNS: Final = 64
TREE_ROWS: Final = 400_000
TREE_STEP: Final = 5_000
NOW: Final = 1_790_000_000_000

RUN: Final = (
    "partition_key INTEGER NOT NULL, base_offset INTEGER NOT NULL, end_offset INTEGER NOT NULL,"
    " object_id INTEGER NOT NULL, position INTEGER NOT NULL, length INTEGER NOT NULL,"
    " max_timestamp INTEGER NOT NULL, batch_count INTEGER NOT NULL, sum INTEGER"
)
BY_OFFSET: Final = ", PRIMARY KEY (partition_key, base_offset)) STRICT, WITHOUT ROWID"
HEAD: Final = (
    "ON CONFLICT (partition_key) DO UPDATE SET log_start = excluded.log_start,"
    " next_offset = excluded.next_offset, bytes = excluded.bytes, last_run = excluded.last_run,"
    " fresh_offset = excluded.fresh_offset"
)
HEADS: Final = 100
HOLDS: Final = (
    "SELECT * FROM {table} WHERE partition_key = :key AND base_offset <= :offset"
    " ORDER BY base_offset DESC LIMIT 1"
)
Row = tuple[int, ...]


class Rows:
    """A row per run, by partition and offset."""

    def __init__(self, connection: sqlite3.Connection, keys: Sequence[int]) -> None:
        self.execute = connection.execute
        self.last_runs = dict.fromkeys(keys, 0)
        self.fresh_offsets = dict.fromkeys(keys, STORED * RECORDS)
        self.execute(f"CREATE TABLE runs ({RUN}{BY_OFFSET}")
        self.execute(
            "CREATE TABLE partitions (partition_key INTEGER PRIMARY KEY,"
            " log_start INTEGER NOT NULL, next_offset INTEGER NOT NULL, bytes INTEGER NOT NULL,"
            " last_run INTEGER NOT NULL, fresh_offset INTEGER NOT NULL) STRICT"
        )
        connection.executemany(
            "INSERT INTO partitions VALUES (?, 0, ?, ?, 0, ?)",
            ((key, STORED * RECORDS, STORED * 4096, STORED * RECORDS) for key in keys),
        )
        self.create(connection, keys)

    def create(self, connection: sqlite3.Connection, keys: Sequence[int]) -> None:
        """Store runs."""
        number = random.Random(1).getrandbits(62)
        connection.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, 1, ?, 4096, ?, 1, ?)",
            (
                (key, n * RECORDS, (n + 1) * RECORDS, 16 + n * 4096, NOW, number + n)
                for key in keys
                for n in range(STORED)
            ),
        )

    def prepare(self, rows: list[Row]) -> list[Any]:
        """The runs as `write` takes them; not measured."""
        return rows

    def write(self, rows: list[Any]) -> None:
        """Write new runs."""
        insert_rows(self.execute, "INSERT INTO runs", rows)

    def write_heads(self, rows: list[Any]) -> None:
        """Write the heads of the partitions that have new runs."""
        last, fresh = self.last_runs, self.fresh_offsets
        heads = [(row[0], 0, row[2], 4096 * row[2], last[row[0]], fresh[row[0]]) for row in rows]
        insert_rows(self.execute, "INSERT INTO partitions", sorted(heads), tail=HEAD)

    def find(self, key: int, offset: int) -> tuple[int, int]:
        """Base and end offset of the run that holds an offset."""
        row = self.execute(HOLDS.format(table="runs"), {"key": key, "offset": offset}).fetchone()
        return row[1], row[2]

    def warm_count(self, partitions: int) -> int:
        """How many runs to write until each further one costs the same."""
        return 2 * partitions


class Tree(Rows):
    """New runs in a smaller tree."""

    count = 0
    cursor = 0

    def create(self, connection: sqlite3.Connection, keys: Sequence[int]) -> None:
        super().create(connection, keys)
        self.execute(f"CREATE TABLE fresh ({RUN}{BY_OFFSET}")

    def write(self, rows: list[Any]) -> None:
        insert_rows(self.execute, "INSERT INTO fresh", sorted(rows))
        self.count += len(rows)
        while self.count > TREE_ROWS:
            bound = self.execute(
                "SELECT partition_key FROM fresh WHERE partition_key >= ? ORDER BY 1"
                f" LIMIT 1 OFFSET {TREE_STEP}",
                (self.cursor,),
            ).fetchone()
            end = bound[0] if bound else 1 << 62
            where = "FROM fresh WHERE partition_key >= ? AND partition_key < ?"
            span = (self.cursor, end)
            self.execute(f"INSERT INTO runs SELECT * {where}", span)
            self.count -= self.execute(f"DELETE {where}", span).rowcount
            self.cursor = bound[0] if bound else 0

    def find(self, key: int, offset: int) -> tuple[int, int]:
        row = self.execute(
            f"SELECT * FROM ({HOLDS.format(table='fresh')})"
            f" UNION ALL SELECT * FROM ({HOLDS.format(table='runs')}) ORDER BY 2 DESC LIMIT 1",
            {"key": key, "offset": offset},
        ).fetchone()
        return row[1], row[2]

    def warm_count(self, partitions: int) -> int:
        return max(partitions, 3 * TREE_ROWS)


class Chain(Rows):
    """New runs in the journal's order, a row each."""

    def create(self, connection: sqlite3.Connection, keys: Sequence[int]) -> None:
        super().create(connection, keys)
        self.execute(f"CREATE TABLE fresh (run INTEGER PRIMARY KEY, {RUN}, before INTEGER) STRICT")
        self.next_run = 1
        self.kept = FOLDED * len(keys)
        # Each partition is folded at another time.
        spread = random.Random(2)
        self.lengths = {key: spread.randrange(FOLDED) for key in keys}

    def write(self, rows: list[Any]) -> None:
        last, lengths = self.last_runs, self.lengths
        fresh, due = [], []
        for run, row in enumerate(rows, start=self.next_run):
            key = row[0]
            fresh.append((run, *row, last[key]))
            last[key] = run
            lengths[key] += 1
            if lengths[key] == FOLDED:
                due.append(run)
                last[key] = lengths[key] = 0
                self.fresh_offsets[key] = row[2]
        self.next_run += len(rows)
        insert_rows(self.execute, "INSERT INTO fresh", fresh)
        self.execute(
            "INSERT INTO runs WITH RECURSIVE chain (run) AS (SELECT value FROM json_each(?)"
            " UNION ALL SELECT before FROM chain CROSS JOIN fresh USING (run) WHERE before > 0)"
            " SELECT partition_key, base_offset, end_offset, object_id, position, length,"
            " max_timestamp, batch_count, sum FROM chain CROSS JOIN fresh USING (run)"
            " ORDER BY 1, 2",
            (str(due),),
        )
        # Nearly all of them are folded; the few of idle partitions would be, first.
        self.execute("DELETE FROM fresh WHERE run < ?", (self.next_run - self.kept,))

    def find(self, key: int, offset: int) -> tuple[int, int]:
        row = self.execute(
            "WITH RECURSIVE chain (base, ending, before) AS (SELECT base_offset, end_offset, before"
            " FROM partitions AS p CROSS JOIN fresh ON run = last_run WHERE p.partition_key = :key"
            " AND fresh_offset <= :offset"
            " UNION ALL SELECT base_offset, end_offset, fresh.before FROM chain CROSS JOIN fresh"
            " ON run = chain.before WHERE base > :offset)"
            " SELECT base, ending FROM chain WHERE base <= :offset UNION ALL SELECT * FROM ("
            "SELECT base_offset, end_offset FROM runs WHERE partition_key = :key"
            " AND base_offset <= :offset ORDER BY base_offset DESC LIMIT 1)"
            " ORDER BY 1 DESC LIMIT 1",
            {"key": key, "offset": offset},
        ).fetchone()
        return row[0], row[1]

    def warm_count(self, partitions: int) -> int:
        return (FOLDED + 1) * partitions


class Packed(Rows):
    """New runs in the journal's order, 64 in a blob; folded ones 16 in a row."""

    record = struct.Struct("<qIIIIIqQI")
    """Base offset, records, object, position, length, batches, time, sum, run before."""

    def create(self, connection: sqlite3.Connection, keys: Sequence[int]) -> None:
        self.execute("DROP TABLE runs")
        self.execute(
            "CREATE TABLE runs (partition_key INTEGER NOT NULL, base_offset INTEGER NOT NULL,"
            f" runs BLOB NOT NULL{BY_OFFSET}"
        )
        self.execute("CREATE TABLE fresh (first INTEGER PRIMARY KEY, runs BLOB NOT NULL) STRICT")
        stored = [
            self.record.pack(n * RECORDS, RECORDS, 1, n, 4096, 1, NOW, n, 0) for n in range(STORED)
        ]
        chunks = [
            (at * RECORDS, b"".join(stored[at : at + FOLDED])) for at in range(0, STORED, FOLDED)
        ]
        connection.executemany(
            "INSERT INTO runs VALUES (?, ?, ?)", ((key, *row) for key in keys for row in chunks)
        )
        self.next_run = 1
        self.kept = FOLDED * len(keys)
        spread = random.Random(2)
        # What is due at the first fold of each partition, as if so many runs had been there.
        self.firsts = {key: spread.randrange(FOLDED) for key in keys}
        self.pending = {key: bytearray() for key in keys}

    def write(self, rows: list[Any]) -> None:
        last, pending, pack = self.last_runs, self.pending, self.record.pack
        full = FOLDED * self.record.size
        firsts = self.firsts
        packed, folded = [], []
        for run, row in enumerate(rows, start=self.next_run):
            key, base, end, object_id, position, length, newest, batches, number = row
            record = pack(
                base, end - base, object_id, position, length, batches, newest, number, last[key]
            )
            packed.append(record)
            held = pending[key]
            held += record
            if len(held) >= full - firsts[key] * self.record.size:
                folded.append((key, self.record.unpack_from(held)[0], bytes(held)))
                held.clear()
                last[key] = firsts[key] = 0
                self.fresh_offsets[key] = end
            else:
                last[key] = run
        fresh = [
            (self.next_run + at, b"".join(packed[at : at + BLOB_RUNS]))
            for at in range(0, len(packed), BLOB_RUNS)
        ]
        self.next_run += len(rows)
        insert_rows(self.execute, "INSERT INTO fresh", fresh)
        insert_rows(self.execute, "INSERT INTO runs", sorted(folded))
        self.execute("DELETE FROM fresh WHERE first < ?", (self.next_run - self.kept,))

    def find(self, key: int, offset: int) -> tuple[int, int]:
        run, fresh_offset = self.execute(
            "SELECT last_run, fresh_offset FROM partitions WHERE partition_key = ?", (key,)
        ).fetchone()
        found = self.in_chain(run, offset) if offset >= fresh_offset else None
        return found or self.folded(key, offset)

    def in_chain(self, run: int, offset: int) -> tuple[int, int] | None:
        """From a partition's newest run backwards."""
        size = self.record.size
        while run:
            (record,) = self.execute(
                f"SELECT substr(runs, 1 + (:run - first) * {size}, {size}) FROM fresh"
                " WHERE first <= :run ORDER BY first DESC LIMIT 1",
                {"run": run},
            ).fetchone()
            base, records, *_, run = self.record.unpack(record)
            if base <= offset:
                return base, base + records
        return None

    def folded(self, key: int, offset: int) -> tuple[int, int]:
        """Among runs that were folded."""
        _, _, blob = self.execute(
            HOLDS.format(table="runs"), {"key": key, "offset": offset}
        ).fetchone()
        base, records = max(
            found[:2] for found in self.record.iter_unpack(blob) if found[0] <= offset
        )
        return base, base + records

    def warm_count(self, partitions: int) -> int:
        return (FOLDED + 1) * partitions


class Columns(Packed):
    """Lays runs out as `Packed` does, and computes them by arrays."""

    kind = np.dtype("i8,u4,u4,u4,u4,u4,i8,u8,u4")
    """Does what `Packed.record` does, by arrays."""
    head = np.dtype(
        [("start", "i8"), ("next", "i8"), ("bytes", "i8"), ("fresh", "i8"), ("last", "u4")]
    )

    def create(self, connection: sqlite3.Connection, keys: Sequence[int]) -> None:
        super().create(connection, keys)
        assert self.kind.itemsize == self.record.size
        self.execute("DROP TABLE partitions")
        self.execute("CREATE TABLE heads (page INTEGER PRIMARY KEY, heads BLOB NOT NULL) STRICT")
        self.keys = keys
        self.index = {key: at for at, key in enumerate(keys)}
        self.heads = np.zeros(len(keys), self.head)
        self.heads["next"] = self.heads["fresh"] = STORED * RECORDS
        self.held = np.zeros((len(keys), FOLDED), self.kind)
        self.counts = np.zeros(len(keys), np.int64)
        self.limits = FOLDED - np.array([self.firsts[key] for key in keys])
        self.dirty: list[NDArray[np.int64]] = [np.arange(len(keys))]
        self.write_heads([])

    def prepare(self, rows: list[Row]) -> list[Any]:
        table = np.array(rows, np.int64)
        table[:, 0] = [self.index[row[0]] for row in rows]
        return [table[at : at + OBJECT_RUNS] for at in range(0, len(rows), OBJECT_RUNS)]

    def write(self, rows: list[Any]) -> None:
        fresh, folded = [], []
        for table in rows:
            index, _, _, object_id, position, length, newest, batches, number = table.T
            heads, counts = self.heads, self.counts
            new = np.empty(len(index), self.kind)
            base = heads["next"][index]
            # As `penstock.records.sums.batch_sum`.
            product = (base.view("u8") + np.uint64(7)) * (number.view("u8") ^ np.uint64(NOW))
            columns = (base, RECORDS, object_id, position, length, batches, newest)
            sums = (product ^ product >> np.uint64(32)) >> np.uint64(1)
            for name, column in zip(
                self.kind.names or (), (*columns, sums, heads["last"][index]), strict=True
            ):
                new[name] = column
            runs = np.arange(self.next_run, self.next_run + len(index))
            fresh += [
                (int(runs[at]), new[at : at + BLOB_RUNS].tobytes())
                for at in range(0, len(new), BLOB_RUNS)
            ]
            self.next_run += len(index)
            self.held[index, counts[index]] = new
            counts[index] += 1
            heads["next"][index] = base + RECORDS
            heads["bytes"][index] += length
            heads["last"][index] = runs
            full = index[counts[index] >= self.limits[index]]
            for at, count in zip(full.tolist(), counts[full].tolist(), strict=True):
                records = self.held[at, :count]
                folded.append((self.keys[at], int(records[0][0]), records.tobytes()))
            counts[full] = heads["last"][full] = 0
            heads["fresh"][full] = heads["next"][full]
            self.limits[full] = FOLDED
            self.dirty.append(index)
        insert_rows(self.execute, "INSERT INTO fresh", fresh)
        insert_rows(self.execute, "INSERT INTO runs", sorted(folded))
        self.execute("DELETE FROM fresh WHERE first < ?", (self.next_run - self.kept,))

    def write_heads(self, rows: list[Any]) -> None:  # noqa: ARG002 - as `Rows` has it
        pages = np.unique(np.concatenate(self.dirty) // HEADS).tolist()
        self.dirty.clear()
        heads = self.heads
        insert_rows(
            self.execute,
            "INSERT OR REPLACE INTO heads",
            [(page, heads[page * HEADS : (page + 1) * HEADS].tobytes()) for page in pages],
        )

    def find(self, key: int, offset: int) -> tuple[int, int]:
        page, at = divmod(self.index[key], HEADS)
        size = self.head.itemsize
        (head,) = self.execute(
            f"SELECT substr(heads, 1 + {at * size}, {size}) FROM heads WHERE page = ?", (page,)
        ).fetchone()
        *_, fresh_offset, run = struct.unpack("<qqqqI", head)
        found = self.in_chain(run, offset) if offset >= fresh_offset else None
        return found or self.folded(key, offset)


LAYOUTS: Final = {"rows": Rows, "tree": Tree, "chain": Chain, "packed": Packed, "columns": Columns}


def main() -> None:
    """Print one line per layout and number of partitions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", default="10000,100000")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--commits", type=int, default=60)
    arguments = parser.parse_args()
    for partitions in map(int, arguments.partitions.split(",")):
        for name in arguments.layouts.split(","):
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder) / "layout.sqlite", name, partitions, arguments.commits)


def measure(path: Path, name: str, partitions: int, commits: int) -> None:
    """Write runs until all is steady, then measure `commits` transactions."""
    keys = [(n // 1_000 + 1 << 20) + n % 1_000 for n in range(partitions)]
    with closing(sqlite3.connect(path, isolation_level=None, cached_statements=256)) as connection:
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-16384"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("BEGIN")
        layout = LAYOUTS[name](connection, keys)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        order = keys[:]
        random.Random(7).shuffle(order)
        numbers = random.Random(3)
        ends = dict.fromkeys(keys, STORED * RECORDS)
        warm = layout.warm_count(partitions) // (OBJECT_RUNS * OBJECTS_PER_COMMIT)
        parts = [0.0, 0.0, 0.0]
        pages = at = 0
        for count in range(warm + commits):
            if count == warm:
                parts, pages = [0.0, 0.0, 0.0], 0
            rows: list[Row] = []
            for object_id in range(OBJECTS_PER_COMMIT):
                chosen = sorted((order[at:] + order[:at])[:OBJECT_RUNS])
                at = (at + OBJECT_RUNS) % partitions
                for place, key in enumerate(chosen):
                    base = ends[key]
                    ends[key] = base + RECORDS
                    rows.append(
                        (
                            key,
                            base,
                            base + RECORDS,
                            2 + object_id,
                            16 + 4097 * place,
                            4096,
                            NOW,
                            1,
                            numbers.getrandbits(62),
                        )
                    )
            prepared = layout.prepare(rows)
            times = [time.process_time()]
            connection.execute("BEGIN")
            layout.write(prepared)
            layout.write_heads(prepared)
            times.append(time.process_time())
            before = log_pages(path)
            connection.execute("COMMIT")
            times.append(time.process_time())
            after = log_pages(path)
            pages += after - before if after >= before else after
            if count % COMMITS_PER_CHECKPOINT == 0:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            times.append(time.process_time())
            parts = [
                part + end - start
                for part, start, end in zip(parts, times, times[1:], strict=False)
            ]
        runs = commits * OBJECT_RUNS * OBJECTS_PER_COMMIT
        newest = look_up_us(layout, [(key, ends[key] - 1) for key in order[:5_000]])
        anywhere = look_up_us(
            layout, [(key, numbers.randrange(ends[key])) for key in order[:5_000]]
        )
    written = " + ".join(f"{1e6 * part / runs:.2f}" for part in parts)
    print(
        f"{partitions:>7,} {name:<7} {1e6 * sum(parts) / runs:6.2f} us a run ({written}),"
        f" {pages / runs:.2f} pages; look-ups {newest:.0f}, {anywhere:.0f} us",
        flush=True,
    )


def look_up_us(layout: Rows, wanted: list[tuple[int, int]]) -> float:
    """us of CPU per look-up."""
    start = time.process_time()
    found = [layout.find(key, offset) for key, offset in wanted]
    end = time.process_time()
    for (base, after), (_, offset) in zip(found, wanted, strict=True):
        assert base <= offset < after, (base, after, offset)
    return 1e6 * (end - start) / len(wanted)


if __name__ == "__main__":
    main()
