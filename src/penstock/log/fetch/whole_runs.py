"""Runs that are read, checked and kept whole: those whose batches still carry producers' offsets.

They lie in a WAL, or in a raw object. The final offsets are written into a copy, which is one
block of the block cache. Of a damaged run what comes before the damage is kept and served.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Final

from penstock.log.checking import Fault, check_and_label
from penstock.log.fetch.blocks import Block, BlockCache, BlockKey
from penstock.log.fetch.object_runs import Load
from penstock.log.fetch.read_again import LoadFailed
from penstock.log.fetch.tail import TailRead
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.model.ids import PartitionKey
from penstock.records.batch import LENGTH_END
from penstock.state.rows import StoredRun
from penstock.wal import WalReader

_BOUNDS: Final = Struct(">qi11xi")
"""Base offset, batch length, last offset delta. Source: `penstock.records.batch`."""
_CURSORS_MAX: Final = 50_000

ReadRun = Callable[[StoredRun], Awaitable[memoryview]]
"""Gives a run's bytes, checked, with final offsets.

Raises:
    BadRunError: the bytes are not the batches that the journal named.
    RetryableError: the run has moved, or its place is away.
"""


class BadRunError(CorruptDataError):
    """A run's bytes are not the batches that the journal named.

    `fault`: its position counts from the first byte of the object or WAL file. `right`: the
    batches before it, with final offsets.
    """

    def __init__(self, subject: str, fault: Fault, right: memoryview) -> None:
        super().__init__(
            "read run", subject, f"at byte {fault.position}, offset {fault.offset}: {fault.detail}"
        )
        self.fault = fault
        self.right = right


def checked_run(data: memoryview, run: StoredRun, seed: int | None, *, subject: str) -> memoryview:
    """A whole run as producers sent it, checked, with final offsets written into it.

    Args:
        data: writable; the run's bytes.
        seed: of the partition's sums; None: the run's isn't compared.
        subject: what to name in an error.

    Raises:
        BadRunError: the bytes are not the batches that the journal named.
    """
    fault = check_and_label(data, run, seed)
    if fault is None:
        return data
    right = data[: fault.position]
    fault = fault._replace(position=run.position + fault.position)
    raise BadRunError(subject, fault, right)


def read_wal_run(wal: WalReader, run: StoredRun, seed: int | None) -> memoryview:
    """A run of the WAL, checked, with final base offsets. Blocking: a pool thread's work.

    Args:
        seed: of the partition's sums; None: the run's isn't compared.

    Raises:
        RetryableError: the file was recycled: the run lies in a segment object by now.
        BadRunError: the bytes are not the batches that the journal named.
        CorruptDataError: the file is shorter than the run.
    """
    data = memoryview(bytearray(wal.read(run.file_generation, run.position, run.length)))
    return checked_run(
        data, run, seed, subject=f"WAL generation {run.generation} at {run.position}"
    )


class WholeRuns:
    """Reads whole runs out of the block cache. Event loop only.

    Args:
        load_failed: what to raise where a run's place hasn't what the state says.
    """

    def __init__(self, *, blocks: BlockCache, load_failed: LoadFailed) -> None:
        self._blocks = blocks
        self._load_failed = load_failed
        self._cursors: OrderedDict[tuple[PartitionKey, int], tuple[BlockKey, int]] = OrderedDict()
        """Where a reader goes on, (partition, offset) -> (block, byte position), since a run may
        have thousands of batches."""

    def read(
        self,
        run: StoredRun,
        offset: int,
        bytes_max: int,
        load: ReadRun,
        *,
        first: bool,
        may_load: bool,
    ) -> TailRead | Load | None:
        """Whole batches, from the one that holds `offset` on; see `ObjectRuns.read`.

        Args:
            load: reads the run where it isn't in memory.
        """
        name = whole_run_key(run)
        block = self._blocks.get(name)
        if block is None:
            return self._load(run, load) if may_load else None
        key = run.partition_key
        cursor = self._cursors.get((key, offset))
        begin = cursor[1] if cursor is not None and cursor[0] == name else 0
        found = _read_in_block(block, offset, bytes_max, first=first, begin=begin)
        if found is None:
            # Only the beginning of a damaged run is kept.
            is_cut = first and len(block) < run.length
            return self._load(run, load) if is_cut and may_load else None
        read, position = found
        if position < len(block):
            self._cursors[key, read.end_offset] = (name, position)
            if len(self._cursors) > _CURSORS_MAX:
                self._cursors.popitem(last=False)
        return read

    def _load(self, run: StoredRun, load: ReadRun) -> Load:
        async def read() -> Block:
            try:
                # Of no version: each of them is compared with its sum whole.
                return Block(await load(run), None)
            except BadRunError as error:
                if len(error.right):
                    self._blocks.put(whole_run_key(run), error.right)
                raise await self._load_failed(run, error.fault.offset, error) from error
            except (CorruptDataError, NotFoundError) as error:
                raise await self._load_failed(run, run.base_offset, error) from error

        return self._blocks.load(whole_run_key(run), read)


def whole_run_key(run: StoredRun) -> BlockKey:
    """Return the name of a run in the block cache. A raw object is named by one entry only, so that
    its runs' places tell their offsets."""
    if run.generation:
        return BlockKey(f"wal/{run.generation}", run.position)
    return BlockKey(f"raw/{run.object_key}", run.position)


def _read_in_block(
    block: memoryview, offset: int, bytes_max: int, *, first: bool, begin: int
) -> tuple[TailRead, int] | None:
    """Whole batches, and the position after the last. `begin`: of a batch that holds the offset or
    comes before it."""
    unpack = _BOUNDS.unpack_from
    position, end = begin, len(block)
    start: int | None = None
    end_offset = offset
    while position < end:
        base_offset, length, delta = unpack(block, position)
        size = LENGTH_END + length
        next_base = base_offset + delta + 1
        if next_base > offset:
            if start is None:
                start = position
            if (position > start or not first) and position + size - start > bytes_max:
                break
            end_offset = next_base
        position += size
    if start is None or position == start:
        return None
    return TailRead([block[start:position]], position - start, end_offset), position
