"""Offsets that repairs have noted, kept in memory for the status and for metrics: those whose loss
was accepted, and those whose records were encoded again from a table.

They are read from the database in the storage pool, at the start and whenever an entry may have
added one, at most once a second. All are counted, by partition; the first 1,000 are listed. Those
that were trimmed are left out when a caller asks.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final

from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.state.read.loss_queries import NotedKind, NotedRange, NotedTotal
from penstock.state.read.queries import Queries
from penstock.system import background
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

LISTED_MAX: Final = 1_000
AGAIN_S: Final = 1.0


class NotedRanges:
    """Event loop only.

    Args:
        kind: which of them.
        queries: used on threads of `pool`, and once here.
        let_queries_find: lets queries find all that was applied before the call.
        partition_name: of a partition for people, such as `flights-3`.
        log_start: of a partition; None: it is gone.
    """

    def __init__(
        self,
        kind: NotedKind,
        *,
        queries: Callable[[], Queries],
        let_queries_find: Callable[[], Awaitable[None]],
        partition_name: Callable[[PartitionKey], str],
        log_start: Callable[[PartitionKey], int | None],
        pool: Executor,
    ) -> None:
        self._kind: NotedKind = kind
        self._queries = queries
        self._let_queries_find = let_queries_find
        self._partition_name = partition_name
        self._log_start = log_start
        self._pool = pool
        self._totals, self._rows = self._read()
        self._is_due = False
        self._task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Return the number of ranges. For a partition that was trimmed just now, some trimmed
        ranges count until the database was read, which this call begins."""
        count = 0
        for key, total in list(self._totals.items()):
            log_start = self._log_start(key)
            if log_start is None or total.last_end <= log_start:
                del self._totals[key]
                continue
            if total.first_end <= log_start:
                self.changed()
            count += total.ranges
        return count

    async def page(self, after: tuple[int, int]) -> list[NotedRange]:
        """Ranges past (partition key, start) `after`, from the database: at most LISTED_MAX.

        Raises:
            RetryableError: the process that writes the database is away, or it has no space.
        """
        await self._let_queries_find()
        return await asyncio.get_running_loop().run_in_executor(
            self._pool,
            lambda: self._queries().noted_ranges(self._kind, LISTED_MAX, after=after),
        )

    def listed(self) -> list[NotedRange]:
        """The first of them by partition and offset, at most LISTED_MAX."""
        kept = []
        for row in self._rows:
            log_start = self._log_start(row[0])
            if log_start is not None and row[2] > log_start:
                kept.append(row)
        if len(kept) < len(self._rows) == LISTED_MAX:
            self.changed()  # there may be more of them
        self._rows = kept
        return kept

    def status(self) -> dict[str, Any]:
        """Return how many there are, and at most LISTED_MAX of them, for /v1/status."""
        return {
            "known": self.count,
            "ranges": [
                {
                    "partition": self._partition_name(key),
                    "start": start,
                    "end": end,
                    "time_ms": time_ms,
                }
                for key, start, end, time_ms in self.listed()
            ],
        }

    def changed(self) -> None:
        """An entry was applied that may have added some."""
        self._is_due = True
        if self._task is None:
            self._task = background.start(background.NOTED_RANGES, self._run)

    async def refresh(self) -> None:
        """Read them now.

        Raises:
            RetryableError: the process that writes the database is away, or it has no space.
        """
        self._is_due = False
        await self._let_queries_find()
        self._totals, self._rows = await asyncio.get_running_loop().run_in_executor(
            self._pool, self._read
        )

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _read(self) -> tuple[dict[PartitionKey, NotedTotal], list[NotedRange]]:
        queries = self._queries()
        return queries.noted_totals(self._kind), queries.noted_ranges(self._kind, LISTED_MAX)

    async def _run(self) -> None:
        try:
            while self._is_due:
                try:
                    await self.refresh()
                except PenstockError as error:
                    heard(Cause.NOTED_RANGES, error, logger, f"{self._kind} can't be read now")
                    self._is_due = True
                if self._is_due:
                    # Not after each of many entries: every read looks at all ranges.
                    await wait(AGAIN_S)
        finally:
            self._task = None
