"""Reading a run of a segment object once more, from the store itself.

For what was not right in memory, or not proven: a bit that flipped on the way here is healed so,
and of an object that was replaced, bytes and index are then of one version. What is damaged there
too, or what nothing proves to be the run, is an error of the partition.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from penstock.log.checking import OTHERS, Checked, Fault, Pieces, ends_early
from penstock.log.fetch.blocks import BlockCache, BlockKey
from penstock.log.fetch.placed import Proof
from penstock.log.fetch.run_checks import RunChecks
from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError
from penstock.state.rows import StoredRun


class _Again(NamedTuple):
    """Blocks that were read. `blocks`: all of `version`; None: perhaps of several versions.
    `failed`: the store's error in place of the next block."""

    found: Checked
    blocks: list[tuple[BlockKey, memoryview]]
    version: str | None
    failed: CorruptDataError | None


class LoadFailed(Protocol):
    """Says what a load that failed means for a partition; see `LogReader`."""

    async def __call__(self, run: StoredRun, offset: int, error: PenstockError) -> PenstockError:
        """The error to raise."""
        ...


class Passed(Protocol):
    """Takes note of what was checked; see `ObjectRuns`."""

    def __call__(
        self,
        run: StoredRun,
        start: int,
        found: Checked,
        version: str | None,
        read: Sequence[tuple[BlockKey, memoryview]] | None = None,
    ) -> bool:
        """False if it shows that the run is another."""
        ...


class ReadAgain:
    """Event loop only. Blocks that are read take the place of those in the cache.

    Args:
        load_failed: what to raise where the store hasn't what a run lies in.
        passed: called with what is right.
    """

    def __init__(
        self,
        *,
        blocks: BlockCache,
        block_bytes: int,
        checks: RunChecks,
        load_failed: LoadFailed,
        passed: Passed,
    ) -> None:
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._checks = checks
        self._load_failed = load_failed
        self._passed = passed

    async def whole(self, run: StoredRun) -> None:
        """Read all of a run, so that its sum proves it. Raises: as `part`."""
        await self.part(run, run.position, run.base_offset, run.position + run.length - 1)

    async def part(self, run: StoredRun, begin: int, expected: int, until: int) -> None:
        """Read from `begin` on, where a batch of the offset `expected` is due, past `until`. All of
        the run, where its sum is needed.

        Raises:
            DamagedError: it is damaged in the store too, or nothing proves that it is the run.
            PenstockError: what the store raised.
        """
        self._checks.look_up(run)
        self._checks.reads.looked_at(run.object_key)
        # Twice, since the object may be replaced between two reads; not for ever.
        for _ in range(2):
            again = await self._read(run, begin, expected, until)
            if again is None:
                continue
            proof = Proof.NAMED
            if not is_whole(run, begin, again.found) and not (
                self._checks.is_proven(run, again.version)
            ):
                proof = await self._checks.prove(run, again.version)
            if proof is Proof.UNNAMED:
                if begin != run.position or until != run.position + run.length - 1:
                    await self.whole(run)
                    return
                raise await self._unproven(run, again)
            if proof is Proof.NAMED:
                await self._settle(run, begin, again)
                self._checks.damages.healed(run.object_key, until, "what came first was not right")
                return
        await self._of_any_versions(run)

    async def _of_any_versions(self, run: StoredRun) -> None:
        """Read all of a run of which no two answers were of one version. Its sum says whether the
        store names versions that say nothing, or other bytes came.

        Raises: as `part`.
        """
        again = None
        if self._checks.has_sum(run):
            end = run.position + run.length
            again = await self._read(run, run.position, run.base_offset, end - 1, is_one=False)
        if (
            again is None
            or not is_whole(run, run.position, again.found)
            or (again.found.sum != run.sum)
        ):
            detail = "the object was replaced again and again while the run was read"
            fault = Fault(run.position, run.base_offset, run.end_offset, detail)
            raise self._checks.damaged(run, fault)
        self._checks.reads.unsteady(run.object_key)
        for key, block in again.blocks:
            self._blocks.put(key, block)
        await self._settle(run, run.position, again)

    async def _settle(self, run: StoredRun, begin: int, again: _Again) -> None:
        """Take note of what was read of a run that the index names, or that is whole.

        Raises:
            DamagedError: a batch is damaged or missing, or the sum is another.
        """
        found, failed = again.found, again.failed
        if not self._passed(run, begin, found, again.version, again.blocks):
            fault = Fault(run.position, run.base_offset, run.end_offset, OTHERS)
            raise self._checks.damaged(run, fault)
        is_broken = found.fault is not None or failed is not None
        if is_whole(run, begin, found) or (begin == run.position and is_broken):
            # A broken run has no sum that could prove it; the index has named the run.
            self._checks.trust(run, again.version)
        if failed is not None:
            raise await self._load_failed(run, found.end_offset, failed) from failed
        if found.fault is not None:
            raise self._checks.damaged(run, found.fault)

    async def _unproven(self, run: StoredRun, again: _Again) -> PenstockError:
        """The error of a damaged run of which nothing can be served, the batches before the damage
        included: the object may be another, and its index doesn't say that it isn't."""
        if again.failed is not None:
            return await self._load_failed(run, run.base_offset, again.failed)
        fault = again.found.fault
        assert fault is not None
        detail = f"{fault.detail}, and the object's index doesn't name the run"
        whole = Fault(fault.position, run.base_offset, run.end_offset, detail)
        return self._checks.damaged(run, whole)

    async def _read(
        self, run: StoredRun, begin: int, expected: int, until: int, *, is_one: bool = True
    ) -> _Again | None:
        """Read what the store has; None: the object was replaced meanwhile.

        Args:
            is_one: whether all blocks must be of one version. Otherwise none is kept in memory.

        Raises:
            DamagedError: there is no such object.
        """
        pieces = Pieces(self._checks.rules(run), expected, begin)
        end = run.position + run.length
        number = begin // self._block_bytes
        read: list[tuple[BlockKey, memoryview]] = []
        version: str | None = None
        failed: CorruptDataError | None = None
        while (
            pieces.position <= until or pieces.is_after_gap
        ) and number * self._block_bytes < end:
            start = number * self._block_bytes
            try:
                data, found = await self._checks.reads.get_directly(
                    run.object_key,
                    start,
                    min(start + self._block_bytes, run.object_bytes),
                )
            except NotFoundError as error:
                raise await self._load_failed(run, run.base_offset, error) from error
            except CorruptDataError as error:
                failed = error
                break
            block = memoryview(data)
            if is_one:
                # Blocks of two versions of an object don't fit together, and would pass for damage.
                if read and found != version:
                    return None
                version = found
                self._blocks.put(BlockKey(run.object_key, number), block, version)
            read.append((BlockKey(run.object_key, number), block))
            piece = block[max(begin, start) - start : end - start]
            await self._checks.in_pool(partial(pieces.add, piece))
            if pieces.fault is not None:
                break
            number += 1
        fault = pieces.fault
        if fault is None and failed is None and number * self._block_bytes >= end:
            fault = pieces.finish() or ends_early(run, pieces)
        checked = Checked(pieces.position, pieces.expected, pieces.batch_count, fault, pieces.sum)
        return _Again(checked, read, version, failed)


def is_whole(run: StoredRun, start: int, found: Checked) -> bool:
    """Return whether all of a run was checked and each batch was right: its sum says the rest."""
    end = run.position + run.length
    return found.fault is None and start == run.position and found.position == end
