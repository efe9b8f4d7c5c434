"""The backlog of compaction counts small runs that lie in objects and wait to be joined.

Readers of a partition with many small runs make many small requests, and the state has a row for
each run. The count looks at the newest runs of each partition alone, so that counting costs the
same however long the log is.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from penstock.state.read.queries import Queries

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
SMALL_BYTES: Final = 16 << 20
"""A run below this is small. Compaction joins runs up to four times as many bytes, and where a
partition has many runs it leaves none shorter than this."""
SMALL_RUNS_MIN: Final = 13
"""A partition with fewer small runs than this doesn't count, since compaction may be done with it.
Compaction joins runs only into one that is four times as long, so three runs may stay of each of
the four sizes from 64 KiB to below 16 MiB."""
_NEWEST_MAX: Final = 256
_PAGE: Final = 1000


@dataclass(slots=True)
class Backlog:
    """Counts the backlog at intervals. Event loop only.

    Args:
        warn_bytes: a backlog above this logs one warning, and another only after the backlog has
            been below it; 0: no warning.
    """

    queries: Callable[[], Queries]
    pool: Executor
    warn_bytes: int
    run_count: int = 0
    size_bytes: int = 0
    is_warned: bool = False

    async def run_once(self) -> None:
        """Count the backlog, and warn if it is above the bound."""
        loop = asyncio.get_running_loop()
        self.run_count, self.size_bytes = await loop.run_in_executor(self.pool, self._count)
        too_much = bool(self.warn_bytes) and self.size_bytes > self.warn_bytes
        if too_much and not self.is_warned:
            logger.warning(
                "%d bytes in %d small runs wait for compaction (compaction_warn_bytes is %d): "
                "run penstock pipeline compact once, or keep penstock pipeline run running",
                self.size_bytes,
                self.run_count,
                self.warn_bytes,
            )
        self.is_warned = too_much

    def status(self) -> dict[str, object]:
        """Return the backlog as /v1/status shows it."""
        return {
            "runs": self.run_count,
            "bytes": self.size_bytes,
            "too_much": self.is_warned,
        }

    def gauges(self) -> dict[str, float]:
        """Return the values of the backlog's gauges by name, for /metrics."""
        return {
            "penstock_compaction_backlog_runs": self.run_count,
            "penstock_compaction_backlog_bytes": self.size_bytes,
        }

    def _count(self) -> tuple[int, int]:
        queries = self.queries()
        run_count = size_bytes = 0
        after = -1
        while True:
            page = queries.compaction_backlog(
                after, limit=_PAGE, newest_max=_NEWEST_MAX, small_bytes=SMALL_BYTES
            )
            for each in page:
                if each.small_count >= SMALL_RUNS_MIN:
                    run_count += each.small_count
                    size_bytes += each.small_bytes
            if len(page) < _PAGE:
                return run_count, size_bytes
            after = page[-1].partition_key
