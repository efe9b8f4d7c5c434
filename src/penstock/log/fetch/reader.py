"""Reading one partition: tail cache, then the WAL, then blocks of segment objects.

`LogReader.read` never waits: it gives what is in memory, or a `Missing` that names the load which
has been started. So a fetch of many partitions answers with what is there and finds the rest
next time, and only a fetch that has nothing at all waits for a disk.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

from penstock.log.fetch.blocks import BlockCache, BlockKey
from penstock.log.fetch.raw_runs import RawRuns, raw_run_key
from penstock.log.fetch.regions import FileRuns, Part, PartsRead, Unsendable
from penstock.log.fetch.remote_wal import RemoteRuns
from penstock.log.fetch.tail import TailCache, TailRead
from penstock.log.fetch.windows import RunWindows
from penstock.log.limits import LogLimits
from penstock.metadata.queries import Queries, StoredRun
from penstock.model.errors import NotFoundError, PenstockError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.ports.objects import FileStore, ObjectStore
from penstock.records.batch import LENGTH_END, batch_bounds, patch_run
from penstock.wal import WalReader

_BOUNDS: Final = Struct(">qi11xi")
"""Base offset, batch length, last offset delta. Source: `penstock.records.batch`."""
_INT32: Final = Struct(">i")
_WINDOW_RUNS: Final = 64
_CURSORS_MAX: Final = 50_000


class Behind(Protocol):
    """A database that may lack, for milliseconds, what was appended."""

    @property
    def is_behind(self) -> bool:
        """Whether it does."""
        ...

    async def flush(self) -> None:
        """Let it have all that was appended before the call."""
        ...


@dataclass(slots=True, frozen=True)
class Missing:
    """Nothing in memory; `load` is under way. Read again when it is done."""

    load: asyncio.Task[None]


class LogReader:
    """Reads whole batches by partition and offset. Event loop only."""

    def __init__(
        self,
        *,
        queries: Queries,
        tail: TailCache,
        blocks: BlockCache,
        wals: Mapping[int, WalReader],
        store: ObjectStore,
        pool: Executor,
        limits: LogLimits,
        remote_runs: RemoteRuns | None = None,
        before_stored: Callable[[], None] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """
        Args:
            wals: of the own WALs, by key (0: the embedded server's); looked at anew at each read.
            remote_runs: reads runs of other WALs.
            before_stored: called before anything but the tail cache is served; raises if it must
                not be.
            behind: whether the queries may lack what was appended; None: they never do.
        """
        self._queries = queries
        self._tail = tail
        self._blocks = blocks
        self._wals = wals
        self._store = store
        self._pool = pool
        self._limits = limits
        self._windows = RunWindows()
        self._raw_runs = RawRuns(blocks=blocks, store=store, pool=pool, limits=limits)
        self._remote_runs = remote_runs
        self._before_stored = before_stored
        self._behind = behind
        self._flush: asyncio.Task[None] | None = None
        self._away: dict[PartitionKey, PenstockError] = {}
        """What the last load of a partition from another agent's WAL failed with, until its next
        read has raised it."""
        self._files = (
            FileRuns(store, stretch_bytes=limits.block_bytes)
            if isinstance(store, FileStore)
            else None
        )
        self._may_load = True
        self._cursors: OrderedDict[tuple[PartitionKey, int], tuple[str, int]] = OrderedDict()
        """Where a reader goes on: (partition, offset) -> (object, byte position), of the batch that
        holds the offset or of an earlier one. Also set where a look-up has to wait for a block, so
        that it doesn't begin anew, whatever the cache has dropped meanwhile."""

    def read(
        self, key: PartitionKey, offset: int, bytes_max: int, *, may_load: bool = True
    ) -> TailRead | Missing | None:
        """Whole batches from the one that holds `offset` on, at least one, from memory.

        Args:
            offset: at or after the log start and before the high watermark.
            bytes_max: stop before it is passed, but give at least one batch.
            may_load: false starts no load: None then also means that it isn't in memory.

        Returns:
            The batches; Missing when they must be loaded first; None when the state names no
            run with that offset (it was trimmed just now).

        Raises:
            RetryableError: stored data must not be served now, or these records lie in the WAL
                of an agent that is away.
        """
        cached = self._tail.read(key, offset, bytes_max)
        if cached is not None:
            return cached
        self._check_servable(key)
        self._may_load = may_load
        views: list[memoryview] = []
        length = 0
        while True:
            run = self._locate(key, offset, query=not views)
            if run is None:
                if not views and may_load and self._is_behind():
                    return Missing(self._start_flush())
                break
            found = self._read_run(key, run, offset, bytes_max - length, first=not views)
            if isinstance(found, Missing):
                if not views:
                    return found
                break
            if found is None:
                break
            views += found.views
            length += found.length
            offset = found.end_offset
            if length >= bytes_max or offset < run.end_offset:
                break
        return TailRead(views, length, offset) if views else None

    def read_parts(
        self, key: PartitionKey, offset: int, bytes_max: int, *, may_load: bool = True
    ) -> TailRead | PartsRead | Missing | None:
        """As `read`; what lies in local files is named rather than brought here."""
        files = self._files
        if files is None:
            return self.read(key, offset, bytes_max, may_load=may_load)
        cached = self._tail.read(key, offset, bytes_max)
        if cached is not None:
            return cached
        self._check_servable(key)
        self._may_load = may_load
        parts: list[Part] = []
        length = 0
        while True:
            run = self._locate(key, offset, query=not parts)
            if run is None:
                if not parts and may_load and self._is_behind():
                    return Missing(self._start_flush())
                break
            found = self._read_run_parts(files, key, run, offset, bytes_max - length, not parts)
            if isinstance(found, Missing) and not parts:
                return found
            if found is None or isinstance(found, Missing):
                break
            parts += found.views if isinstance(found, TailRead) else found.parts
            length += found.length
            offset = found.end_offset
            if length >= bytes_max or offset < run.end_offset:
                break
        return PartsRead(parts, length, offset) if parts else None

    def _read_run_parts(
        self,
        files: FileRuns,
        key: PartitionKey,
        run: StoredRun,
        offset: int,
        bytes_max: int,
        first: bool,  # noqa: FBT001 - private
    ) -> TailRead | PartsRead | Missing | None:
        if not run.generation and not run.raw:
            try:
                found = files.read(
                    key, run, offset, bytes_max, first=first, may_load=self._may_load
                )
            except Unsendable:
                pass
            else:
                if not isinstance(found, asyncio.Task):
                    return found
                following = self._windows.find(key, run.end_offset)
                if following is not None and not (following.generation or following.raw):
                    files.load(following, following.position, following.position)
                return Missing(found)
        return self._read_run(key, run, offset, bytes_max, first=first)

    async def close(self) -> None:
        """Cancel loads under way."""
        if self._files is not None:
            await self._files.close()

    async def read_loaded(self, key: PartitionKey, offset: int, bytes_max: int) -> TailRead | None:
        """As `read`, waiting for what must be loaded. Raises: what the load raised."""
        for _ in range(1000):
            found = self.read(key, offset, bytes_max)  # raises what befell the last load elsewhere
            if not isinstance(found, Missing):
                return found
            try:
                await asyncio.shield(found.load)
            except (NotFoundError, RetryableError):
                # The run was moved between the look-up and the read; look it up again.
                self.forget_places(key)
        raise RetryableError("read", f"partition key {key}", f"offset {offset} keeps moving")

    def forget_places(self, key: PartitionKey) -> None:
        """Runs of this partition lie elsewhere now, or are gone."""
        self._windows.forget(key)

    def forget_all_places(self) -> None:
        """Any run may lie elsewhere now."""
        self._windows = RunWindows()

    def locate(self, key: PartitionKey, offset: int) -> StoredRun | None:
        """The run that holds `offset`, else the next one after it."""
        return self._locate(key, offset, query=True)

    # -- a database that is behind what was appended ---------------------------------------------

    def _is_behind(self) -> bool:
        return self._behind is not None and self._behind.is_behind

    def _start_flush(self) -> asyncio.Task[None]:
        """One for all that find something missing meanwhile."""
        assert self._behind is not None
        if self._flush is None or self._flush.done():
            self._flush = asyncio.get_running_loop().create_task(self._behind.flush())
        return self._flush

    # -- helpers -------------------------------------------------------------------------------

    def _locate(self, key: PartitionKey, offset: int, *, query: bool) -> StoredRun | None:
        known = self._windows.find(key, offset)
        if known is not None or not query:
            return known
        window = self._queries.runs_from(key, offset, limit=_WINDOW_RUNS)
        self._windows.put(key, window)
        return window[0] if window else None

    def _read_run(
        self, key: PartitionKey, run: StoredRun, offset: int, bytes_max: int, *, first: bool
    ) -> TailRead | Missing | None:
        if run.generation:
            return self._read_wal_run(run, offset, bytes_max, first=first)
        if run.raw:
            return self._read_raw_run(run, offset, bytes_max, first=first)
        cursor = self._cursors.get((key, offset))
        position = run.position
        if cursor is not None and _lies_in(run, cursor):
            position = cursor[1]
            whole = self._blocks.get(_oversize_key(run, position))
            if whole is not None and first:
                found = _read_in_block(whole, offset, bytes_max, first=True)
                if found is not None:
                    return found[0]
        return self._walk(
            key,
            run,
            position,
            offset,
            bytes_max,
            first=first,
            block_bytes=self._limits.block_bytes,
            load=lambda number: self._load_block(run, number),
            place=run.object_key,
            end=run.position + run.length,
        )

    def _read_wal_run(
        self, run: StoredRun, offset: int, bytes_max: int, *, first: bool
    ) -> TailRead | Missing | None:
        place = f"wal/{run.generation}"

        def load(_: int) -> Missing | None:
            if not self._may_load:
                return None
            return Missing(
                self._blocks.load(BlockKey(place, run.position), self._wal_run_reader(run))
            )

        # The whole run is one block, with final offsets, and positions count from its start.
        block = self._blocks.get(BlockKey(place, run.position))
        if block is None:
            return load(0)
        return self._read_whole(run, place, block, offset, bytes_max, first=first)

    def _read_whole(
        self,
        run: StoredRun,
        place: str,
        block: memoryview,
        offset: int,
        bytes_max: int,
        *,
        first: bool,
    ) -> TailRead | None:
        """Of a run that is one block: on from where a read of it ended, since a run may have
        thousands of batches."""
        place = f"{place}@{run.position}"
        cursor = self._cursors.get((run.partition_key, offset))
        begin = cursor[1] if cursor is not None and cursor[0] == place else 0
        found = _read_in_block(block, offset, bytes_max, first=first, begin=begin)
        if found is None:
            return None
        read, position = found
        if position < len(block):
            self._remember(run.partition_key, read.end_offset, place, position)
        return read

    def _wal_run_reader(self, run: StoredRun) -> Callable[[], Awaitable[memoryview]]:
        async def read() -> memoryview:
            wal = self._wals.get(run.wal_key)
            if wal is None:
                return await self._read_remote(self._remote_runs, run)
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, read_wal_run, wal, run
            )

        return read

    async def _read_remote(self, remote: RemoteRuns | None, run: StoredRun) -> memoryview:
        key = run.partition_key
        try:
            if remote is None:
                raise RetryableError(
                    "read WAL", f"WAL {run.wal_key}", "another agent's, and no way leads there"
                )
            return await remote.read(run)
        except PenstockError as error:
            # It may lie in an object by now: then whoever asks again finds it there.
            found = self._queries.runs_from(key, run.base_offset, limit=1)
            if found and found[0].generation == run.generation:
                self._away[key] = error
            raise

    def _read_raw_run(
        self, run: StoredRun, offset: int, bytes_max: int, *, first: bool
    ) -> TailRead | Missing | None:
        block = self._blocks.get(raw_run_key(run))
        if block is None:
            return Missing(self._raw_runs.load(run)) if self._may_load else None
        return self._read_whole(run, run.object_key, block, offset, bytes_max, first=first)

    def _check_servable(self, key: PartitionKey) -> None:
        if self._before_stored is not None:
            self._before_stored()
        if self._away:
            error = self._away.pop(key, None)
            if error is not None:
                raise error

    def _load_block(self, run: StoredRun, number: int) -> Missing | None:
        if not self._may_load:
            return None
        missing = Missing(self._start_load(run, number))
        last = (run.position + run.length - 1) // self._limits.block_bytes
        for ahead in range(number + 1, min(number + self._limits.prefetch_blocks, last) + 1):
            if self._blocks.get(BlockKey(run.object_key, ahead)) is None:
                self._start_load(run, ahead)
        return missing

    def _start_load(self, run: StoredRun, number: int) -> asyncio.Task[None]:
        start = number * self._limits.block_bytes
        end = min(start + self._limits.block_bytes, run.object_bytes)

        async def read() -> memoryview:
            return memoryview(await self._store.get_range(run.object_key, start, end))

        return self._blocks.load(BlockKey(run.object_key, number), read)

    def _walk(
        self,
        key: PartitionKey,
        run: StoredRun,
        position: int,
        offset: int,
        bytes_max: int,
        *,
        first: bool,
        block_bytes: int,
        load: Callable[[int], Missing | None],
        place: str,
        end: int,
    ) -> TailRead | Missing | None:
        """Whole batches of one run in an object, from the one that holds `offset` on."""
        start: int | None = None
        last_position = position
        while position < end:
            header = self._peek(place, position, block_bytes)
            if header is None:
                break
            next_offset, size = header
            following = position + size
            # By its own header: the next batch may begin behind a gap that compaction left.
            if start is None and next_offset <= offset:
                position = following
                continue
            taken = 0 if start is None else position - start
            if (taken or not first) and taken + size > bytes_max:
                if start is None:
                    return None
                break
            if not self._is_here(place, position, following, block_bytes):
                blocks = (following - 1) // block_bytes - position // block_bytes + 1
                if start is None and blocks * block_bytes > self._limits.block_cache_bytes // 2:
                    self._remember(key, offset, place, position)
                    return self._load_oversize(run, position, size)
                break
            if start is None:
                start = position
            last_position = position
            position = following
        if start is None:
            if position >= end:
                return None
            self._remember(key, offset, place, position)
            return self._first_missing(place, position, run, block_bytes, load)
        return self._finish(key, place, start, position, last_position, block_bytes)

    def _load_oversize(self, run: StoredRun, position: int, size: int) -> Missing | None:
        """Load as a whole one batch that the block cache could hardly hold block by block."""
        if not self._may_load:
            return None

        async def read() -> memoryview:
            return memoryview(
                await self._store.get_range(run.object_key, position, position + size)
            )

        return Missing(self._blocks.load(_oversize_key(run, position), read))

    def _remember(self, key: PartitionKey, offset: int, place: str, position: int) -> None:
        self._cursors[key, offset] = (place, position)
        if len(self._cursors) > _CURSORS_MAX:
            self._cursors.popitem(last=False)

    def _finish(
        self,
        key: PartitionKey,
        place: str,
        start: int,
        position: int,
        last_position: int,
        block_bytes: int,
    ) -> TailRead:
        header = self._peek(place, last_position, block_bytes)
        assert header is not None
        end_offset = header[0]
        self._remember(key, end_offset, place, position)
        return TailRead(
            self._slices(place, start, position, block_bytes), position - start, end_offset
        )

    def _first_missing(
        self,
        place: str,
        position: int,
        run: StoredRun,
        block_bytes: int,
        load: Callable[[int], Missing | None],
    ) -> Missing | None:
        """Start the load of the first block that the batch at `position` lacks."""
        number = position // block_bytes
        while self._blocks.get(BlockKey(place, number)) is not None:
            number += 1
        if number * block_bytes >= run.object_bytes:
            return None  # cannot be: the object ends before its run does; `read` finds nothing
        return load(number)

    def _peek(self, place: str, position: int, block_bytes: int) -> tuple[int, int] | None:
        """(offset after the last record, size in bytes) of the batch at `position`, if known."""
        number, at = divmod(position, block_bytes)
        block: memoryview | bytes | None = self._blocks.get(BlockKey(place, number))
        if block is None:
            return None
        if at + _BOUNDS.size > len(block):
            block, at = self._bytes_at(place, position, _BOUNDS.size, block_bytes), 0
            if block is None:
                return None
        base_offset, length, delta = _BOUNDS.unpack_from(block, at)
        return base_offset + delta + 1, LENGTH_END + length

    def _bytes_at(self, place: str, position: int, length: int, block_bytes: int) -> bytes | None:
        if not self._is_here(place, position, position + length, block_bytes):
            return None
        return b"".join(self._slices(place, position, position + length, block_bytes))

    def _is_here(self, place: str, start: int, end: int, block_bytes: int) -> bool:
        get = self._blocks.get
        return all(
            get(BlockKey(place, number)) is not None
            for number in range(start // block_bytes, (end - 1) // block_bytes + 1)
        )

    def _slices(self, place: str, start: int, end: int, block_bytes: int) -> list[memoryview]:
        slices = []
        while start < end:
            number, at = divmod(start, block_bytes)
            block = self._blocks.get(BlockKey(place, number))
            assert block is not None
            part = block[at : at + end - start]
            slices.append(part)
            start += len(part)
        return slices


def read_wal_run(wal: WalReader, run: StoredRun) -> memoryview:
    """A run of the WAL with final base offsets. Blocking: a pool thread's work.

    Raises:
        RetryableError: the file was recycled: the run lies in a segment object by now.
        CorruptDataError: the bytes are not the batches that the journal named.
    """
    data = bytearray(wal.read(run.file_generation, run.position, run.length))
    view = memoryview(data)
    patch_run(
        view,
        run.base_offset,
        run.leader_epoch,
        subject=f"WAL generation {run.generation} at {run.position}",
    )
    return view


def _read_in_block(
    block: memoryview, offset: int, bytes_max: int, *, first: bool, begin: int = 0
) -> tuple[TailRead, int] | None:
    """Whole batches, and the position behind the last. `begin`: of a batch that holds the offset or
    comes before it."""
    position, end = begin, len(block)
    start: int | None = None
    end_offset = offset
    while position < end:
        base_offset, size = batch_bounds(block, position)
        next_base = base_offset + _INT32.unpack_from(block, position + 23)[0] + 1
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


def _lies_in(run: StoredRun, cursor: tuple[str, int]) -> bool:
    """Whether a place that was remembered is one of this run: what was replaced, or where another
    run of the same object ended, is not."""
    place, position = cursor
    return place == run.object_key and run.position <= position < run.position + run.length


def _oversize_key(run: StoredRun, position: int) -> BlockKey:
    return BlockKey(run.object_key, -1 - position)  # no aligned block has a negative number
