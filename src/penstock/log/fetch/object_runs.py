"""Reading runs of segment objects through the block cache. Each batch is checked before it is
given out, and the run is proven to be the one that the state names: by its sum once all of it was
checked, else by the index of the same version of the object (`penstock.log.fetch.placed`).

`ObjectRuns.read` never waits: it gives what is in memory and checked, or the load or check that
has been started. What is not right in memory is read once more, from the store itself and not from
a peer or a cache: a bit that flipped on the way here is healed so. What is damaged there too is
an error of the partition (`penstock.log.fetch.run_checks`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from penstock.log.checking import Checked, Fault, check_batches, check_pieces
from penstock.log.fetch.block_reads import read_block
from penstock.log.fetch.blocks import Block, BlockCache, BlockKey
from penstock.log.fetch.checked import CheckedRanges
from penstock.log.fetch.placed import Proof
from penstock.log.fetch.read_again import LoadFailed, ReadAgain, is_whole
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.fetch.tail import TailRead
from penstock.log.settings import LogSettings
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.model.ids import PartitionKey
from penstock.records.batch import HEADER_BYTES, LENGTH_END
from penstock.state.rows import StoredRun
from penstock.system.tasks import take_error

_BOUNDS: Final = Struct(">qi11xi")
"""Base offset, batch length, last offset delta. Source: `penstock.records.batch`."""
_CURSORS_MAX: Final = 50_000
INLINE_BYTES: Final = 16 << 10
"""So much is checked on the event loop: at most some 0.2 ms, where a hop to the pool takes 0.1."""

Load = asyncio.Task[None]


class Cursor(NamedTuple):
    """The place where a reader goes on: the first byte of a batch, and the batch's base offset."""

    object_key: str
    position: int
    expected: int


class ObjectRuns:
    """Runs in objects whose base offsets are final. Event loop only.

    Args:
        load_failed: what to raise where the store hasn't what a run lies in.
    """

    def __init__(
        self,
        *,
        blocks: BlockCache,
        limits: LogSettings,
        checks: RunChecks,
        load_failed: LoadFailed,
    ) -> None:
        self._blocks = blocks
        self._limits = limits
        self._block_bytes = limits.block_bytes
        self._checks = checks
        self._load_failed = load_failed
        self._again = ReadAgain(
            blocks=blocks,
            block_bytes=limits.block_bytes,
            checks=checks,
            load_failed=load_failed,
            passed=self._passed,
        )
        self._checked = CheckedRanges(again_s=checks.again_s)
        blocks.on_dropped = self._forget_block
        self._under_way: dict[tuple[str, int], Load] = {}
        """Checks, by the place where they began."""
        self._cursors: OrderedDict[tuple[PartitionKey, int], Cursor] = OrderedDict()
        """Cursors by partition and offset, each at the batch that holds the offset or at an earlier
        one. A look-up that waits for a block also leaves one, so that it goes on from there,
        whatever the cache has dropped meanwhile."""
        self.check_count = 0
        """Checks that were begun."""

    def read(
        self,
        run: StoredRun,
        offset: int,
        bytes_max: int,
        *,
        first: bool,
        may_load: bool,
    ) -> TailRead | Load | None:
        """Whole batches, from the one that holds `offset` on.

        Args:
            bytes_max: stop before it is passed; but with `first` give one batch at least.
            may_load: false starts no load.

        Returns:
            The batches; the load or check to wait for; None when there is nothing within
            `bytes_max`, or nothing in memory and no load may start.
        """
        key, place = run.partition_key, run.object_key
        end = run.position + run.length
        position, expected = run.position, run.base_offset
        cursor = self._cursors.get((key, offset))
        if (
            cursor is not None
            and cursor.object_key == place
            and run.position <= cursor.position < end
        ):
            position, expected = cursor.position, cursor.expected
            whole = self._blocks.get(_oversize_key(run, position))
            if whole is not None and first:
                base, length, delta = _BOUNDS.unpack_from(whole, 0)
                if base + delta + 1 > offset and LENGTH_END + length == len(whole):
                    self._remember(run, base + delta + 1, position + len(whole))
                    return TailRead([whole], len(whole), base + delta + 1)
        if self._checks.is_doubted(run) or self._checks.reads.is_suspect(place):
            return self._examine(run, run.position, run.base_offset, end - 1) if may_load else None
        begin, begin_offset = position, expected
        start: int | None = None
        checked_end = 0
        while position < end:
            header = self._peek(place, position)
            if header is None:
                break
            base, next_offset, size = header
            following = position + size
            if (
                (base != expected and not self._may_begin(key, base, expected, next_offset))
                or size < HEADER_BYTES
                or following > end
            ):
                if start is not None:
                    break
                return self._examine(run, begin, begin_offset, position) if may_load else None
            # By its own header: the next batch may begin after a gap that compaction left.
            if start is None and next_offset <= offset:
                position, expected = following, next_offset
                continue
            taken = 0 if start is None else position - start
            if (taken or not first) and taken + size > bytes_max:
                if start is None:
                    return None
                break
            if start is None:
                # After a gap the next batch's offset is needed, too.
                needed = following if base == expected else min(following + HEADER_BYTES, end)
                if not self._is_here(place, position, needed):
                    if self._is_oversize(position, following):
                        self._put_cursor(key, offset, Cursor(place, position, expected))
                        return self._load_oversize(run, position, size, expected, may_load=may_load)
                    break
                checked_end = self._checked.end_of(place, position, self._checks.now_s())
                if following > checked_end:
                    begin, begin_offset = position, expected
                    if self._checks.is_provable(run, self._block_bytes):
                        # All of it, so that its sum proves that it is the run.
                        begin, begin_offset = run.position, run.base_offset
                        if not self._is_here(place, begin, end):
                            return self._first_missing(run, offset, begin, may_load=may_load)
                    load = self._check(run, begin, begin_offset, may_load=may_load)
                    if load is not None:
                        return load
                    checked_end = self._checked.end_of(place, position, self._checks.now_s())
                    if following > checked_end and begin < position:
                        # Damaged before: what follows may be right nevertheless.
                        load = self._check(run, position, expected, may_load=may_load)
                        if load is not None:
                            return load
                        checked_end = self._checked.end_of(place, position, self._checks.now_s())
                    if following > checked_end:
                        return None
                start = position
            elif following > checked_end:
                # A short run is checked whole when the reader comes to it.
                is_ahead = not self._checks.is_provable(run, self._block_bytes)
                if may_load and is_ahead and self._is_here(place, position, following):
                    self._check(run, position, expected, may_load=True, waits=False)
                break
            position, expected = following, next_offset
        if start is None:
            if position >= end:
                # The journal says that the offset is here: some header on the way was not right.
                return self._examine(run, begin, begin_offset, end - 1) if may_load else None
            self._put_cursor(key, offset, Cursor(place, position, expected))
            return self._first_missing(run, offset, position, may_load=may_load)
        slices = self._slices(place, start, position)
        if slices is None:
            return None
        self._remember(run, expected, position)
        return TailRead(slices, position - start, expected)

    def go_on_from(self, run: StoredRun, offset: int, position: int, expected: int) -> None:
        """Look for an offset from a batch on that begins at `position` and `expected`."""
        self._put_cursor(run.partition_key, offset, Cursor(run.object_key, position, expected))

    def _may_begin(self, key: PartitionKey, base: int, expected: int, next_offset: int) -> bool:
        """Return whether a batch may begin elsewhere than where the one before ends."""
        return base > expected and self._checks.may_lack(key, next_offset)

    # -- checking --------------------------------------------------------------------------------

    def _check(
        self,
        run: StoredRun,
        position: int,
        expected: int,
        *,
        may_load: bool,
        waits: bool = True,
    ) -> Load | None:
        """Check what is in memory from a batch's first byte on: now where it is little, else in
        the pool; the task then.

        Args:
            waits: whether a reader waits for it.
        """
        name = (run.object_key, position)
        task = self._under_way.get(name)
        if task is not None:
            return task
        held = self._held(run, position)
        version = self._blocks.version_of(run.object_key)
        pieces = _pieces(held, position, run.position + run.length, self._block_bytes)
        self.check_count += 1
        is_small = sum(map(len, pieces)) <= INLINE_BYTES
        if waits and is_small and not self._checks.needs_proof(run, self._block_bytes, version):
            found = check_pieces(pieces, self._checks.rules(run), expected, position, run)
            if found.fault is not None and self._checks.look_up(run):
                found = check_pieces(pieces, self._checks.rules(run), expected, position, run)
            if is_whole(run, position, found) or self._checks.is_proven(run, version):
                is_right = self._passed(run, position, found, version)
                has_begun = found.fault is None or found.position > position
                if (is_right and has_begun) or not may_load:
                    return None
                return self._examine(run, position, expected, position)
        if not may_load:
            return None
        return self._begin(name, self._check_in_pool(run, held, version, position, expected))

    async def _check_in_pool(
        self,
        run: StoredRun,
        held: list[tuple[BlockKey, memoryview]],
        version: str | None,
        position: int,
        expected: int,
    ) -> None:
        checks = self._checks
        if checks.needs_proof(run, self._block_bytes, version) and not (
            await self._prove(run, version, position, expected)
        ):
            return
        pieces = _pieces(held, position, run.position + run.length, self._block_bytes)
        found = await checks.in_pool(
            partial(check_pieces, pieces, checks.rules(run), expected, position, run)
        )
        if found.fault is not None and checks.look_up(run):
            rules = checks.rules(run)
            found = await checks.in_pool(
                partial(check_pieces, pieces, rules, expected, position, run)
            )
        if (
            not is_whole(run, position, found)
            and not checks.is_proven(run, version)
            and not await self._prove(run, version, position, expected)
        ):
            return
        # The blocks may have left the cache meanwhile, and others come for them.
        is_same = all(self._blocks.peek(key) is block for key, block in held)
        if is_same and not self._passed(run, position, found, version):
            await self._again.whole(run)
            return
        if found.fault is not None and found.position == position:
            await self._again.part(run, position, expected, position)

    async def _prove(
        self, run: StoredRun, version: str | None, position: int, expected: int
    ) -> bool:
        """Return whether the object's index names the run; if not, what is needed was read again
        from the store, with the index of the same version."""
        proof = await self._checks.prove(run, version)
        if proof is Proof.UNNAMED:
            await self._again.whole(run)
        elif proof is Proof.OTHER_VERSION:
            await self._again.part(run, position, expected, position)
        return proof is Proof.NAMED

    def _passed(
        self,
        run: StoredRun,
        start: int,
        found: Checked,
        version: str | None,
        read: Sequence[tuple[BlockKey, memoryview]] | None = None,
    ) -> bool:
        """Take note of what was checked; false if it shows that the run is another.

        Args:
            version: of the bytes that were checked.
            read: the blocks that were checked, where the event loop had turns meanwhile: some may
                have left the cache, and a peer's reply may have come in their place. None: the
                blocks in memory.
        """
        if not self._checks.fold(run, start, found):
            self._checks.doubt(run)
            self._checked.forget_range(run.object_key, run.position, run.position + run.length)
            return False
        if not (is_whole(run, start, found) or self._checks.is_proven(run, version)):
            return True  # right batches, perhaps of another run
        now_s = self._checks.now_s()
        if read is None:
            self._checked.add(run.object_key, start, found.position, now_s)
        else:
            for key, block in read:
                if self._blocks.peek(key) is block:
                    first = key.number * self._block_bytes
                    begin, end = max(start, first), min(found.position, first + len(block))
                    self._checked.add(run.object_key, begin, end, now_s)
        self._checks.right(run, start, found.position)
        return True

    def _examine(self, run: StoredRun, begin: int, expected: int, until: int) -> Load:
        """Something is not right at `until`, or before: read from `begin` on, from the store."""
        name = (run.object_key, begin)
        task = self._under_way.get(name)
        if task is not None:
            return task
        return self._begin(name, self._again.part(run, begin, expected, until))

    def _begin(self, name: tuple[str, int], work: Coroutine[None, None, None]) -> Load:
        async def go() -> None:
            try:
                await work
            finally:
                del self._under_way[name]

        task = self._under_way[name] = asyncio.get_running_loop().create_task(
            go(), name=f"check {name[0]} at {name[1]}"
        )
        task.add_done_callback(take_error)
        return task

    def _forget_block(self, dropped: BlockKey) -> None:
        if dropped.number >= 0:
            start = dropped.number * self._block_bytes
            self._checked.forget_range(dropped.place, start, start + self._block_bytes)

    # -- loading ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel checks under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, run: StoredRun, offset: int, start: int) -> Block:
        """The block that begins at a byte. A failure is one of the run from `offset` on."""
        try:
            return await self._read_ahead(run, start)
        except (NotFoundError, CorruptDataError) as error:
            raise await self._load_failed(run, offset, error) from error

    async def _read_ahead(self, run: StoredRun, start: int) -> Block:
        end = min(start + self._block_bytes, run.object_bytes)
        return await read_block(self._checks.reads, self._blocks, run.object_key, start, end)

    def _first_missing(
        self, run: StoredRun, offset: int, position: int, *, may_load: bool
    ) -> Load | None:
        """Start the load of the first block that the batch at `position` lacks, and of those
        after it that will be wanted."""
        place, block_bytes = run.object_key, self._block_bytes
        number = position // block_bytes
        while self._blocks.get(BlockKey(place, number)) is not None:
            number += 1
        last = (run.position + run.length - 1) // block_bytes
        if not may_load or number > last:
            return None
        load = self._blocks.load(
            BlockKey(place, number), lambda: self._read(run, offset, number * block_bytes)
        )
        for ahead in range(number + 1, min(number + self._limits.prefetch_blocks, last) + 1):
            if self._blocks.get(BlockKey(place, ahead)) is None:
                self._start_ahead(run, ahead)
        return load

    def _start_ahead(self, run: StoredRun, number: int) -> None:
        # A failure shows when the block is needed.
        self._blocks.load(
            BlockKey(run.object_key, number),
            lambda: self._read_ahead(run, number * self._block_bytes),
        )

    def _is_oversize(self, position: int, following: int) -> bool:
        """Return whether the block cache could hardly hold a batch block by block."""
        count = (following - 1) // self._block_bytes - position // self._block_bytes + 1
        return count * self._block_bytes > self._limits.block_cache_bytes // 2

    def _load_oversize(
        self, run: StoredRun, position: int, size: int, expected: int, *, may_load: bool
    ) -> Load | None:
        """Load and check one batch as a whole."""
        if not may_load:
            return None
        return self._blocks.load(
            _oversize_key(run, position),
            lambda: self._read_oversize(run, position, size, expected),
        )

    async def _read_oversize(
        self, run: StoredRun, position: int, size: int, expected: int
    ) -> Block:
        """
        Raises:
            DamagedError: it is damaged in the store too, or nothing proves that it is the run's.
            PenstockError: what the store raised.
        """
        checks, end = self._checks, position + size
        checks.look_up(run)
        fault = Fault(position, expected, run.end_offset, f"batch of {size} bytes")
        # The third time, the run that was proven: of the second, its index was of another version.
        directly = checks.reads.get_directly
        for get in (checks.reads.get_versioned, directly, directly):
            try:
                data, version = await get(run.object_key, position, end)
            except (NotFoundError, CorruptDataError) as error:
                raise await self._load_failed(run, expected, error) from error
            batch = memoryview(data)
            found = await checks.in_pool(
                partial(check_batches, batch, checks.rules(run), expected, position)
            )
            fault = found.fault or fault
            if not found.batch_count:
                if get is directly:
                    break
                continue
            if checks.is_proven(run, version) or await self._prove(
                run, version, position, expected
            ):
                return Block(batch, version)
        raise checks.damaged(run, fault)

    # -- what is in memory -----------------------------------------------------------------------

    def _remember(self, run: StoredRun, offset: int, position: int) -> None:
        """The batch at `position` begins at `offset`, if it is still the run's."""
        self._put_cursor(run.partition_key, offset, Cursor(run.object_key, position, offset))

    def _put_cursor(self, key: PartitionKey, offset: int, cursor: Cursor) -> None:
        self._cursors[key, offset] = cursor
        if len(self._cursors) > _CURSORS_MAX:
            self._cursors.popitem(last=False)

    def _peek(self, place: str, position: int) -> tuple[int, int, int] | None:
        """(base offset, offset after the last record, size in bytes) of the batch at `position`, if
        it is in memory. A plain tuple: one is made per batch."""
        number, at = divmod(position, self._block_bytes)
        block: memoryview | bytes | None = self._blocks.get(BlockKey(place, number))
        if block is None:
            return None
        if at + _BOUNDS.size > len(block):
            slices = self._slices(place, position, position + _BOUNDS.size)
            if slices is None:
                return None
            block, at = b"".join(slices), 0
            if len(block) < _BOUNDS.size:
                return None
        base_offset, length, delta = _BOUNDS.unpack_from(block, at)
        return base_offset, base_offset + delta + 1, LENGTH_END + length

    def _is_here(self, place: str, start: int, end: int) -> bool:
        get = self._blocks.get
        return all(
            get(BlockKey(place, number)) is not None
            for number in range(start // self._block_bytes, (end - 1) // self._block_bytes + 1)
        )

    def _held(self, run: StoredRun, position: int) -> list[tuple[BlockKey, memoryview]]:
        """The blocks in memory from `position` on without a gap: those of a batch that begins
        there, and one more."""
        held = []
        number = position // self._block_bytes
        header = self._peek(run.object_key, position)
        size = 0 if header is None else header[2]
        last = (min(position + size, run.position + run.length) - 1) // self._block_bytes + 1
        while number <= last:
            key = BlockKey(run.object_key, number)
            block = self._blocks.get(key)
            if block is None:
                break
            held.append((key, block))
            number += 1
        return held

    def _slices(self, place: str, start: int, end: int) -> list[memoryview] | None:
        slices = []
        while start < end:
            number, at = divmod(start, self._block_bytes)
            block = self._blocks.get(BlockKey(place, number))
            if block is None or at >= len(block):
                return None
            part = block[at : at + end - start]
            slices.append(part)
            start += len(part)
        return slices


def _pieces(
    held: list[tuple[BlockKey, memoryview]], start: int, end: int, block_bytes: int
) -> list[memoryview]:
    """Return what of the blocks lies in [start, end)."""
    pieces = []
    for key, block in held:
        first = key.number * block_bytes
        pieces.append(block[max(0, start - first) : max(0, end - first)])
    return pieces


def _oversize_key(run: StoredRun, position: int) -> BlockKey:
    return BlockKey(run.object_key, -1 - position)  # no aligned block has a negative number
