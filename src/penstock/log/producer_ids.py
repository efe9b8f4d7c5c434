"""Producer ids, given out one by one of blocks that the state gives out."""

import asyncio

from penstock.state.answers import ProducerIds as Block
from penstock.state.commands import AllocateProducerIds
from penstock.state.order_types import Committer


class ProducerIds:
    """Ids that no other producer gets. Event loop only."""

    def __init__(self, committer: Committer, *, block: int) -> None:
        """
        Args:
            block: ids that are asked for at a time.
        """
        self._committer = committer
        self._block = block
        self._left: list[int] = []
        self._lock = asyncio.Lock()

    async def allocate(self) -> tuple[int, int]:
        """Return a producer id that no other producer gets, and its epoch, 0."""
        async with self._lock:
            if not self._left:
                (answer,) = await self._committer.commit([AllocateProducerIds(count=self._block)])
                assert isinstance(answer, Block), answer
                # Popped from the end, so that ids are given out in ascending order.
                self._left = list(range(answer.first + answer.count - 1, answer.first - 1, -1))
            return self._left.pop(), 0

    def forget(self) -> None:
        """Ask for another block at the next call: this one may have been given out twice."""
        self._left = []
