"""How a flush's bytes become durable: one object of the store, or one frame of the own WAL.

Both implement `penstock.log.append.flusher.ByteStore`.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Final, Protocol

from typing_extensions import Buffer

from penstock.log.append.plan import PartitionAppend, plan_frame
from penstock.log.append.stored import Stored, build_raw_segment
from penstock.log.numbers import ObjectNumbers
from penstock.metadata.commands import BatchStatus, Refusal
from penstock.metadata.rows import GENERATION_BITS
from penstock.metadata.view import MetadataView
from penstock.model.errors import RetryableError, StorageFullError
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.objects.retrying import wait
from penstock.ports.objects import ObjectStore
from penstock.segment import BuiltSegment
from penstock.wal import WalPlace

FULL_TURN_S: Final = 0.05
"""How soon a frame that found the WAL full is tried again."""
_RETRY_S: Final = 0.05
_RETRY_S_MAX: Final = 1.0


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
        view: MetadataView,
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
        number = self._numbers.begin()
        key = self._numbers.key(number)
        try:
            await self._put(key, built)
        except BaseException:
            # It may lie there all the same, or come to: nothing will name it.
            self._numbers.end(number, named=False)
            raise
        return Stored(
            runs=[
                (partition_key, position, group)
                for (_, partition_key, group), position in zip(runs, built.positions, strict=True)
            ],
            object_key=key,
            object_bytes=built.size_bytes,
            number=number,
        )

    def is_over(self, stored: Stored, *, named: bool) -> None:
        """See `ByteStore`."""
        if stored.number:
            self._numbers.end(stored.number, named=named)

    async def _put(self, key: str, built: BuiltSegment) -> None:
        delay_s = _RETRY_S
        while True:
            self.put_count += 1
            try:
                await self._store.put(key, built.parts)
            except RetryableError:
                await self._wait(delay_s)
                delay_s = min(2 * delay_s, _RETRY_S_MAX)
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
    """What is used of `penstock.wal.WalWriter`; one thread at a time."""

    def place(self, length: int) -> WalPlace:
        """Find room for a frame."""
        ...

    def write(self, buffers: Sequence[Buffer], *, length: int) -> WalPlace:
        """Write one frame there; durable when this returns."""
        ...


class WalBytes:
    """One WAL frame per flush, written and synced in the pool, one at a time.

    Args:
        wal_key: what the journal calls this WAL since it was claimed.
        on_full: called when the WAL has no room, on the event loop: what can be freed should be.
        on_unnamed: called with the generation of each frame that was written and nothing will
            name, on the event loop.
    """

    flights_max = 1

    def __init__(
        self,
        *,
        wal: FrameWriter,
        wal_key: int,
        pool: Executor,
        on_full: Callable[[], None],
        on_unnamed: Callable[[int], None],
        wait: Callable[[float], Awaitable[None]] = wait,
    ) -> None:
        self._wal = wal
        self._wal_key = wal_key
        self._pool = pool
        self._on_full = on_full
        self._on_unnamed = on_unnamed
        self._wait = wait
        self._writing = threading.Lock()

    async def store(self, appends: Sequence[PartitionAppend]) -> Stored | None:
        """See `ByteStore`. A full WAL is waited for as long as the flush lasts."""
        plan = plan_frame(appends)
        while True:
            try:
                place = await asyncio.get_running_loop().run_in_executor(
                    self._pool, self._write, plan.buffers, plan.length
                )
            except StorageFullError:
                self._on_full()
                await self._wait(FULL_TURN_S)
            else:
                break
        return Stored(
            runs=[(key, place.position + start, group) for key, start, group in plan.runs],
            wal=self._wal_key << GENERATION_BITS | place.generation,
        )

    def is_over(self, stored: Stored, *, named: bool) -> None:
        """See `ByteStore`."""
        if not named and stored.wal:
            self._on_unnamed(stored.file_generation)

    def _write(self, buffers: Sequence[Buffer], length: int) -> WalPlace:
        # A flush that was given up may still be at it.
        with self._writing:
            self._wal.place(length)
            return self._wal.write(buffers, length=length)
