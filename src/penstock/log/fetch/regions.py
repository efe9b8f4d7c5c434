"""Reading runs of local segment objects as regions of files, which are sent without being read.

`FileRuns.read` never waits: it walks the headers of batches in small reads that the page cache
answers, and names the stretch of file that holds them. What isn't in the page cache is brought
there by the pool first, since a `sendfile` of it would hold up the event loop for the disk; and
the pool checks the batches there, once for as long as the file is the same one, or for an hour.
Not for objects whose base offsets are patched when they are read, nor for stores elsewhere, nor
for what was found damaged: those are read by `penstock.log.fetch.object_runs`.
"""

import asyncio
import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from penstock.log.checking import AfterGap, Checked, Fault, Rules, check_batches
from penstock.log.fetch.checked import CheckedRanges
from penstock.log.fetch.placed import Proof
from penstock.log.fetch.read_again import is_whole
from penstock.log.fetch.run_checks import KNOWN_S, RunChecks
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.model.ids import PartitionKey
from penstock.ports.objects import FileStore, RegionFile
from penstock.records.batch import HEADER_BYTES, LENGTH_END, batch_bounds
from penstock.records.sums import SUM_MASK
from penstock.state.rows import StoredRun
from penstock.system.heard import Cause, heard
from penstock.system.tasks import take_error

logger = logging.getLogger(__name__)

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
"""Batches before the wanted one that are walked at a time: some 5 ms, in which no request is
served."""
_CURSORS_MAX: Final = 50_000
_WARMED_MAX: Final = 1000
_CHECKED_BYTES: Final = 512 << 10
"""The bytes that are read at a time to be checked, which should stay in the processor's cache."""
_LOOKED_S: Final = 1.0
"""How long a file is taken to be what it was: looking costs a call of the system."""
_LOOKS_MAX: Final = 1000


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
    """Parts that were read, as in `TailRead`; some of the parts may be regions of files."""

    parts: list[Part]
    length: int
    end_offset: int


class _Walked(NamedTuple):
    """The bytes [start, end) of the wanted batches, and what is not in memory.

    `start` is None if there are none; `cold` is the bounds of the batch at which the walk
    stopped since it isn't in memory or isn't checked, of its header where that is all that is
    known, and empty where the walk was long enough. `expected`: the offset at which that batch
    begins. `ahead`: the walk stopped after batches that it found, at one that isn't checked.
    """

    start: int | None
    end: int
    end_offset: int
    cold: tuple[int, int] | None
    expected: int
    ahead: bool


class Unsendable(Exception):  # noqa: N818 - no error: the run is read in another way
    """A run that is not to be had as regions."""


class FileRuns:
    """Regions of runs by offset. Event loop only.

    Args:
        stretch_bytes: how much is brought into memory, and checked, at a time.
    """

    def __init__(self, store: FileStore, *, stretch_bytes: int, checks: RunChecks) -> None:
        self._store = store
        self._checks = checks
        self._checked = CheckedRanges(again_s=checks.again_s)
        self._looks: OrderedDict[str, tuple[RegionFile, float, str]] = OrderedDict()
        """Per object its open file, until when it is taken to be the same, and its identity."""
        self._bad: dict[tuple[str, int], float] = {}
        """Batches that aren't to be sent from the file, by object and byte, since they are damaged
        or not proven to be the run's; each with the time until which that is believed."""
        self._stretch_bytes = stretch_bytes
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))
        self._probe = memoryview(bytearray(1))
        self._cursors: OrderedDict[tuple[PartitionKey, int], tuple[str, int, int]] = OrderedDict()
        """Where a reader goes on: (partition, offset) -> (object, byte position of a batch, the
        offset at which that begins)."""
        self._loads: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._warmed: OrderedDict[tuple[str, int], int] = OrderedDict()
        """Regions that were brought into memory and not looked at since: (object, start) -> end. A
        region is
        sent even if it has left memory again: under such pressure waiting might never end."""
        self._works = True
        self.load_count = 0
        self.checked_bytes = 0

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
        if not self._works or self._checks.is_doubted(run):
            raise Unsendable
        file = self._store.open_file(run.object_key)
        position, expected = run.position, run.base_offset
        # A consumer goes on where it stopped: its batch isn't looked for from the run's start.
        cursor = self._cursors.get((key, offset))
        if (
            cursor is not None
            and cursor[0] == run.object_key
            and run.position <= cursor[1] < run.position + run.length
        ):
            _, position, expected = cursor
        if file is None:
            # The load opens it, since opening may wait for the disk, and this is the event loop.
            if not self._store.may_open():
                raise Unsendable
            cold: tuple[int, int] | None = (position, position)
        else:
            found = self._walk(file, run, (position, expected), offset, bytes_max, first=first)
            expected = found.expected
            if found.start is not None:
                if found.end < run.position + run.length:
                    self._remember(key, found.end_offset, run.object_key, found.end, expected)
                    if found.ahead and may_load:
                        self.load(run, found.end, found.end, expected)
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
        self._raise_bad(run.object_key, cold[0])
        self._remember(key, offset, run.object_key, cold[0], expected)
        return self.load(run, *cold, expected)

    def load(self, run: StoredRun, start: int, end: int, expected: int) -> asyncio.Task[None]:
        """Bring a stretch of the run into memory and check it.

        Args:
            start: of a batch that begins at the offset `expected`.
            end: at least up to there.
        """
        name = (run.object_key, start)
        task = self._loads.get(name)
        if task is None:
            self.load_count += 1
            end = max(end, min(start + self._stretch_bytes, run.position + run.length))
            task = self._loads[name] = asyncio.get_running_loop().create_task(
                self._load(run, start, end, expected), name=f"warm {run.object_key} at {start}"
            )
            task.add_done_callback(take_error)
        return task

    def cursor(self, run: StoredRun, offset: int) -> tuple[int, int] | None:
        """The byte position of a batch at which to look for an offset of the run, and the offset
        at which that batch begins."""
        cursor = self._cursors.get((run.partition_key, offset))
        if cursor is None or cursor[0] != run.object_key:
            return None
        return cursor[1:]

    async def close(self) -> None:
        """Cancel loads under way."""
        loads = list(self._loads.values())
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    async def _load(self, run: StoredRun, start: int, end: int, expected: int) -> None:
        object_key = run.object_key
        try:
            if not await self._store.warm(object_key, start, end):
                # One folder lies on one file system: what it can't do here it can't elsewhere.
                self._works = False
                return
            self._warmed[object_key, start] = end
            if len(self._warmed) > _WARMED_MAX:
                self._warmed.popitem(last=False)
            file = self._store.open_file(object_key)
            if file is None:
                return
            # First: what is changed while it is read must be read again.
            identity = file.identity()
            now_s = self._checks.now_s()
            if self._checked.end_of(object_key, start, now_s, identity) >= end:
                return
            if self._checks.needs_proof(
                run, self._stretch_bytes, identity
            ) and not await self._prove(run, identity, start):
                return
            begin, until, offset = start, end, expected
            if self._checks.is_provable(run, self._stretch_bytes):
                begin, until, offset = run.position, run.position + run.length, run.base_offset
            found = await self._check(file, run, begin, until, offset)
            await self._passed(file, identity, run, begin, found, start)
        except (NotFoundError, CorruptDataError) as error:
            heard(Cause.FILE_REGION, error, logger, f"{object_key} is read as blocks")
            self._put_bad(object_key, start)
        finally:
            del self._loads[object_key, start]

    async def _prove(self, run: StoredRun, identity: str, start: int) -> bool:
        """Return whether the index of the same file names the run; if not, reading it as blocks
        looks into it."""
        proof = await self._checks.prove(run, identity)
        if proof is Proof.OTHER_VERSION:
            # The file was replaced or changed. Of one that isn't named, the run is doubted.
            self._put_bad(run.object_key, start)
        return proof is Proof.NAMED

    async def _check(
        self, file: RegionFile, run: StoredRun, start: int, end: int, expected: int
    ) -> Checked:
        checks = self._checks
        check = partial(_check_file, file, run, start, end, expected)
        found = await checks.in_pool(partial(check, checks.rules(run)))
        if found.fault is not None and checks.look_up(run):
            found = await checks.in_pool(partial(check, checks.rules(run)))
        self.checked_bytes += found.position - start
        return found

    async def _passed(
        self,
        file: RegionFile,
        identity: str,
        run: StoredRun,
        start: int,
        found: Checked,
        wanted: int,
    ) -> None:
        """Take note of what was checked from `start` on.

        Args:
            wanted: of the batch that a reader waits for.
        """
        checks, object_key = self._checks, run.object_key
        self._looks[object_key] = (file, checks.now_s() + _LOOKED_S, identity)
        if not checks.fold(run, start, found):
            # Reading it as blocks says so.
            checks.doubt(run)
            self._checked.forget(object_key)
            return
        if (
            not is_whole(run, start, found)
            and not checks.is_proven(run, identity)
            and not await self._prove(run, identity, wanted)
        ):
            return
        self._checked.add(object_key, start, found.position, checks.now_s(), identity)
        checks.right(run, start, found.position)
        if found.fault is not None:
            self._put_bad(object_key, found.fault.position)

    def _put_bad(self, object_key: str, position: int) -> None:
        if len(self._bad) >= _LOOKS_MAX:
            self._bad.clear()
        self._bad[object_key, position] = self._checks.now_s() + KNOWN_S

    def _raise_bad(self, object_key: str, position: int) -> None:
        """
        Raises:
            Unsendable: the batch there was found damaged, missing, or not proven.
        """
        if self._bad:
            until_s = self._bad.get((object_key, position))
            if until_s is not None and self._checks.now_s() < until_s:
                raise Unsendable

    def _identity(self, object_key: str, file: RegionFile) -> str:
        now_s = self._checks.now_s()
        look = self._looks.get(object_key)
        if look is not None and look[0] is file and now_s < look[1]:
            return look[2]
        identity = file.identity()
        self._looks[object_key] = (file, now_s + _LOOKED_S, identity)
        if len(self._looks) > _LOOKS_MAX:
            self._looks.popitem(last=False)
        return identity

    def _checked_end(self, object_key: str, file: RegionFile, position: int) -> int:
        """Return up to where the file is checked from a batch on.

        Raises:
            Unsendable: that batch is damaged.
        """
        self._raise_bad(object_key, position)
        return self._checked.end_of(
            object_key, position, self._checks.now_s(), self._identity(object_key, file)
        )

    def _remember(
        self, key: PartitionKey, offset: int, object_key: str, position: int, expected: int
    ) -> None:
        self._cursors[key, offset] = (object_key, position, expected)
        if len(self._cursors) > _CURSORS_MAX:
            self._cursors.popitem(last=False)

    def _walk(
        self,
        file: RegionFile,
        run: StoredRun,
        begin: tuple[int, int],
        offset: int,
        bytes_max: int,
        *,
        first: bool,
    ) -> _Walked:
        unpack, buffer = _HEADER.unpack_from, self._buffer
        position, expected = begin
        end = run.position + run.length
        warm_end = self._warmed.pop((run.object_key, position), position)
        # What of the file is in `buffer`, and up to where it is known to be in memory.
        buffer_start = buffer_end = position
        known_end = warm_end
        wanted = _HEADER_BYTES
        start: int | None = None
        taken_end, end_offset = position, offset
        cold: tuple[int, int] | None = None
        skipped = checked_end = 0
        ahead = False
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
            next_offset = base_offset + delta + 1
            if (
                (
                    base_offset != expected
                    and (
                        base_offset < expected
                        or not self._checks.may_lack(run.partition_key, next_offset)
                    )
                )
                or size < _BATCH_BYTES_MIN
                or following > end
            ):
                if start is not None:
                    break
                raise Unsendable  # damaged: reading it as blocks says so
            wanted = _CHUNK_BYTES if size < _SMALL_BATCH_BYTES else _HEADER_BYTES
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
                    checked_end = self._checked_end(run.object_key, file, position)
                    if following > checked_end:
                        cold = (position, following)
                        break
                    start = position
                elif following > checked_end:
                    ahead = True
                    break
                taken_end, end_offset = following, next_offset
            else:
                skipped += 1
                if skipped >= _SKIPPED_MAX:
                    # Goes on from here when the pool has been asked for what lies there.
                    cold = (following, following)
                    expected = next_offset
                    break
            position, expected = following, next_offset
        if start is None and position >= end:
            raise Unsendable  # damaged: the journal says that the offset is here
        return _Walked(start, taken_end, end_offset, cold, expected, ahead)

    def _known_end(self, file: RegionFile, start: int, needed: int, end: int) -> int:
        """Return up to where the file is in memory, from `start` until `needed` is passed."""
        peek, probe = file.peek, self._probe
        while start < needed:
            at = min(start + _PROBE_BYTES, end) - 1
            if not peek(at, probe):
                # What lies behind the needed bytes may be missing.
                return needed if at >= needed and peek(needed - 1, probe) else start
            start = at + 1
        return start


def _check_file(
    file: RegionFile, run: StoredRun, start: int, end: int, expected: int, rules: Rules
) -> Checked:
    """Check the batches that begin in [start, end) of a file."""
    run_end = run.position + run.length
    position, total, count = start, 0, 0
    fault: Fault | None = None
    after_gap: AfterGap | None = None
    wanted = _CHECKED_BYTES
    # A batch after a gap is not right until the next one's offset was seen.
    while fault is None and (position < end or (after_gap is not None and position < run_end)):
        view = _read(file, position, min(wanted, run_end - position))
        found = check_batches(view, rules, expected, position, after_gap)
        fault = found.fault
        if fault is None and not found.batch_count:
            size = batch_bounds(view, 0)[1] if len(view) >= LENGTH_END else HEADER_BYTES
            if len(view) < wanted or size <= len(view):
                fault = Fault(position, expected, run.end_offset, f"cut off: {len(view)} bytes")
            wanted = size
            continue
        wanted = _CHECKED_BYTES
        position, expected, after_gap = found.position, found.end_offset, found.after_gap
        total += found.sum
        count += found.batch_count
    if fault is None and position == run_end and expected != run.end_offset:
        if after_gap is not None:
            position, expected, total = after_gap[0], after_gap[1], total - after_gap.sum
            count -= 1
        fault = Fault(position, expected, run.end_offset, f"the run ends before {expected}")
    return Checked(position, expected, count, fault, total & SUM_MASK)


class _Memory(threading.local):
    """The buffer into which a thread reads, since new memory costs more than reading."""

    view: memoryview | None = None


_memory = _Memory()


def _read(file: RegionFile, position: int, length: int) -> memoryview:
    """Bytes of a file, until the thread's next call; fewer at its end."""
    if length <= _CHECKED_BYTES:
        if _memory.view is None:
            _memory.view = memoryview(bytearray(_CHECKED_BYTES))
        if file.peek(position, _memory.view[:length]) == length:
            return _memory.view[:length]
    return memoryview(file.read_at(position, length))
