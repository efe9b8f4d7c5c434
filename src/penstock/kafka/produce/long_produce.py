"""A Produce of many partitions, as a coroutine that takes turns of the loop."""

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.kafka.answer_bounds import produce_bound
from penstock.kafka.context import RequestContext
from penstock.kafka.produce.work import ProduceWork
from penstock.kafka.replies import Reply, ReplyFuture
from penstock.kafka.wire.produce_codec import (
    LONG_ANSWER_BYTES,
    STEP_ITEMS,
    PartitionAnswer,
    ProduceRequest,
    answer_steps,
    produce_steps,
)
from penstock.log.append.plan import PartitionAppend

CHECKED_AT_ONCE: Final = 100
"""Partitions of a long request that are checked, or handed to the log, at a time; 5 us each."""


class LongProduce(ProduceWork):
    """A Produce of many partitions, which takes turns of the loop.

    It has its place among its connection's requests from the start, and keeps it until the log has
    the last of its batches. It begins once the log has the batches of the requests before it, so
    that one long Produce of a connection waits for room. One long Produce of all connections is
    read and checked at a time, since reading a request takes many times the request's bytes.
    """

    __slots__ = (
        "_answered",
        "_handing_over",
        "_is_first",
        "_is_handed_over",
        "_may_append",
        "_task",
    )

    def __init__(self, context: RequestContext, acks: int) -> None:
        super().__init__(context)
        self._acks = acks
        self._handing_over = False
        self._is_handed_over = False
        self._is_first = asyncio.Event()
        self._may_append = asyncio.Event()
        self._answered = asyncio.Event()

    def begin(self, body: memoryview) -> ReplyFuture:
        """Take the place among the connection's requests; the task is the answer."""
        self._checking = 1
        produces = self._context.connection.produces
        produces.append(self)
        if produces[0] is self:
            self._is_first.set()
        task = asyncio.get_running_loop().create_task(self._serve(body), name="long produce")
        self._task = task
        self._context.connection.items += STEP_ITEMS
        task.add_done_callback(self._ended)
        return task

    def _ended(self, _: "asyncio.Task[Reply]") -> None:
        self._context.connection.items -= STEP_ITEMS

    def append_if_checked(self) -> bool:
        """See `Unhanded`; true once all is handed over."""
        self._is_first.set()
        if not self._checking:
            self._may_append.set()
        return self._is_handed_over

    def forget(self) -> bool:
        """See `Unhanded`. What the log has a part of is handed to it whole."""
        if self._acks == 0 or self._handing_over:
            return False
        self._let_go()
        # Kept by this, it would make a cycle with the error that ends it.
        self._task.cancel()
        del self._task
        return True

    async def _serve(self, body: memoryview) -> Reply:
        try:
            await self._is_first.wait()
            waiting = await self._work(body, reserves=True)
            if waiting is not None:
                # Many may wait, and hold their frames alone.
                await waiting
                await self._work(body, reserves=False)
        finally:
            # Also of one that is malformed, so that those that came later go on.
            self._checking = 0
            self._is_handed_over = True
            self._go_on()
        return await self._answer()

    async def _work(self, body: memoryview, *, reserves: bool) -> asyncio.Future[None] | None:
        """Read, check and hand over; or what to wait for before it is read once more."""
        turns = self._broker.turns
        async with self._broker.long_produces:
            request = await turns.run(produce_steps(body, self._version))
            if reserves and request.acks != 0:
                bound = await turns.run(produce_bound(request, LONG_ANSWER_BYTES))
                waiting = self._context.reserve_answer(bound)
                if waiting is not None:
                    return waiting
            await self._check_in_turns(request)
            await self._may_append.wait()
            self._handing_over = True
            await self._hand_over(self._appends)
        return None

    async def _check_in_turns(self, request: ProduceRequest) -> None:
        turns = self._broker.turns
        self._acks, self._timeout_ms = request.acks, request.timeout_ms
        self._transactional_id = request.transactional_id
        for topic in request.topics:
            answers: list[PartitionAnswer] = []
            self._topics.append((topic, answers))
            # Topics without partitions count, too.
            for start in range(0, len(topic.partitions) or 1, CHECKED_AT_ONCE):
                some = topic.partitions[start : start + CHECKED_AT_ONCE]
                answers += self._check_topic(topic, some)
                byte_count = sum(len(part.records or b"") for part in some)
                if turns.spend(len(some) or 1, byte_count):
                    await turns.wait()
        self._doubt()
        self._checking -= 1
        if not self._checking:
            self._go_on()

    async def _hand_over(self, appends: Sequence[tuple[PartitionAppend, PartitionAnswer]]) -> None:
        turns = self._broker.turns
        for start in range(0, len(appends), CHECKED_AT_ONCE):
            self._appends = list(appends[start : start + CHECKED_AT_ONCE])
            self._append()
            if turns.spend(len(self._appends)):
                await turns.wait()
        self._one_is_over()

    def _finish(self) -> None:
        self._answered.set()

    async def _answer(self) -> Reply:
        await self._answered.wait()
        if self._acks != 0:
            return [await self._broker.turns.run(answer_steps(self._topics, self._version))]
        self._end_if_failed()
        return None
