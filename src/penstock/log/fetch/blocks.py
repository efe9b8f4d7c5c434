"""The block cache: aligned blocks of segment objects, and whole runs read back from the WAL.

Least recently used, bounded by bytes. Each block is loaded once however many ask (single
flight). Event loop only; the loading itself is the store's.

A block is known by its object's key: that means the same bytes for ever, since keys are given out
once (epochs don't recur, not after a restore or in a journal that came back older), and segments
are put only where there is nothing (`put_once`). Where an object was replaced nevertheless, the
version that a block came with says so: the blocks of one object are all of one version, that of the
block which came last.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from penstock.log.settings import LogSettings
from penstock.model.versions import KeptVersions
from penstock.system.tasks import take_error


class BlockKey(NamedTuple):
    """Block `number` of an object (`place` is its key), or, for a run in the WAL, `place` is
    "wal/<generation>" and `number` the run's byte position."""

    place: str
    number: int


class Block(NamedTuple):
    """A block's bytes, and of which version of its object they are
    (`penstock.ports.objects.Versioned`)."""

    data: memoryview
    version: str | None


class BlockCache:
    """Blocks by key. `load` is called at most once at a time for each key."""

    def __init__(self, limits: LogSettings) -> None:
        self._bytes_max = limits.block_cache_bytes
        self._blocks: OrderedDict[BlockKey, memoryview] = OrderedDict()
        self._versions = KeptVersions[BlockKey]()
        self._loads: dict[BlockKey, asyncio.Task[None]] = {}
        self.bytes = 0
        self.hit_count = 0
        self.load_count = 0
        self.on_dropped: Callable[[BlockKey], None] = lambda _: None
        """Called with each block that leaves, or that another takes the place of."""

    def get(self, key: BlockKey) -> memoryview | None:
        """The block, if it is here; it becomes the most recently used."""
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
            self.hit_count += 1
        return block

    def peek(self, key: BlockKey) -> memoryview | None:
        """Return a block as `get` does, without counting as a use of it."""
        return self._blocks.get(key)

    def version_of(self, place: str) -> str | None:
        """The version of the blocks that are here of an object; None: there are none, or the store
        says none."""
        return self._versions.version_of(place)

    def load(self, key: BlockKey, read: Callable[[], Awaitable[Block]]) -> asyncio.Task[None]:
        """Start loading a block, or join a load under way. Awaiting the task gives its error.

        Cancelling one waiter must not take the block from the others: wait with `asyncio.wait`
        or a shield.
        """
        task = self._loads.get(key)
        if task is None:
            self.load_count += 1
            task = self._loads[key] = asyncio.get_running_loop().create_task(
                self._load(key, read), name=f"load {key.place}#{key.number}"
            )
            task.add_done_callback(take_error)
        return task

    def drop(self, key: BlockKey) -> None:
        """Drop a block that isn't right."""
        dropped = self._blocks.pop(key, None)
        if dropped is not None:
            self.bytes -= len(dropped)
            self._versions.remove(key.place, key)
            self.on_dropped(key)

    async def close(self) -> None:
        """Cancel loads under way and forget everything."""
        loads = list(self._loads.values())
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        self._blocks.clear()
        self._versions.clear()
        self.bytes = 0

    async def _load(self, key: BlockKey, read: Callable[[], Awaitable[Block]]) -> None:
        try:
            self.put(key, *(await read()))
        finally:
            del self._loads[key]

    def put(self, key: BlockKey, block: memoryview, version: str | None = None) -> None:
        """Keep a block, in the place of what was kept by that key. Blocks of another version of
        the object are dropped."""
        replaced = self._blocks.pop(key, None)
        if replaced is not None:
            self.bytes -= len(replaced)
            self.on_dropped(key)
        for other in self._versions.add(key.place, key, version):
            if other != key:
                self._forget(other)
        self._blocks[key] = block
        self.bytes += len(block)
        # The newest block stays whatever its size: who asked for it must find it.
        while self.bytes > self._bytes_max and len(self._blocks) > 1:
            self.drop(next(iter(self._blocks)))

    def _forget(self, key: BlockKey) -> None:
        self.bytes -= len(self._blocks.pop(key))
        self.on_dropped(key)
