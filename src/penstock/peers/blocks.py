"""Blocks that this agent reads for itself and its zone: once however many ask, and kept.

It reads the object store, never another peer. What is kept is bounded by bytes, least recently used
goes first; the log's own cache holds the same views, so that a block isn't in memory twice. A key
means the same bytes for ever (`penstock.log.fetch.blocks`), also to another agent.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from penstock.model.errors import OverloadedError
from penstock.peers.codec import BlockRange
from penstock.ports.objects import ObjectStore

_LOADS_MAX: Final = 64


class OwnBlocks:
    """Event loop only."""

    def __init__(self, store: ObjectStore, *, bytes_max: int, loads_max: int = _LOADS_MAX) -> None:
        """
        Args:
            store: where blocks are read; not a `ZoneStore`.
            bytes_max: of blocks that are kept.
            loads_max: reads under way at one time, above which peers are refused.
        """
        self._store = store
        self._bytes_max = bytes_max
        self._loads_max = loads_max
        self._blocks: OrderedDict[BlockRange, memoryview] = OrderedDict()
        self._loads: dict[BlockRange, asyncio.Task[memoryview]] = {}
        self.bytes = 0
        self.hit_count = 0
        self.load_count = 0

    async def read(self, wanted: BlockRange, *, may_refuse: bool = False) -> memoryview:
        """The bytes of a range; loaded if they are not here, or joined to a load under way.

        Cancelling one reader doesn't take the block from the others.

        Args:
            may_refuse: raise rather than begin one read more than `loads_max`: for peers, who
                can read the store themselves.

        Raises:
            OverloadedError: too many reads are under way.
            PenstockError: what the store raised.
        """
        found = self._blocks.get(wanted)
        if found is not None:
            self._blocks.move_to_end(wanted)
            self.hit_count += 1
            return found
        load = self._loads.get(wanted)
        if load is None:
            if may_refuse and len(self._loads) >= self._loads_max:
                raise OverloadedError(
                    "read block", wanted.key, f"{len(self._loads)} blocks are being read"
                )
            self.load_count += 1
            load = self._loads[wanted] = asyncio.get_running_loop().create_task(
                self._load(wanted), name=f"load {wanted.key}@{wanted.start}"
            )
            load.add_done_callback(_retrieve)
        else:
            self.hit_count += 1
        return await asyncio.shield(load)

    def forget(self, wanted: BlockRange) -> None:
        """What is kept of a range isn't what the store has."""
        dropped = self._blocks.pop(wanted, None)
        if dropped is not None:
            self.bytes -= len(dropped)

    async def close(self) -> None:
        """Cancel loads under way and forget everything."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        self._blocks.clear()
        self.bytes = 0

    async def _load(self, wanted: BlockRange) -> memoryview:
        try:
            block = memoryview(await self._store.get_range(wanted.key, wanted.start, wanted.end))
        finally:
            del self._loads[wanted]
        self._blocks[wanted] = block
        self.bytes += len(block)
        while self.bytes > self._bytes_max and self._blocks:
            _, evicted = self._blocks.popitem(last=False)
            self.bytes -= len(evicted)
        return block


def _retrieve(load: asyncio.Task[memoryview]) -> None:
    # Everybody who waited may be gone.
    if not load.cancelled():
        load.exception()
