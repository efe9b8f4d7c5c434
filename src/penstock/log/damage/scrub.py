"""The scrubber reads all that is stored, slowly and for ever, to find rot before a reader does.

It goes through the partitions and their runs by offset: those in local objects and in this host's
WALs, and those in a bucket if a setting says so (a bucket has checks of its own, and requests and
traffic cost). In a cluster each agent reads its WALs, and one of them the bucket.

The first partition of a pass follows from the time of day, since a server that is restarted each
day would else never come to the end of a large volume. What is damaged is noted like what a reader
finds; the scrubber goes on with the next run.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from penstock.log.fetch.examine import Examiner
from penstock.log.findings import DamagedError
from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey, partition_key
from penstock.ports.clock import Clock
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import StoredRun

logger = logging.getLogger(__name__)

_PAGE: Final = 256
"""Runs that are looked up at once."""
_SAVED_S: Final = 2.0
"""For how long the scrubber may catch up with its rate after a pause."""


class Scrubber:
    """Reads a bounded number of bytes each time that `run_once` is called. Event loop only."""

    def __init__(
        self,
        *,
        queries: Callable[[], Queries],
        view: StateView,
        examiner: Examiner,
        clock: Clock,
        pool: Executor,
        bytes_per_s: int,
        reads_objects: Callable[[], bool],
    ) -> None:
        """
        Args:
            bytes_per_s: 0 reads nothing.
            reads_objects: whether runs in objects are this agent's to read now.
        """
        self._queries = queries
        self._view = view
        self._examiner = examiner
        self._clock = clock
        self._pool = pool
        self._bytes_per_s = bytes_per_s
        self._reads_objects = reads_objects
        self._last_s: float | None = None
        self._debt_bytes = 0.0
        self._todo: list[PartitionKey] = []
        self._at: tuple[PartitionKey, int] | None = None
        self._pass_started_s = 0.0
        self.read_bytes = 0
        self.passed_bytes = 0
        """Bytes of all runs so far, those that aren't read here included."""
        self.run_count = 0
        self.damaged_count = 0
        self.pass_count = 0
        self.pass_s = 0.0
        """How long the last whole pass took."""

    async def run_once(self) -> None:
        """Read what the rate allows since the last call.

        Raises:
            RetryableError: the store is away; the same run is read again at the next call.
        """
        if not self._bytes_per_s:
            return
        now_s = self._clock.monotonic_s()
        if self._last_s is None:
            self._last_s = self._pass_started_s = now_s
        self._debt_bytes -= min(now_s - self._last_s, _SAVED_S) * self._bytes_per_s
        self._debt_bytes = max(self._debt_bytes, -_SAVED_S * self._bytes_per_s)
        self._last_s = now_s
        while self._debt_bytes < 0:
            runs = await self._next_runs()
            if not runs:
                return
            for run in runs:
                await self._read(run)
                self.passed_bytes += run.length
                self._at = (run.partition_key, run.end_offset)
                if self._debt_bytes >= 0:
                    break

    @property
    def has_partitions(self) -> bool:
        """Return whether there is anything that could be read."""
        return any(topic.partitions for topic in self._view.topics())

    def status(self) -> dict[str, Any]:
        """Return what /v1/status says of the scrubber."""
        return {
            "bytes_per_s": self._bytes_per_s,
            "bytes": self.read_bytes,
            "runs": self.run_count,
            "damaged": self.damaged_count,
            "partitions_left": len(self._todo),
            "passes": self.pass_count,
            "last_pass_s": round(self.pass_s, 1),
        }

    async def _read(self, run: StoredRun) -> None:
        if not self._examiner.can_read(run) or (run.object_key and not self._reads_objects()):
            return
        self._debt_bytes += run.length
        try:
            await self._examiner.examine(run)
        except DamagedError:
            self.damaged_count += 1  # noted and logged where it was found
            return
        except RetryableError:
            if await self._is_there(run):
                raise
            return  # moved or trimmed meanwhile: the next pass finds it where it lies then
        self.read_bytes += run.length
        self.run_count += 1

    async def _next_runs(self) -> list[StoredRun]:
        """The next page of the pass; empty at its end, which begins another."""
        while True:
            if self._at is None:
                if not self._todo:
                    self._begin_pass()
                    if not self._todo:
                        return []
                self._at = (self._todo.pop(), 0)
            key, offset = self._at
            head = self._view.head(key)
            if head is not None:
                offset = max(offset, head.log_start)
                runs = await self._in_pool(partial(self._page, key, offset))
                if runs:
                    return runs
            self._at = None
            if not self._todo:
                self.pass_count += 1
                now_s = self._clock.monotonic_s()
                self.pass_s, self._pass_started_s = now_s - self._pass_started_s, now_s
                return []

    def _begin_pass(self) -> None:
        keys = [
            partition_key(topic.topic_key, number)
            for topic in self._view.topics()
            for number in range(topic.partitions)
        ]
        if keys:
            at = self._clock.now_ms() % len(keys)
            # Taken from the end.
            self._todo = (keys[at:] + keys[:at])[::-1]

    def _page(self, key: PartitionKey, offset: int) -> list[StoredRun]:
        return self._queries().runs_from(key, offset, limit=_PAGE)

    async def _is_there(self, run: StoredRun) -> bool:
        found = await self._in_pool(partial(self._page, run.partition_key, run.base_offset))
        return bool(found) and (found[0].generation, found[0].object_key, found[0].position) == (
            run.generation,
            run.object_key,
            run.position,
        )

    async def _in_pool(self, work: Callable[[], list[StoredRun]]) -> list[StoredRun]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
