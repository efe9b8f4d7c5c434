"""Runs that lie in the WAL and in no segment, kept as they are committed.

Reading ten thousand of them from the database each time that a segment is due took 50 ms of CPU
in one go, in which everybody else waited for the interpreter. What is kept here may be moved or
trimmed meanwhile: `StoreSegment` takes what still is as it says. After whatever did not go as
expected, the database tells again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.log.append.plan import FramePlan
from penstock.metadata.answers import BatchStatus
from penstock.metadata.rows import StoredRun
from penstock.model.ids import PartitionKey
from penstock.wal import WalPlace

RUNS_MAX: Final = 200_000
"""More are read from the database; 200,000 take about 40 MB."""

Row = tuple[PartitionKey, int, int, int, int, int, int, int]
"""Partition key, base offset, end offset, generation, position, length, max timestamp, batches."""

_LENGTH: Final = 5


def committed_rows(plan: FramePlan, place: WalPlace) -> list[Row]:
    """The runs that applying a frame's `CommitRuns` made of what was stored."""
    rows: list[Row] = []
    generation = place.generation
    for key, start, group in plan.runs:
        position = place.position + start
        run_start = position
        base_offset = end_offset = newest = count = 0
        for append in group:
            batch = append.batch
            if append.status is BatchStatus.STORED:
                if not count:
                    run_start, base_offset = position, append.base_offset
                    newest = batch.max_timestamp
                end_offset = append.base_offset + batch.record_count
                newest = max(newest, batch.max_timestamp)
                count += 1
            elif count:
                # Its bytes lie between: what follows is another run.
                length = position - run_start
                rows.append(
                    (key, base_offset, end_offset, generation, run_start, length, newest, count)
                )
                count = 0
            position += batch.length
        if count:
            length = position - run_start
            rows.append(
                (key, base_offset, end_offset, generation, run_start, length, newest, count)
            )
    return rows


@dataclass(frozen=True, slots=True)
class Head:
    """The oldest runs: `count` of those that are kept, `length` bytes."""

    runs: list[StoredRun]
    keys: set[PartitionKey]
    count: int
    length: int
    epoch: int


class PendingRuns:
    """Kept in the order of the WAL. Event loop, save where a method says otherwise."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._epoch = 0
        self._is_reading = False
        self.is_complete = False
        """Whether what is kept is all there is; else the database is to be read."""
        self.length = 0
        """Bytes of those that are kept."""

    def add(self, rows: Sequence[Row]) -> None:
        """Runs of one commit."""
        if not (self.is_complete or self._is_reading):
            return
        if len(self._rows) + len(rows) > RUNS_MAX:
            self.forget()
            return
        self._rows += rows
        self.length += sum(row[_LENGTH] for row in rows)

    def forget(self) -> None:
        """Nothing is known for sure any more."""
        self._rows = []
        self.length = 0
        self._epoch += 1
        self._is_reading = self.is_complete = False

    def begin_reading(self) -> None:
        """The database is about to be read; commits from here on are kept, too."""
        self.forget()
        self._is_reading = True

    def complete(self, runs: Sequence[StoredRun]) -> None:
        """All that the database named, by generation and position."""
        rows = [_row(run) for run in runs]
        if self._is_reading:
            # Some that were committed meanwhile are in both.
            last = rows[-1][3:5] if rows else (0, 0)
            rows += [row for row in self._rows if row[3:5] > last]
        self._rows = rows
        self.length = sum(row[_LENGTH] for row in rows)
        self.is_complete, self._is_reading = self._is_reading, False

    def head(self, bytes_max: int) -> Head:
        """The oldest runs up to `bytes_max`, at least one. Any thread, while nobody drops any."""
        rows, epoch = self._rows, self._epoch
        count = length = 0
        for row in rows:
            if count and length + row[_LENGTH] > bytes_max:
                break
            count += 1
            length += row[_LENGTH]
        runs = [_run(row) for row in rows[:count]]
        return Head(runs, {run.partition_key for run in runs}, count, length, epoch)

    def drop(self, head: Head) -> None:
        """These are in a segment now, or gone."""
        if head.epoch == self._epoch:
            del self._rows[: head.count]
            self.length -= head.length


def _row(run: StoredRun) -> Row:
    return (
        run.partition_key,
        run.base_offset,
        run.end_offset,
        run.generation,
        run.position,
        run.length,
        run.max_timestamp,
        run.batch_count,
    )


def _run(row: Row) -> StoredRun:
    key, base_offset, end_offset, generation, position, length, newest, count = row
    return StoredRun(key, base_offset, end_offset, generation, "", position, length, newest, count)
