"""Retention waits a bounded time for the table that follows a topic. Pure.

What has outlived its retention stays while the table hasn't followed it, for at most the topic's
`penstock.table.retention.wait.ms` from when the keeper first found it so. The keeper remembers that
in memory, so another keeper, or the next start, begins to count again; a table that has reported no
progress for all of the bound holds back only what isn't older by its own timestamps than retention
and the bound together.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.state.read.queries import StoredRun

_MARKS_MAX: Final = 64
"""Remembered per partition, so that what is waited for is let go in so many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wish of retention for a partition.

    `runs` are the partition's oldest runs, ascending; offsets below `log_start` have outlived their
    retention. `retention_ms` is -1 if they outlived retention by size or count alone.
    """

    partition_key: int
    runs: Sequence[StoredRun]
    log_start: int
    retention_ms: int


class TableWaits:
    """Partitions with records that have outlived their retention: up to which offset, and since
    when."""

    def __init__(self) -> None:
        self._marks: dict[int, list[tuple[int, int]]] = {}

    def new_log_start(
        self, wanted: Wanted, *, followed: int, newest_ms: int | None, now_ms: int, wait_ms: int
    ) -> int | None:
        """The log start offset that may be set; None: none yet.

        Args:
            followed: the offset up to which the table has followed the partition.
            newest_ms: when it last reported progress; None: never.
            wait_ms: how long to wait for it at most.
        """
        if wanted.log_start <= followed or wait_ms <= 0:
            self._marks.pop(wanted.partition_key, None)
            return wanted.log_start
        free = max(followed, self._waited_for(wanted, followed, now_ms, wait_ms))
        start: int | None = None
        for run in wanted.runs:
            if run.base_offset >= wanted.log_start:
                break
            # By count what has outlived its retention may end within a run.
            end = min(run.end_offset, wanted.log_start)
            # Not `newest_ms` alone: a table that is up to date reports no progress, either.
            if end > free and not (
                newest_ms is not None
                and run.max_timestamp >= 0
                and now_ms - max(newest_ms, run.max_timestamp + max(0, wanted.retention_ms))
                >= wait_ms
            ):
                break
            start = end
        return start

    def forget(self, kept: Collection[int]) -> None:
        """Remember only these partitions."""
        for key in self._marks.keys() - set(kept):
            del self._marks[key]

    @property
    def partitions(self) -> int:
        """Return how many partitions have records that only a table keeps."""
        return len(self._marks)

    def _waited_for(self, wanted: Wanted, followed: int, now_ms: int, wait_ms: int) -> int:
        """The offset up to which the whole bound has passed; notes what is wanted now."""
        done = max(followed, wanted.runs[0].base_offset)
        # A mark of a clock that was ahead would never be over: it counts from now on.
        marks = [
            (start, min(since_ms, now_ms))
            for start, since_ms in self._marks.get(wanted.partition_key, [])
            if start > done
        ]
        over = [mark for mark in marks if now_ms - mark[1] >= wait_ms]
        # The last of them stays until its records are gone: a trim may fail, and be tried again.
        marks = over[-1:] + marks[len(over) :]
        free = over[-1][0] if over else 0
        if not marks or (
            marks[-1][0] < wanted.log_start and now_ms - marks[-1][1] >= wait_ms // _MARKS_MAX
        ):
            marks.append((wanted.log_start, now_ms))
        self._marks[wanted.partition_key] = marks
        return free
