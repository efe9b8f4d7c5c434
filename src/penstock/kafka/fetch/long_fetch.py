"""A fetch of more partitions than one turn of the loop has room for is served in several turns.

It is a coroutine that lets other work run after some partitions. Reading a request takes many times
the request's bytes, so one such fetch is read and collected at a time. While a fetch waits, for its
turn or for records, it holds only its frame or its session, and is read once more when it is woken.
Each partition is named once, as Kafka joins repeated names.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.fetch.work import LOADS_MAX, RESPONSE_BYTES_MAX, FetchWork
from penstock.kafka.fetch_sessions import FetchSession
from penstock.kafka.replies import Reply, ReplyFuture
from penstock.kafka.wire.fetch_codec import (
    ITEM_COST,
    STEP_ITEMS,
    FetchPartition,
    FetchRequest,
    encode_fetch,
    fetch_steps,
)
from penstock.log.fetch.waiters import Waiter
from penstock.model.errors import NotFoundError, PenstockError, RetryableError
from penstock.model.steps import Steps
from penstock.placement.leaders import Leaders

FOUND_AT_ONCE: Final = 200
"""Partitions that are looked up and read at a time."""
FOUND_COST: Final = 5
"""So many are looked up in the time of one item of a turn (`penstock.system.turns`)."""
FORGOTTEN_AT_ONCE: Final = 10
"""Waiters, of FOUND_AT_ONCE partitions each."""


class LongFetch(FetchWork):
    """One request under way."""

    _deadline_s = 0.0
    _body: memoryview | None = None
    """The body of a request that no session keeps, from which the request is read again."""
    _is_begun = False
    _is_read = False

    def begin(self, body: memoryview) -> ReplyFuture:
        """Answer a request. While it waits for its turn to be read it holds its frame alone."""
        return asyncio.get_running_loop().create_task(self._serve(body), name="long fetch")

    def resume(
        self, request: FetchRequest, session: FetchSession | None, wanted: list[FetchPartition]
    ) -> ReplyFuture:
        """Answer a request that is read, of a session of many partitions."""
        self._take(request)
        self._session, self._wanted = session, wanted
        self._is_begun = self._is_read = True
        return asyncio.get_running_loop().create_task(self._answer(), name="long fetch")

    def _take(self, request: FetchRequest) -> None:
        self._request = request
        self._bytes_max = min(request.bytes_max, RESPONSE_BYTES_MAX)
        wait_s = max(request.wait_ms_max, 0) / 1000
        self._deadline_s = asyncio.get_running_loop().time() + wait_s

    async def _serve(self, body: memoryview) -> Reply:
        self._body = body
        return await self._answer()

    async def _read_request(self, body: memoryview) -> int:
        """Read the request, or read it once more after it has waited; an error code."""
        turns = self._context.broker.turns
        request = await turns.run(fetch_steps(body, self._version))
        self._wanted = await turns.run(_joined(request.partitions))
        refusal = 0
        if not self._is_begun:
            self._is_begun = True
            self._take(request)
            refusal = await turns.run(self._session_steps())
            if self._session is not None:
                # Which has its partitions in memory anyway.
                self._body = None
        # What is left of a request is what it wants.
        request.partitions, request.forgotten, request.spans = [], [], []
        return refusal

    async def _answer(self) -> Reply:
        waiters: list[Waiter] = []
        try:
            return await self._answer_in_time(waiters)
        finally:
            # Also of a connection that has ended, which cancels this.
            self._clear_alarm()
            self._forget(waiters)

    async def _answer_in_time(self, waiters: list[Waiter]) -> Reply:
        """Look for records until there are enough, or it is time.

        Args:
            waiters: is given those that are listed at the log.
        """
        loop, broker = asyncio.get_running_loop(), self._context.broker
        news = asyncio.Event()
        error: BaseException | None = None
        while True:
            is_woken = news.is_set()
            news.clear()
            # All that takes many times the request's bytes lies between here and the end of this
            # block; those that wait for it, or for records, hold their frames alone.
            async with broker.long_fetches:
                if not self._is_read and self._body is not None:
                    refusal = await self._read_request(self._body)
                    self._is_read = True
                    if refusal:
                        return encode_fetch([], self._version, error_code=refusal)
                is_due = (
                    self._deadline_s <= loop.time()
                    or (is_woken and self._is_pressed())
                    or self._connection.is_asked_more
                )
                leaders = self._nearer_leaders()
                if leaders is not None and await self._find_nearer_in_turns(leaders):
                    return await broker.turns.run(self._answer_steps())
                while True:
                    length, missing, failed = await self._collect_in_turns()
                    if error is not None and length == 0:
                        self._tell(error)
                        failed = True
                    must_load = missing is not None and length == 0 and self._loads < LOADS_MAX
                    is_over = self._is_enough(length, failed=failed) or (is_due and not must_load)
                    if is_over and not self._must_confirm():
                        return await broker.turns.run(self._answer_steps())
                    if waiters or self._must_confirm() or must_load:
                        break
                    # What comes while they are listed is found by another look.
                    await self._list(waiters, news)
            error = None
            if self._must_confirm():
                self._let_go()
                self._certainty = await fresh.second(self._context)
            elif missing is not None and must_load:
                error = await self._loaded(missing)
            else:
                self._let_go()
                self._set_alarm(self._deadline_s, news.set)
                if self._connection.is_asked_more and not is_due:
                    news.set()  # it was asked meanwhile, when nothing was set
                await news.wait()

    def _let_go(self) -> None:
        """Hold nothing that can be read or found once more while waiting."""
        self._forget_found()
        if self._body is not None:
            self._wanted = []
            self._is_read = False

    def _forget_found(self) -> None:
        self._clean()
        self._targets = []

    async def _collect_in_turns(self) -> tuple[int, asyncio.Task[None] | None, bool]:
        """Find and read all partitions, some at a time, each as of one moment."""
        turns, wanted = self._context.broker.turns, self._wanted
        self._forget_found()
        length, failed = 0, False
        missing: asyncio.Task[None] | None = None
        for start in range(0, len(wanted), FOUND_AT_ONCE):
            targets = self._find(wanted[start : start + FOUND_AT_ONCE])
            touched = len(self._touched)
            length, missing, is_bad = self._collect_from(targets, length, missing)
            failed = failed or is_bad
            self._targets += targets
            # Where something is read, that costs more than the look.
            if turns.spend(FOUND_AT_ONCE // FOUND_COST + len(self._touched) - touched):
                await turns.wait()
        return length, missing, failed

    async def _find_nearer_in_turns(self, leaders: Leaders) -> bool:
        """Find the agents that the client should ask; whether there is one."""
        turns, wanted = self._context.broker.turns, self._wanted
        self._forget_found()
        for start in range(0, len(wanted), FOUND_AT_ONCE):
            self._targets += self._find_nearer(wanted[start : start + FOUND_AT_ONCE], leaders)
            if turns.spend(FOUND_AT_ONCE):
                await turns.wait()
        return any(target.data.preferred_read_replica >= 0 for target in self._targets)

    async def _loaded(self, load: asyncio.Task[None]) -> BaseException | None:
        """Wait for a load; an error that fails what has nothing else to give."""
        self._loads += 1
        await asyncio.wait({load})
        if load.cancelled():
            return RetryableError("read", "segment", "the server is shutting down")
        error = load.exception()
        if isinstance(error, (NotFoundError, RetryableError)):
            # Moved between the look-up and the read: look it up again. `_loads` bounds this.
            turns = self._context.broker.turns
            for start in range(0, len(self._targets), FOUND_AT_ONCE):
                for target in self._targets[start : start + FOUND_AT_ONCE]:
                    self._log.reader.forget_places(target.key)
                if turns.spend(FOUND_AT_ONCE // FOUND_COST):
                    await turns.wait()
        # Damage is raised by the next read of that partition.
        is_read_again = isinstance(error, PenstockError) and self._loads < LOADS_MAX
        return None if is_read_again else error

    # -- waiting ---------------------------------------------------------------------------------

    async def _list(self, waiters: list[Waiter], news: asyncio.Event) -> None:
        """Let commits to any of the partitions set `news`."""
        turns, wanted = self._context.broker.turns, self._wanted
        for start in range(0, len(wanted), FOUND_AT_ONCE):
            targets = self._find(wanted[start : start + FOUND_AT_ONCE])
            keys = [target.key for target in targets if target.head is not None]
            waiters.append(Waiter(keys, news.set))
            self._log.waiters.add(waiters[-1])
            if turns.spend(2 * FOUND_AT_ONCE // FOUND_COST):
                await turns.wait()

    def _forget(self, waiters: list[Waiter]) -> None:
        """Wait for commits no more: some waiters a turn, without anything that awaits it."""
        for _ in range(min(len(waiters), FORGOTTEN_AT_ONCE)):
            self._log.waiters.remove(waiters.pop())
        if waiters:
            asyncio.get_running_loop().call_soon(self._forget, waiters)


def _joined(partitions: Sequence[FetchPartition]) -> Steps[list[FetchPartition]]:
    """Each partition once: in the place where it was named first, as it was named last."""
    by_place: dict[tuple[str | bytes, int], FetchPartition] = {}
    for number, wanted in enumerate(partitions, 1):
        by_place[wanted.topic, wanted.partition] = wanted
        if not number % STEP_ITEMS:
            yield STEP_ITEMS // ITEM_COST
    return list(by_place.values())
