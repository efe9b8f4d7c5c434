"""Runs in raw objects: offsets are written into a copy when the cache is filled.

A raw object's blocks are cached as they are, since the runs of many partitions lie in one block:
it is downloaded once. What readers get is the whole run, copied out of the blocks and patched
from the run's base offset on.
"""

import asyncio
from functools import partial
from typing import Final

from penstock.log.checking import Fault
from penstock.log.fetch.block_reads import read_block
from penstock.log.fetch.blocks import Block, BlockCache, BlockKey
from penstock.log.fetch.object_runs import INLINE_BYTES
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.fetch.whole_runs import BadRunError, checked_run
from penstock.log.settings import LogSettings
from penstock.state.rows import StoredRun

_INLINE_BATCHES: Final = 100
"""Checking and patching fewer batches costs less than a hop to the pool."""


class RawRuns:
    """Reads runs of raw objects whole. Event loop only."""

    def __init__(self, *, blocks: BlockCache, checks: RunChecks, limits: LogSettings) -> None:
        self._blocks = blocks
        self._checks = checks
        self._block_bytes = limits.block_bytes

    async def read(self, run: StoredRun) -> memoryview:
        """A run with final offsets, checked; a `ReadRun`.

        What isn't right in the cache, where it may have come from a peer, is read once more from
        the store itself.

        Raises:
            BadRunError: the bytes are not the batches that the journal named.
            PenstockError: what the store raised.
        """
        # Of a run without a sum nothing else would say that its blocks are of one object.
        try:
            return await self._label(run, await self._gather(run))
        except BadRunError as error:
            end = run.position + run.length
            again = await self._checks.reads.get_directly(run.object_key, run.position, end)
            data = await self._label(run, memoryview(bytearray(again.data)))
            self._checks.damages.healed(run.object_key, error.fault.position, error.fault.detail)
            for number in self._numbers(run):
                self._blocks.drop(BlockKey(run.object_key, number))
            return data

    async def _label(self, run: StoredRun, data: memoryview) -> memoryview:
        subject = f"{run.object_key} at byte {run.position}"
        seed = self._checks.seed_of(run.partition_key)
        if run.batch_count <= _INLINE_BATCHES and run.length <= INLINE_BYTES:
            return checked_run(data, run, seed, subject=subject)
        return await self._checks.in_pool(partial(checked_run, data, run, seed, subject=subject))

    async def _gather(self, run: StoredRun) -> memoryview:
        """
        Raises:
            BadRunError: the object was replaced while its blocks were read.
            PenstockError: what the store raised.
        """
        versions: set[str | None] = set()
        data = memoryview(bytearray(run.length))
        end = run.position + run.length
        numbers = self._numbers(run)
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
                versions.add(self._blocks.version_of(run.object_key))
            else:
                # The cache is so small that others pushed it out meanwhile.
                found = await self._checks.reads.get_versioned(run.object_key, first, last)
                part = memoryview(found.data)
                versions.add(found.version)
            data[first - run.position : last - run.position] = part
        if len(versions) > 1:
            detail = "the object was replaced while the run was read"
            fault = Fault(run.position, run.base_offset, run.end_offset, detail)
            raise BadRunError(run.object_key, fault, memoryview(b""))
        return data

    def _numbers(self, run: StoredRun) -> range:
        end = run.position + run.length
        return range(run.position // self._block_bytes, (end - 1) // self._block_bytes + 1)

    def _load_block(self, run: StoredRun, number: int) -> asyncio.Task[None]:
        start = number * self._block_bytes
        end = min(start + self._block_bytes, run.object_bytes)

        async def read() -> Block:
            return await read_block(self._checks.reads, self._blocks, run.object_key, start, end)

        return self._blocks.load(BlockKey(run.object_key, number), read)
