"""Runs in raw objects: offsets are written into a copy when the cache is filled.

A raw object's blocks are cached as they are, since the runs of many partitions lie in one block:
it is downloaded once. What readers get is the whole run, copied out of the blocks and patched
from the run's base offset on.
"""

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Final

from penstock.log.fetch.blocks import BlockCache, BlockKey
from penstock.log.limits import LogLimits
from penstock.metadata.rows import StoredRun
from penstock.ports.objects import ObjectStore
from penstock.records.batch import patch_run

_INLINE_BATCHES: Final = 200
"""Patching fewer batches costs less than a hop to the pool."""


def raw_run_key(run: StoredRun) -> BlockKey:
    """Of the patched run in the block cache. An object is named by one entry only, so that its
    runs' places tell their offsets."""
    return BlockKey(f"raw/{run.object_key}", run.position)


class RawRuns:
    """Fills the block cache with patched runs. Event loop only."""

    def __init__(
        self, *, blocks: BlockCache, store: ObjectStore, pool: Executor, limits: LogLimits
    ) -> None:
        self._blocks = blocks
        self._store = store
        self._pool = pool
        self._block_bytes = limits.block_bytes

    def load(self, run: StoredRun) -> asyncio.Task[None]:
        """Start loading a run, or join a load under way."""
        return self._blocks.load(raw_run_key(run), lambda: self._read(run))

    async def _read(self, run: StoredRun) -> memoryview:
        """
        Raises:
            CorruptDataError: the bytes are not the batches that the journal named.
            PenstockError: what the store raised.
        """
        data = memoryview(bytearray(run.length))
        end = run.position + run.length
        numbers = range(run.position // self._block_bytes, (end - 1) // self._block_bytes + 1)
        # All at once: they are one after the other in one object.
        loads = {
            number: self._load_block(run, number)
            for number in numbers
            if self._blocks.get(BlockKey(run.object_key, number)) is None
        }
        for number in numbers:
            start = number * self._block_bytes
            first, last = max(run.position, start), min(end, start + self._block_bytes)
            if number in loads:
                await asyncio.shield(loads[number])
            block = self._blocks.get(BlockKey(run.object_key, number))
            if block is not None:
                part = block[first - start : last - start]
            else:
                # The cache is so small that others pushed it out meanwhile.
                part = memoryview(await self._store.get_range(run.object_key, first, last))
            data[first - run.position : last - run.position] = part
        subject = f"{run.object_key} at byte {run.position}"
        if run.batch_count <= _INLINE_BATCHES:
            patch_run(data, run.base_offset, run.leader_epoch, subject=subject)
        else:
            await asyncio.get_running_loop().run_in_executor(
                self._pool,
                partial(patch_run, data, run.base_offset, run.leader_epoch, subject=subject),
            )
        return data

    def _load_block(self, run: StoredRun, number: int) -> asyncio.Task[None]:
        start = number * self._block_bytes
        end = min(start + self._block_bytes, run.object_bytes)

        async def read() -> memoryview:
            return memoryview(await self._store.get_range(run.object_key, start, end))

        return self._blocks.load(BlockKey(run.object_key, number), read)
