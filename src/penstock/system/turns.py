"""Turns of the event loop: long work yields to other work after a bounded share of a turn.

A turn is one pass of the loop over its callbacks. Work on behalf of a client counts what it did
(items, bytes, rows of SQL) with `spend`; once a turn's share is used up, by all such work
together, each waits for a turn of its own (`wait`), in the order of asking, one a turn. So the loop
looks after sockets and timers at least as often as two shares take, however many clients ask for
how much at once; what a share takes is measured in `bench/bench_requests.py`.

Work that is pure is written as steps (`penstock.model.steps`), which `Turns.run` runs.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, TypeVar

from penstock.model.steps import Steps

_T = TypeVar("_T")

TURN_ITEMS: Final = 1_000
"""Items of a request or an answer in one turn, at 5 to 20 us each."""
TURN_BYTES: Final = 4 << 20
"""Copied or encoded."""
TURN_ROWS: Final = 500
"""Read or written by SQL."""
SORT_ITEMS: Final = 1_000
"""Items that are sorted in one go."""


class Turns:
    """The share of one turn of the loop, and those that wait for one. Event loop only."""

    __slots__ = (
        "_bytes_left",
        "_bytes_max",
        "_items_left",
        "_items_max",
        "_loop",
        "_rows_left",
        "_rows_max",
        "_waiting",
    )

    def __init__(
        self,
        *,
        items_max: int = TURN_ITEMS,
        bytes_max: int = TURN_BYTES,
        rows_max: int = TURN_ROWS,
    ) -> None:
        self._items_max = self._items_left = items_max
        self._bytes_max = self._bytes_left = bytes_max
        self._rows_max = self._rows_left = rows_max
        # The loop that was asked for the next turn, until it comes.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def spend(self, items: int = 0, byte_count: int = 0, rows: int = 0) -> bool:
        """Count work that was done.

        Returns:
            Whether this turn's share is used up: `wait` before going on.
        """
        if self._loop is None:
            self._ask()
        self._items_left -= items
        self._bytes_left -= byte_count
        self._rows_left -= rows
        return self._items_left <= 0 or self._bytes_left <= 0 or self._rows_left <= 0

    async def wait(self) -> None:
        """Wait for a turn whose share no other waiting work has used."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._ask()
        await waiter

    async def each(self, items: Iterable[_T], *, cost: int = 1) -> AsyncIterator[_T]:
        """Go through items, giving way when it is due.

        Args:
            cost: of what is done with one, in items.
        """
        for item in items:
            yield item
            if self.spend(cost):
                await self.wait()

    async def in_order(self, items: Sequence[_T]) -> AsyncIterator[_T]:
        """Go through items in ascending order, giving way when it is due."""
        sorted_parts: list[list[Any]] = []
        for start in range(0, len(items), SORT_ITEMS):
            some: list[Any] = list(items[start : start + SORT_ITEMS])
            some.sort()
            sorted_parts.append(some)
            if self.spend(len(some) // 10):
                await self.wait()
        async for item in self.each(heapq.merge(*sorted_parts)):
            yield item

    async def run(self, steps: Steps[_T]) -> _T:
        """Run to the end, giving way when it is due; gives what the steps return."""
        while True:
            try:
                done = next(steps)
            except StopIteration as end:
                result: _T = end.value
                return result
            if self.spend(done):
                await self.wait()

    def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        # A loop that has ended never gave the turn that it was asked for.
        if self._loop is not loop:
            self._loop = loop
            loop.call_soon(self._begin)

    def _begin(self) -> None:
        """A turn has begun."""
        self._loop = None
        self._items_left = self._items_max
        self._bytes_left = self._bytes_max
        self._rows_left = self._rows_max
        waiting = self._waiting
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():  # cancelled
                waiter.set_result(None)
                break
        if waiting:
            self._ask()
