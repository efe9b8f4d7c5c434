"""How far compaction is behind: small runs that lie in objects and nobody has joined yet.

Readers of a partition with many small runs make many small requests; the state has a row for each.
Counted by looking at the newest runs of each partition, so that it costs the same however long the
log is.
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
"""A quarter of what compaction joins runs up to: it leaves no shorter ones where there are many."""
SMALL_RUNS_MIN: Final = 13
"""Of one partition: fewer may be at rest. Compaction joins what makes something four times as long,
so of each of the four sizes from 64 KiB to below 16 MiB three may stay."""
_NEWEST_MAX: Final = 256
_PAGE: Final = 1000


@dataclass(slots=True)
class Backlog:
    """Counts now and then. Event loop only.

    Args:
        warn_bytes: above it the log says so, once until it was below; 0: never.
    """

    queries: Callable[[], Queries]
    pool: Executor
    warn_bytes: int
    run_count: int = 0
    size_bytes: int = 0
    is_warned: bool = False

    async def run_once(self) -> None:
        """Count, and warn."""
        loop = asyncio.get_running_loop()
        self.run_count, self.size_bytes = await loop.run_in_executor(self.pool, self._count)
        too_much = bool(self.warn_bytes) and self.size_bytes > self.warn_bytes
        if too_much and not self.is_warned:
            logger.warning(
                "%d bytes in %d small runs wait for compaction (compaction_warn_bytes is %d): "
                "run penstock pipeline compact, or penstock pipeline run beside the servers",
                self.size_bytes,
                self.run_count,
                self.warn_bytes,
            )
        self.is_warned = too_much

    def status(self) -> dict[str, object]:
        """Return what /v1/status says of it."""
        return {
            "runs": self.run_count,
            "bytes": self.size_bytes,
            "too_much": self.is_warned,
        }

    def gauges(self) -> dict[str, float]:
        """Return the values of its gauges by name, for /metrics."""
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
