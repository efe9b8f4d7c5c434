"""Finds stored objects that no command will ever name: a crash between put and commit leaves them.

What an agent's epoch put and never named is an orphan once that epoch is over, since apply
refuses what the epoch might still send; what a job of the pipeline put, once the job is closed.
Objects that a live epoch may still name are left alone.

A bucket may hold millions of objects, so no pass lists them all:

1. When an epoch ends, the prefixes of its keys are listed once, after the grace: 256 listings,
   however many other objects there are.
2. A walk over all keys goes on by at most STEP_OBJECTS per pass and begins again at its end. The
   walk finds what no sweep was there for: epochs that ended while no keeper ran, jobs' objects.

Memory and statements are bounded by a step, and the state is asked about many keys at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from penstock.log.numbers import ObjectNumbers
from penstock.model.errors import RetryableError
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.segment import SEGMENTS_PREFIX, epoch_prefixes, parse_job_key, parse_object_key
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView

T = TypeVar("T")

STEP_OBJECTS: Final = 10_000
"""Listed objects per pass of the walk: ten requests of an S3 store."""
_PAGE: Final = 1000
_EPOCHS_PER_PASS: Final = 1

Epoch = tuple[int, int]
"""(agent id, epoch)."""


class Orphans:
    """The keeper asks this for orphans. Event loop only."""

    def __init__(
        self,
        *,
        queries: Callable[[], Queries],
        view: StateView,
        store: ObjectStore,
        pool: Executor,
        numbers: ObjectNumbers,
        confirm_head: Callable[[], Awaitable[None]] | None,
        condemn: Callable[[list[str]], Awaitable[int]],
        compare_history: Callable[[], Awaitable[None]] | None,
        grace_ms: int,
    ) -> None:
        """
        Args:
            numbers: of this agent's own epoch, whose objects in flight are left alone.
            confirm_head: returns once the state is at a head of the journal read after the call.
            condemn: proposes keys; returns how many are condemned.
            compare_history: compares the archive with the journal, and notes what that has lost:
                an agent that has just started, or lags, doesn't know of a loss otherwise.
            grace_ms: no object younger than this is an orphan.
        """
        self._queries = queries
        self._view = view
        self._store = store
        self._pool = pool
        self._numbers = numbers
        self._confirm_head = confirm_head
        self._condemn = condemn
        self._compare_history = compare_history
        self._grace_ms = grace_ms
        self._after = ""
        self._live: dict[int, int] = {}
        self._ended: dict[Epoch, int | None] = {}
        """Epochs that are over and not swept yet; when the sweep may begin, None: not said yet."""
        self._swept: set[Epoch] = set()

    def look(self) -> None:
        """Note which epochs have ended since the last look; cheap, so each agent does."""
        live = {agent.agent_id: agent.epoch for agent in self._view.agents() if agent.live}
        for ended in self._live.items() - live.items():
            self._ended.setdefault(ended)
        fenced = {(agent.agent_id, agent.epoch) for agent in self._view.agents() if not agent.live}
        self._swept &= fenced
        for epoch in fenced - self._swept:
            self._ended.setdefault(epoch)
        self._live = live

    async def condemn(self, now_ms: int) -> int:
        """One pass: sweep an ended epoch if there is one, and go on with the walk.

        Args:
            now_ms: what ages are measured by.

        Returns:
            How many objects were condemned.
        """
        self.look()
        return await self._sweep(now_ms) + await self._walk(now_ms - self._grace_ms)

    async def _sweep(self, now_ms: int) -> int:
        count = 0
        for epoch, due_ms in list(self._ended.items()):
            # One that a clock put far ahead, which was wrong, counts from now on.
            if due_ms is None or due_ms > now_ms + self._grace_ms:
                self._ended[epoch] = now_ms + self._grace_ms
        due = [epoch for epoch, due_ms in self._ended.items() if due_ms and due_ms < now_ms]
        for epoch in due[:_EPOCHS_PER_PASS]:
            agent, number = epoch
            for prefix in epoch_prefixes(agent=agent, epoch=number):
                after = ""
                while page := await self._list(prefix, after):
                    count += await self._condemn_unnamed(page, 0, now_ms - self._grace_ms)
                    after = page[-1].key
            del self._ended[epoch]
            self._swept.add(epoch)
        return count

    async def _walk(self, oldest_ms: int) -> int:
        count = 0
        for _ in range(0, STEP_OBJECTS, _PAGE):
            # Read first: what is begun after the listing isn't in the listing.
            limit = self._numbers.in_flight_from()
            page = await self._list(SEGMENTS_PREFIX, self._after)
            self._after = page[-1].key if len(page) == _PAGE else ""
            count += await self._condemn_unnamed(page, limit, oldest_ms)
            if not self._after:
                break
        return count

    async def _list(self, prefix: str, after: str) -> list[ObjectInfo]:
        page: list[ObjectInfo] = []
        async for info in self._store.list(prefix, after=after):
            page.append(info)
            if len(page) == _PAGE:
                break
        return page

    async def _condemn_unnamed(self, page: list[ObjectInfo], limit: int, oldest_ms: int) -> int:
        """Condemn the orphans of one page of a listing; of the own epoch those with n < limit."""
        found: list[tuple[str, Epoch]] = []
        of_jobs: list[tuple[str, int]] = []
        for stored in page:
            if stored.modified_ms > oldest_ms:
                continue
            key = parse_object_key(stored.key)
            if key is None:
                job_key = parse_job_key(stored.key)
                if job_key is not None:
                    of_jobs.append((stored.key, job_key.job))
            elif (key.agent, key.epoch) != self._numbers.identity or (
                key.n < limit and key.n not in self._numbers.foreign
            ):
                found.append((stored.key, (key.agent, key.epoch)))
        found = [item for item in found if not self._is_live(item[1])]
        if not found and not of_jobs:
            return 0
        # An epoch, or a job, is registered before it puts anything: at this head the state knows
        # all whose objects were listed.
        if self._confirm_head is not None:
            await self._confirm_head()
        orphans = [text for text, epoch in found if not self._is_live(epoch)]
        if of_jobs:
            jobs = await self._in_pool(lambda: self._queries().pipeline_jobs())
            open_jobs = {job.job for job in jobs}
            orphans += [text for text, job in of_jobs if job not in open_jobs]
        unknown = await self._in_pool(partial(self._unknown, orphans))
        if unknown and self._compare_history is not None:
            await self._compare_history()
            if self._view.open_histories:
                # Apply would leave them out, and their epoch would count as swept.
                raise RetryableError(
                    "condemn orphans",
                    unknown[0],
                    "the journal came back older: these objects may hold what it has lost",
                    "penstock repair --history",
                )
        return await self._condemn(unknown)

    def _is_live(self, epoch: Epoch) -> bool:
        """Return whether another agent may still name an object of the epoch."""
        agent, number = epoch
        if agent == self._numbers.identity[0]:
            return False
        known = self._view.agent(agent)
        return known is not None and known.live and known.epoch <= number

    def _unknown(self, keys: list[str]) -> list[str]:
        known = self._queries().known_objects(keys)
        return [key for key in keys if key not in known]

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
