"""WAL frames that were found damaged when a WAL was opened, and the records that lie in them.

A frame's damage may hit records, or only what lies around them. So each run that a damaged stretch
overlaps is read at once and checked like any other read: what is wrong of it is noted as damage
(`penstock.log.findings`), and what is right is served.
"""

import asyncio
import contextlib
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from penstock.log.fetch.examine import Examiner
from penstock.log.findings import SHOWN_MAX, DamagedError
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.state.read.queries import Queries
from penstock.state.rows import StoredRun
from penstock.system import background
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait
from penstock.wal import DamagedStretch

logger = logging.getLogger(__name__)

EXAMINED_MAX: Final = 1_000
"""Runs that are read at once after a start; readers and the scrubber come to the others."""
_NAMED_MAX: Final = 20
"""Partitions that a log line names."""
REFRESH_S: Final = 60.0
"""How long a list stands that nothing was said to have changed."""
_AGAIN_S: Final = 1.0
"""How long it stands at least: each look goes through all runs of a WAL."""


class DamagedFrames:
    """Event loop only.

    Args:
        examiner: reads runs and notes what is wrong.
        queries: find all that was applied before the call; used on threads of `pool`.
        partition_name: of a partition for people, such as `flights-3`.
    """

    def __init__(
        self,
        *,
        examiner: Examiner,
        queries: Callable[[], Queries],
        partition_name: Callable[[PartitionKey], str],
        pool: Executor,
    ) -> None:
        self._examiner = examiner
        self._queries = queries
        self._partition_name = partition_name
        self._pool = pool
        self._found: dict[int, Sequence[DamagedStretch]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._repaired: dict[int, asyncio.Event] = {}
        """An event per WAL key, set once a repair was applied since the last look."""

    @property
    def count(self) -> int:
        """Damaged stretches that the last openings of WALs found."""
        return sum(map(len, self._found.values()))

    def status(self) -> list[dict[str, Any]]:
        """Return at most SHOWN_MAX of the stretches, for /v1/status."""
        return [
            {
                "wal": wal_key,
                "file": stretch.name,
                "generation": stretch.generation,
                "start": stretch.start,
                "end": stretch.end,
                "detail": stretch.detail,
            }
            for wal_key, stretches in self._found.items()
            for stretch in stretches
        ][:SHOWN_MAX]

    def opened(self, wal_key: int, damaged: Sequence[DamagedStretch]) -> None:
        """A WAL was opened, and its reader is known to the examiner.

        Args:
            damaged: what was found; in place of what an earlier opening found.
        """
        found = tuple(damaged)
        if found == self._found.get(wal_key, ()):
            return
        task = self._tasks.pop(wal_key, None)
        if task is not None:
            task.cancel()
        self._found.pop(wal_key, None)
        if not found:
            return
        self._found[wal_key] = found
        self._repaired[wal_key] = asyncio.Event()
        task = background.start(background.DAMAGED_FRAMES, partial(self._follow, wal_key))
        self._tasks[wal_key] = task

    def repaired(self) -> None:
        """A repair was applied: what lay in a stretch may be restored or given up."""
        for event in self._repaired.values():
            event.set()

    async def close(self) -> None:
        """Stop looking."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self, wal_key: int) -> None:
        """Forget stretches in which nothing lies any more: moved, trimmed or given up."""
        hits = await self._hits(wal_key)
        self._found[wal_key] = tuple(stretch for stretch, runs in hits if runs)

    async def _follow(self, wal_key: int) -> None:
        repaired = self._repaired[wal_key]
        look = self._look
        while True:
            try:
                await look(wal_key)
                look = self.refresh
            except PenstockError as error:
                # The frames stay listed; readers and the scrubber check what lies in them.
                saying = f"no look at the damaged frames of WAL {wal_key}"
                heard(Cause.DAMAGED_FRAMES, error, logger, saying)
            if not self._found[wal_key]:
                return
            await wait(_AGAIN_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(repaired.wait(), REFRESH_S)
                repaired.clear()

    async def _look(self, wal_key: int) -> None:
        hits = await self._hits(wal_key)
        for stretch, runs in hits[:SHOWN_MAX]:
            logger.error("damaged WAL frame in %s; in it lie %s", stretch, self._described(runs))
        if len(hits) > SHOWN_MAX:
            logger.error("%d more WAL frames are damaged", len(hits) - SHOWN_MAX)
        wrong = right = unknown = 0
        examined = {
            (run.generation, run.position, run.partition_key): run
            for _, runs in hits
            for run in runs
        }
        for run in list(examined.values())[:EXAMINED_MAX]:
            try:
                await self._examiner.examine(run)
                right += 1
            except DamagedError:
                wrong += 1  # noted where it was found
            except PenstockError as error:
                unknown += 1
                saying = "a run in a damaged WAL frame can't be read now"
                heard(Cause.DAMAGED_FRAMES, error, logger, saying)
        logger.error(
            "of %d runs in damaged WAL frames %d are damaged, %d are right, %d not read,"
            " and %d are left to readers and the scrubber (docs/operations.md, Damage)",
            len(examined),
            wrong,
            right,
            unknown,
            max(0, len(examined) - EXAMINED_MAX),
        )

    async def _hits(self, wal_key: int) -> list[tuple[DamagedStretch, list[StoredRun]]]:
        """The runs that each stretch of a WAL overlaps."""
        work = partial(self._find_hits, wal_key, self._found[wal_key])
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _find_hits(
        self, wal_key: int, damaged: Sequence[DamagedStretch]
    ) -> list[tuple[DamagedStretch, list[StoredRun]]]:
        by_generation: dict[int, list[StoredRun]] = {stretch.generation: [] for stretch in damaged}
        for run in self._queries().wal_runs(wal_key):  # by generation and position
            if run.file_generation in by_generation:
                by_generation[run.file_generation].append(run)
        hits = []
        for stretch in damaged:
            runs = by_generation[stretch.generation]
            # Runs don't overlap one another, so their ends ascend as their positions do.
            first = bisect_right(runs, stretch.start, key=lambda run: run.position + run.length)
            last = bisect_left(runs, stretch.end, key=lambda run: run.position)
            hits.append((stretch, runs[first:last]))
        return hits

    def _described(self, runs: list[StoredRun]) -> str:
        """Partitions and offsets, for people."""
        offsets: dict[PartitionKey, tuple[int, int]] = {}
        for run in runs:
            start, end = offsets.get(run.partition_key, (run.base_offset, run.end_offset))
            offsets[run.partition_key] = min(start, run.base_offset), max(end, run.end_offset)
        named = [
            f"{self._partition_name(key)} offsets {start} to {end - 1}"
            for key, (start, end) in sorted(offsets.items())[:_NAMED_MAX]
        ]
        more = len(offsets) - len(named)
        return (", ".join(named) or "no records") + (f" and {more} more partitions" if more else "")
