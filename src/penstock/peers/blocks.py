"""Blocks that this agent reads for itself and its zone: once however many ask, and kept.

It reads the object store, never another peer. What is kept is bounded by bytes, least recently used
goes first; the log's own cache holds the same views, so that a block isn't in memory twice. A key
means the same bytes for ever (`penstock.log.fetch.blocks`). Where an object was replaced
nevertheless, what is kept of it is dropped as soon as this agent has read of another version, and
blocks that peers have kept of the old one aren't taken.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from penstock.model.errors import OverloadedError
from penstock.model.versions import KeptVersions
from penstock.peers.codec import BlockRange
from penstock.ports.objects import ObjectStore, Versioned, get_versioned
from penstock.system.tasks import take_error

_LOADS_MAX: Final = 64
_SEEN_MAX: Final = 10_000


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
        self._blocks: OrderedDict[BlockRange, tuple[memoryview, str | None]] = OrderedDict()
        self._kept = KeptVersions[BlockRange]()
        self._seen: OrderedDict[str, str | None] = OrderedDict()
        """Per object the version that the store itself gave last."""
        self._loads: dict[BlockRange, asyncio.Task[Versioned]] = {}
        self.bytes = 0
        self.hit_count = 0
        self.load_count = 0

    async def read(self, wanted: BlockRange, *, may_refuse: bool = False) -> Versioned:
        """The bytes of a range and their version; loaded if they are not here, or joined to a load
        under way.

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
            return Versioned(*found)
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
            load.add_done_callback(take_error)
        else:
            self.hit_count += 1
        return await asyncio.shield(load)

    def forget(self, wanted: BlockRange) -> None:
        """Drop the blocks of a range: they aren't what the store has."""
        dropped = self._blocks.pop(wanted, None)
        if dropped is not None:
            self.bytes -= len(dropped[0])
            self._kept.remove(wanted.key, wanted)

    def saw(self, key: str, version: str | None) -> None:
        """The store itself gave that version of an object. What is kept of another is dropped."""
        self._seen[key] = version
        self._seen.move_to_end(key)
        if len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)
        for stale in self._kept.of_others(key, version):
            self.forget(stale)

    def is_stale(self, key: str, version: str | None) -> bool:
        """Return whether the store itself gave another version of an object."""
        return key in self._seen and self._seen[key] != version

    async def close(self) -> None:
        """Cancel loads under way and forget everything."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        self._blocks.clear()
        self._kept.clear()
        self.bytes = 0

    async def _load(self, wanted: BlockRange) -> Versioned:
        try:
            found = await get_versioned(self._store, wanted.key, wanted.start, wanted.end)
        finally:
            del self._loads[wanted]
        self.saw(wanted.key, found.version)
        self.forget(wanted)
        block = memoryview(found.data)
        self._blocks[wanted] = (block, found.version)
        self._kept.add(wanted.key, wanted, found.version)
        self.bytes += len(block)
        while self.bytes > self._bytes_max and self._blocks:
            self.forget(next(iter(self._blocks)))
        return Versioned(block, found.version)
