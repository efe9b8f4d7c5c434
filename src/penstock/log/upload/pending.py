"""Runs that lie in the WAL and in no segment, kept as they are committed.

Reading ten thousand of them from the database each time that a segment is due took 50 ms of CPU
in one go, in which everybody else waited for the interpreter. What is kept here may be moved or
trimmed meanwhile: `StoreSegment` takes what still is as it says. After whatever did not go as
expected, the database tells again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.log.append.plan import FramePlan
from penstock.model.ids import PartitionKey
from penstock.records.sums import MULTIPLIER, SUM_MASK, SUM_SHIFT, epoch_seed
from penstock.state.answers import BatchStatus
from penstock.state.read.view import StateView
from penstock.state.rows import StoredRun
from penstock.wal import WalPlace

RUNS_MAX: Final = 200_000
"""More are read from the database; 200,000 take about 40 MB."""
SEEDS_MAX: Final = 100_000
"""Partitions whose seeds are kept, in some 10 MB."""


class RunSeeds(dict[PartitionKey, int | None]):
    """The start values of the sums of partitions' new runs, looked up once, since there may be a
    run per record.

    Args:
        view: gives the start values. Its leader epoch is constant, and keys are never given twice.
    """

    def __init__(self, view: StateView) -> None:
        super().__init__()
        self._view = view

    def __missing__(self, key: PartitionKey) -> int | None:
        seed = self._view.seed(key)
        if seed is None:
            return None  # its topic is gone
        if len(self) >= SEEDS_MAX:
            self.clear()
        found = self[key] = epoch_seed(seed, self._view.leader_epoch)
        return found


def committed_runs(
    plan: FramePlan, place: WalPlace, *, leader_epoch: int, seeds: RunSeeds
) -> list[StoredRun]:
    """The runs that applying a frame's `CommitRuns` made of what was stored."""
    runs: list[StoredRun] = []
    at = place.generation
    # All by position, since one is made per partition and commit: names cost more.
    label = leader_epoch
    for key, start, group in plan.runs:
        seed = seeds[key]
        position = place.position + start
        run_start = position
        first = end = newest = count = total = 0
        for append in group:
            batch = append.batch
            if append.status is BatchStatus.STORED:
                if not count:
                    run_start, first = position, append.base_offset
                    newest = batch.max_timestamp
                    total = 0
                end = append.base_offset + batch.record_count
                newest = max(newest, batch.max_timestamp)
                count += 1
                if seed is not None:
                    # As `penstock.records.sums.batch_sum`, without a call.
                    product = (seed + append.base_offset) * (
                        (batch.crc << 32 | batch.length) ^ MULTIPLIER
                    )
                    total += product ^ product >> SUM_SHIFT
            elif count:
                # Its bytes lie between: what follows is another run.
                ends = (run_start, position - run_start, newest, count)
                number = None if seed is None else total & SUM_MASK
                runs.append(StoredRun(key, first, end, at, "", *ends, 0, 0, "", label, number))
                count = 0
            position += batch.length
        if count:
            ends = (run_start, position - run_start, newest, count)
            number = None if seed is None else total & SUM_MASK
            runs.append(StoredRun(key, first, end, at, "", *ends, 0, 0, "", label, number))
    return runs


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
        self._runs: list[StoredRun] = []
        self._epoch = 0
        self._is_reading = False
        self.is_complete = False
        """Whether what is kept is all there is; else the database is to be read."""
        self.length = 0
        """Bytes of the runs that are kept."""

    def add(self, runs: Sequence[StoredRun]) -> None:
        """Runs of one commit."""
        if not (self.is_complete or self._is_reading):
            return
        if len(self._runs) + len(runs) > RUNS_MAX:
            self.forget()
            return
        self._runs += runs
        self.length += sum(run.length for run in runs)

    def forget(self) -> None:
        """Nothing is known for sure any more."""
        self._runs = []
        self.length = 0
        self._epoch += 1
        self._is_reading = self.is_complete = False

    def begin_reading(self) -> None:
        """The database is about to be read; commits from here on are kept, too."""
        self.forget()
        self._is_reading = True

    def complete(self, runs: Sequence[StoredRun]) -> None:
        """All that the database named, by generation and position."""
        known = list(runs)
        if self._is_reading:
            # Some that were committed meanwhile are in both.
            last = (known[-1].generation, known[-1].position) if known else (0, 0)
            known += [run for run in self._runs if (run.generation, run.position) > last]
        self._runs = known
        self.length = sum(run.length for run in known)
        self.is_complete, self._is_reading = self._is_reading, False

    def leave_out(self, left_out: Callable[[StoredRun], bool]) -> None:
        """Forget runs that are not to be moved now; the database still names them."""
        self._runs = [run for run in self._runs if not left_out(run)]
        self.length = sum(run.length for run in self._runs)

    def head(self, bytes_max: int) -> Head:
        """Return the oldest runs up to `bytes_max`, at least one. Any thread, while no run is
        dropped."""
        runs, epoch = self._runs, self._epoch
        count = length = 0
        for run in runs:
            if count and length + run.length > bytes_max:
                break
            count += 1
            length += run.length
        taken = runs[:count]
        return Head(taken, {run.partition_key for run in taken}, count, length, epoch)

    def drop(self, head: Head) -> None:
        """These are in a segment now, or gone."""
        if head.epoch == self._epoch:
            del self._runs[: head.count]
            self.length -= head.length
