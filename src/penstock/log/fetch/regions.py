"""Reading runs of local segment objects as regions of files, which are sent without being read.

`FileRuns.read` never waits: it walks the headers of batches in small reads that the page cache
answers, and names the stretch of file that holds them. What isn't in the page cache is brought
there by the pool first, since a `sendfile` of it would hold up the event loop for the disk.
Not for objects whose base offsets are patched when they are read, nor for stores elsewhere:
those go through `penstock.log.fetch.blocks`.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from penstock.metadata.rows import StoredRun
from penstock.model.ids import PartitionKey
from penstock.ports.objects import FileStore, RegionFile

_HEADER: Final = Struct(">qi11xi")
"""Base offset, batch length, last offset delta. Source: `penstock.records.batch`."""
_LENGTH_END: Final = 12
_HEADER_BYTES: Final = _HEADER.size
_BATCH_BYTES_MIN: Final = 61
_SMALL_BATCH_BYTES: Final = 4096
_CHUNK_BYTES: Final = 32 << 10
"""Small batches are walked in chunks: reading 14 KB costs what a call costs."""
_PROBE_BYTES: Final = 128 << 10
"""One byte of each such stretch is asked for: pages come and go in about what is read ahead."""
_COPIED_BYTES_MAX: Final = 16 << 10
"""Up to this a copy costs less than the calls that sending from the file needs."""
_SKIPPED_MAX: Final = 10_000
"""Batches before the wanted one that are walked at a time: some 5 ms, in which nobody is served."""
_CURSORS_MAX: Final = 50_000
_WARMED_MAX: Final = 1000


class FileRegion:
    """Bytes [position, position + length) of a file. Holding it keeps the file open."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: RegionFile, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length


Part = memoryview | FileRegion


@dataclass(slots=True)
class PartsRead:
    """As `TailRead`; some of the parts may be regions of files."""

    parts: list[Part]
    length: int
    end_offset: int


class _Walked(NamedTuple):
    """Where the wanted batches lie, [start, end) in bytes, and what is not in memory.

    `start` is None where there is none; `cold` is the bounds of the batch at which the walk
    stopped since it isn't in memory, of its header where that is all that is known, and empty
    where the walk was long enough.
    """

    start: int | None
    end: int
    end_offset: int
    cold: tuple[int, int] | None


class Unsendable(Exception):  # noqa: N818 - no error: the run is read in another way
    """A run that is not to be had as regions."""


class FileRuns:
    """Regions of runs by offset. Event loop only.

    Args:
        stretch_bytes: how much is brought into memory at a time.
    """

    def __init__(self, store: FileStore, *, stretch_bytes: int) -> None:
        self._store = store
        self._stretch_bytes = stretch_bytes
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))
        self._probe = memoryview(bytearray(1))
        self._cursors: OrderedDict[tuple[PartitionKey, int], tuple[str, int]] = OrderedDict()
        """Where a reader goes on: (partition, offset) -> (object, byte position)."""
        self._loads: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._warmed: OrderedDict[tuple[str, int], int] = OrderedDict()
        """What was brought into memory and has not been looked at since: (object, start) -> end.
        It is sent even if it has left again: under such pressure waiting might never end."""
        self._works = True
        self.load_count = 0

    def read(
        self,
        key: PartitionKey,
        run: StoredRun,
        offset: int,
        bytes_max: int,
        *,
        first: bool,
        may_load: bool,
    ) -> "PartsRead | asyncio.Task[None] | None":
        """Whole batches of a run in a segment object, from the one that holds `offset` on.

        Args:
            bytes_max: stop before it is passed; but with `first` give one batch at least.
            may_load: false starts no load.

        Returns:
            The batches; the load to wait for; None when there is nothing within `bytes_max`, or
            nothing in memory and no load may start.

        Raises:
            Unsendable: read it as blocks.
        """
        if not self._works:
            raise Unsendable
        file = self._store.open_file(run.object_key)
        position = run.position
        cursor = self._cursors.get((key, offset))
        if (
            cursor is not None
            and cursor[0] == run.object_key
            and run.position <= cursor[1] < run.position + run.length
        ):
            position = cursor[1]
        if file is None:
            if not self._store.may_open():
                raise Unsendable
            cold: tuple[int, int] | None = (position, position)
        else:
            found = self._walk(file, run, position, offset, bytes_max, first=first)
            if found.start is not None:
                if found.end < run.position + run.length:
                    self._remember(key, found.end_offset, run.object_key, found.end)
                length = found.end - found.start
                part: Part = (
                    FileRegion(file, found.start, length)
                    if length > _COPIED_BYTES_MAX
                    else memoryview(file.read_at(found.start, length))
                )
                return PartsRead([part], length, found.end_offset)
            cold = found.cold
        if cold is None or not may_load:
            return None
        self._remember(key, offset, run.object_key, cold[0])
        return self.load(run, *cold)

    def load(self, run: StoredRun, start: int, end: int) -> asyncio.Task[None]:
        """Bring a stretch of the run from `start` on into memory, up to `end` at least."""
        name = (run.object_key, start)
        task = self._loads.get(name)
        if task is None:
            self.load_count += 1
            end = max(end, min(start + self._stretch_bytes, run.position + run.length))
            task = self._loads[name] = asyncio.get_running_loop().create_task(
                self._load(run.object_key, start, end), name=f"warm {run.object_key} at {start}"
            )
            task.add_done_callback(_retrieve)
        return task

    async def close(self) -> None:
        """Cancel loads under way."""
        loads = list(self._loads.values())
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    async def _load(self, object_key: str, start: int, end: int) -> None:
        try:
            if not await self._store.warm(object_key, start, end):
                # One folder lies on one file system: what it can't do here it can't elsewhere.
                self._works = False
            self._warmed[object_key, start] = end
            if len(self._warmed) > _WARMED_MAX:
                self._warmed.popitem(last=False)
        finally:
            del self._loads[object_key, start]

    def _remember(self, key: PartitionKey, offset: int, object_key: str, position: int) -> None:
        self._cursors[key, offset] = (object_key, position)
        if len(self._cursors) > _CURSORS_MAX:
            self._cursors.popitem(last=False)

    def _walk(
        self,
        file: RegionFile,
        run: StoredRun,
        position: int,
        offset: int,
        bytes_max: int,
        *,
        first: bool,
    ) -> _Walked:
        unpack, buffer = _HEADER.unpack_from, self._buffer
        end = run.position + run.length
        warm_end = self._warmed.pop((run.object_key, position), position)
        # What of the file is in `buffer`, and up to where it is known to be in memory.
        buffer_start = buffer_end = position
        known_end = warm_end
        wanted = _HEADER_BYTES
        start: int | None = None
        taken_end, end_offset = position, offset
        cold: tuple[int, int] | None = None
        skipped = 0
        while position < end:
            if position + _HEADER_BYTES > buffer_end:
                read = file.peek(position, buffer[: min(wanted, end - position)])
                if read < _HEADER_BYTES:
                    if position + _HEADER_BYTES > warm_end:
                        cold = (position, min(position + _HEADER_BYTES, end))
                        break
                    buffer[:_HEADER_BYTES] = file.read_at(position, _HEADER_BYTES)
                    read = _HEADER_BYTES
                buffer_start, buffer_end = position, position + read
                known_end = max(known_end, buffer_end)
            base_offset, length, delta = unpack(buffer, position - buffer_start)
            size = _LENGTH_END + length
            following = position + size
            if size < _BATCH_BYTES_MIN or following > end:
                raise Unsendable  # damaged: whoever reads it as blocks says so
            wanted = _CHUNK_BYTES if size < _SMALL_BATCH_BYTES else _HEADER_BYTES
            next_offset = base_offset + delta + 1
            if next_offset > offset:
                if start is None:
                    if not first and size > bytes_max:
                        break
                elif following - start > bytes_max:
                    break
                if following > known_end:
                    known_end = self._known_end(file, max(known_end, position), following, end)
                    if following > known_end:
                        cold = (position, following)
                        break
                if start is None:
                    start = position
                taken_end, end_offset = following, next_offset
            else:
                skipped += 1
                if skipped >= _SKIPPED_MAX:
                    # Goes on from here when the pool has been asked for what lies there.
                    cold = (following, following)
                    break
            position = following
        return _Walked(start, taken_end, end_offset, cold)

    def _known_end(self, file: RegionFile, start: int, needed: int, end: int) -> int:
        """Up to where the file is in memory, looking from `start` until `needed` is passed."""
        peek, probe = file.peek, self._probe
        while start < needed:
            at = min(start + _PROBE_BYTES, end) - 1
            if not peek(at, probe):
                # What lies behind the needed bytes may be missing.
                return needed if at >= needed and peek(needed - 1, probe) else start
            start = at + 1
        return start


def _retrieve(task: asyncio.Task[None]) -> None:
    # One that was started ahead has no waiter; its error shows when the bytes are needed.
    if not task.cancelled():
        task.exception()
