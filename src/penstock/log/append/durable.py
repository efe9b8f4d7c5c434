"""A flush's bytes become durable as one object of the store, or as one frame of the own WAL.

Both implement `penstock.log.append.flusher.ByteStore`.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol

from typing_extensions import Buffer

from penstock.log.append.plan import PartitionAppend, plan_frame
from penstock.log.append.stored import Stored, build_raw_segment
from penstock.log.numbers import ObjectNumbers
from penstock.model.errors import ConflictError, RetryableError, StorageFullError
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.objects.once import put_once
from penstock.ports.objects import ObjectStore
from penstock.segment import BuiltSegment
from penstock.state.answers import BatchStatus, Refusal
from penstock.state.read.view import StateView
from penstock.state.rows import GENERATION_BITS
from penstock.system.backoff import Backoff
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait
from penstock.wal import WalPlace

logger = logging.getLogger(__name__)

FULL_TURN_S: Final = 0.05
"""How soon a frame that found the WAL full is tried again."""
_PUT_AGAIN: Final = Backoff(first_s=0.05, most_s=1.0)


class ObjectBytes:
    """One raw segment object per flush. Puts overlap.

    Args:
        store: a retriable error is tried again with the same key for as long as the flush lasts.
        flights_max: puts at once.
    """

    def __init__(
        self,
        *,
        store: ObjectStore,
        numbers: ObjectNumbers,
        view: StateView,
        pool: Executor,
        flights_max: int,
        wait: Callable[[float], Awaitable[None]] = wait,
    ) -> None:
        self._store = store
        self._numbers = numbers
        self._view = view
        self._pool = pool
        self._wait = wait
        self.flights_max = flights_max
        self.put_count = 0

    async def store(self, appends: Sequence[PartitionAppend]) -> Stored | None:
        """See `ByteStore`."""
        runs = self._sorted_runs(appends)
        if not runs:
            return None
        built = await asyncio.get_running_loop().run_in_executor(
            self._pool, build_raw_segment, [(place, group) for place, _, group in runs]
        )
        number = await self._put(built)
        return Stored(
            runs=[
                (partition_key, position, group)
                for (_, partition_key, group), position in zip(runs, built.positions, strict=True)
            ],
            object_key=self._numbers.key(number),
            object_bytes=built.size_bytes,
            number=number,
        )

    def is_over(self, stored: Stored, *, named: bool) -> None:
        """See `ByteStore`."""
        if stored.number:
            self._numbers.end(stored.number, named=named)

    async def _put(self, built: BuiltSegment) -> int:
        """Put the object under the next number that nothing lies under yet; the number."""
        while True:
            number = self._numbers.begin()
            try:
                await self._put_under(self._numbers.key(number), built)
            except ConflictError as error:
                self._numbers.skip(number, error)
            except BaseException:
                # The put may have succeeded, or still may: the object stays an orphan.
                self._numbers.end(number, named=False)
                raise
            else:
                return number

    async def _put_under(self, key: str, built: BuiltSegment) -> None:
        failures = 0
        while True:
            self.put_count += 1
            try:
                await put_once(self._store, key, built.parts)
            except RetryableError as error:
                failures += 1
                delay_s = _PUT_AGAIN.after(failures)
                heard(Cause.PUT_FLUSH, error, logger, f"{key} is put again in {delay_s:g} s")
                await self._wait(delay_s)
            else:
                return

    def _sorted_runs(
        self, appends: Sequence[PartitionAppend]
    ) -> list[tuple[tuple[bytes, int], PartitionKey, list[PartitionAppend]]]:
        """One run per partition, by (topic id, partition)."""
        groups: dict[PartitionKey, list[PartitionAppend]] = {}
        for append in appends:
            groups.setdefault(append.partition_key, []).append(append)
        runs = []
        for key, group in groups.items():
            topic = self._view.topic_by_key(topic_key_of(key))
            if topic is None:
                # Deleted since the request was checked, and its id is never used again.
                for append in group:
                    append.status = BatchStatus.REFUSED
                    append.base_offset = Refusal.UNKNOWN_PARTITION
                continue
            runs.append(((bytes(topic.topic_id), partition_of(key)), key, group))
        runs.sort(key=lambda run: run[0])
        return runs


class FrameWriter(Protocol):
    """The part of `penstock.wal.WalWriter` that this module uses; one thread at a time."""

    def place(self, length: int) -> WalPlace:
        """Find room for a frame."""
        ...

    def write(self, buffers: Sequence[Buffer], *, length: int) -> WalPlace:
        """Write one frame there; durable when this returns."""
        ...


class WalBytes:
    """One WAL frame per flush, written and synced in the pool, one at a time.

    Args:
        wal_key: the journal's key of this WAL, given when the WAL was claimed.
        open_files: learns which files hold frames whose order isn't known yet.
        on_full: called on the event loop when the WAL has no room, so that its owner frees
            files.
        on_unnamed: called on the event loop with the generation of each frame that was written
            and that no command will name.
    """

    flights_max = 1

    def __init__(
        self,
        *,
        wal: FrameWriter,
        wal_key: int,
        open_files: "OpenFiles",
        pool: Executor,
        on_full: Callable[[], None],
        on_unnamed: Callable[[int], None],
        wait: Callable[[float], Awaitable[None]] = wait,
    ) -> None:
        self._wal = wal
        self._wal_key = wal_key
        self._open_files = open_files
        self._pool = pool
        self._on_full = on_full
        self._on_unnamed = on_unnamed
        self._wait = wait
        self._writing = threading.Lock()

    async def store(self, appends: Sequence[PartitionAppend]) -> Stored | None:
        """See `ByteStore`. A full WAL is waited for as long as the flush lasts."""
        plan = plan_frame(appends)
        while True:
            writing = asyncio.get_running_loop().run_in_executor(
                self._pool, self._write, plan.buffers, plan.length
            )
            try:
                place = await asyncio.shield(writing)
            except StorageFullError as error:
                heard(Cause.WAL_SPACE, error, logger, "appends wait for space in the WAL")
                self._on_full()
                await self._wait(FULL_TURN_S)
            except asyncio.CancelledError:
                writing.add_done_callback(self._given_up)
                raise
            else:
                break
        # Before the next frame is begun: until then the writer's file is this one.
        self._open_files.begin(place.generation)
        return Stored(
            runs=[(key, place.position + start, group) for key, start, group in plan.runs],
            wal=self._wal_key << GENERATION_BITS | place.generation,
        )

    def is_over(self, stored: Stored, *, named: bool) -> None:
        """See `ByteStore`."""
        if not stored.wal:
            return
        self._open_files.end(stored.file_generation)
        if not named:
            self._on_unnamed(stored.file_generation)

    def _given_up(self, writing: "asyncio.Future[WalPlace]") -> None:
        if not writing.cancelled() and writing.exception() is None:
            self._on_unnamed(writing.result().generation)

    def _write(self, buffers: Sequence[Buffer], length: int) -> WalPlace:
        # A flush that was given up may still be at it.
        with self._writing:
            self._wal.place(length)
            return self._wal.write(buffers, length=length)


class WalFilesInUse(Protocol):
    """The part of `penstock.wal.WalWriter` that this class uses; any thread."""

    @property
    def active_generation(self) -> int:
        """Files of lower generations get no more frames."""
        ...

    def release(self, generation: int) -> None:
        """Nothing is named in a file any more."""
        ...


class OpenFiles:
    """Knows which files of the own WAL hold frames that may yet be named. In a cluster a frame is
    ordered long after it was written, so the uploader asks here before it releases files.

    `begin` and `end` on the event loop, the rest on any thread.
    """

    def __init__(self, wal: WalFilesInUse) -> None:
        self._wal = wal
        self._counts: dict[int, int] = {}
        self._first: int | None = None

    def begin(self, generation: int) -> None:
        """A frame was written whose order isn't known yet."""
        self._counts[generation] = self._counts.get(generation, 0) + 1
        self._first = min(self._counts)

    def end(self, generation: int) -> None:
        """It is known."""
        self._counts[generation] -= 1
        if not self._counts[generation]:
            del self._counts[generation]
        self._first = min(self._counts, default=None)

    @property
    def active_generation(self) -> int:
        """Return the lowest generation that may get named. Files of lower generations hold only
        runs that
        the state names, and runs that it never will: a caller that reads the state after this may
        release the files that the state doesn't name."""
        # In this order: what is written into the active file meanwhile lies in no lower one.
        active = self._wal.active_generation
        first = self._first
        return active if first is None else min(active, first)

    def release(self, generation: int) -> None:
        """See `WalWriter.release`."""
        self._wal.release(generation)
