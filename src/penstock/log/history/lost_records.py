"""The acknowledged records of a lost history: batches that its states name and the present one
doesn't hold.

A run that both states name at the same place is common to both. Where they name different places
(the present has moved the run since, or given its offsets to others), batches are read and
compared: one with the same CRC-32C at the same offset is common.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from penstock.log.history.lost_moves import covering
from penstock.log.history.lost_states import LostStates
from penstock.log.wals.names import read_wal_id
from penstock.model.errors import CorruptDataError, NotFoundError, PenstockError, RetryableError
from penstock.model.ids import PartitionKey, TopicKey, partition_key
from penstock.ports.device import Device
from penstock.ports.objects import ObjectStore
from penstock.records.batch import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    crc_is_right,
    stored_header,
)
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import StoredRun
from penstock.state.transactions import AbortedRange, is_marker
from penstock.system.heard import Cause, heard
from penstock.wal import WalReader

T = TypeVar("T")

logger = logging.getLogger(__name__)

_PAGE_RUNS: Final = 500
_NOTES_MAX: Final = 5
PAGE_BATCHES: Final = 64
"""Batches that are looked at between two turns of the event loop, some 0.1 ms each."""

HeldBatch = Callable[[PartitionKey, int], Awaitable[int | None]]
"""CRC-32C of the batch of the present log that begins at an offset; None: none begins there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBatch:
    """One batch of a lost history, and its partition in the present state."""

    partition_key: PartitionKey
    common_key: PartitionKey | None
    """Its partition in the common state; None: it wasn't there, or no such state is at hand."""
    topic: str
    partition: int
    offset: int
    end_offset: int
    crc: int
    """CRC-32C as it was in the lost history; `data` may be changed before it is appended."""
    data: bytearray


@dataclass(slots=True)
class LostPartition:
    """Holds what was found in one partition. `unread`: records whose bytes can't be read here."""

    topic: str
    partition: int
    records: int = 0
    first_offset: int = -1
    end_offset: int = -1
    unread: int = 0
    duplicates: int = 0
    appended: int = 0
    notes: list[str] = field(default_factory=list)


class LostRecords:
    """Reads them. Event loop only.

    Args:
        wals: directories with copies of WALs, each with a folder `wal` in it.
        held: looks into the present log.
        partitions: by (topic name, partition), what was found; filled while batches are read.
    """

    def __init__(
        self,
        states: LostStates,
        *,
        view: StateView,
        present: Callable[[], Queries],
        store: ObjectStore,
        wals: Callable[[], list[Device]],
        held: HeldBatch,
        executor: Executor | None,
    ) -> None:
        self._states = states
        self._view = view
        self._present = present
        self._store = store
        self._wals = wals
        self._held = held
        self._executor = executor
        self.partitions: dict[tuple[str, int], LostPartition] = {}
        self.missing_topics: dict[str, tuple[bytes, int, dict[str, str]]] = {}
        """Topics that only the lost history has: id, partitions and configs by name."""

    async def batches(self) -> AsyncIterator[LostBatch]:
        """All lost batches that can be read, per partition in the order of their offsets."""
        seen: dict[tuple[str, int], set[int]] = {}
        with ExitStack() as closes:
            common = self._states.common
            common_queries = None
            if common is not None:
                common_queries = closes.enter_context(closing(Queries(common)))
            ends = _next_offsets(common_queries)
            for path in self._states.lost:
                is_last = path == self._states.lost[-1]
                async for batch in self._of_state(path, ends):
                    known = seen.setdefault((batch.topic, batch.partition), set())
                    number = batch.offset << 32 | batch.crc
                    if number in known:
                        continue
                    # Numbers, and only while states follow: there may be millions of batches.
                    if not is_last:
                        known.add(number)
                    found = self._partition(batch.topic, batch.partition)
                    found.records += batch.end_offset - batch.offset
                    if found.first_offset < 0 or batch.offset < found.first_offset:
                        found.first_offset = batch.offset
                    found.end_offset = max(found.end_offset, batch.end_offset)
                    yield batch

    # -- inside ------------------------------------------------------------------------------------

    async def _of_state(
        self, path: Path, ends: Mapping[bytes, tuple[TopicKey, dict[int, int]]]
    ) -> AsyncIterator[LostBatch]:
        with closing(Queries(path)) as queries, ExitStack() as closes:
            wals = await self._in_executor(partial(self._open_wals, queries, closes))
            for topic_key, topic_id, name, partitions, configs, _ in queries.topic_rows():
                topic = self._view.topic_by_id(topic_id)
                common = ends.get(topic_id)
                if topic is None:
                    if common is None:
                        self.missing_topics[name] = (topic_id, partitions, configs)
                    continue  # else it was deleted since: on purpose
                for number in range(min(partitions, topic.partitions)):
                    floor = 0 if common is None else common[1].get(number, 0)
                    key = partition_key(TopicKey(topic_key), number)
                    target = partition_key(topic.topic_key, number)
                    unsettled = await self._in_executor(partial(_Unsettled.of, queries, key, floor))
                    async for run in self._runs(queries, key, target, floor):
                        data = await self._read(run, wals, name, number)
                        if data is None:
                            continue
                        async for offset, end_offset, batch in self._batches_of(run, data):
                            if end_offset <= floor:
                                continue
                            if not unsettled.is_record_of_the_log(batch, offset):
                                continue
                            try:
                                if await self._is_held(target, offset, batch):
                                    continue
                            except RetryableError as error:
                                # The present log names bytes that no agent can read now.
                                self._unread(name, number, end_offset - offset, str(error))
                                continue
                            yield LostBatch(
                                partition_key=target,
                                common_key=None
                                if common is None
                                else partition_key(common[0], number),
                                topic=name,
                                partition=number,
                                offset=offset,
                                end_offset=end_offset,
                                crc=stored_header(batch, 0).crc,
                                data=batch,
                            )

    async def _batches_of(
        self, run: StoredRun, data: bytes
    ) -> AsyncIterator[tuple[int, int, bytearray]]:
        """(offset, end offset, bytes) of each batch of a run, some between two turns of the loop: a
        run may have millions, of which none has to be waited for."""
        found = _split(run, data)
        while page := await self._in_executor(lambda: list(islice(found, PAGE_BATCHES))):
            for batch in page:
                yield batch

    async def _runs(
        self, queries: Queries, key: PartitionKey, target: PartitionKey, floor: int
    ) -> AsyncIterator[StoredRun]:
        """Runs of the lost state past an offset that the present one doesn't name as they are."""
        offset = floor
        while page := await self._in_executor(
            partial(queries.runs_from, key, offset, limit=_PAGE_RUNS)
        ):
            for run in page:
                if is_marker(run.generation):
                    continue  # no record
                held = await self._in_executor(partial(self._same_run, target, run))
                if not held:
                    yield run
            offset = page[-1].end_offset

    def _same_run(self, target: PartitionKey, run: StoredRun) -> bool:
        """Return whether the present state has these batches: at the same place, or in runs whose
        sums add up to this one's."""
        present = self._present()
        if covering(present, target, run):
            return True
        for held in present.runs_from(target, run.base_offset, limit=1):
            # A place in a WAL may have been given again, one in an object never is.
            place = (run.object_key, run.position, run.base_offset, run.end_offset)
            return bool(run.object_key) and place == (
                held.object_key,
                held.position,
                held.base_offset,
                held.end_offset,
            )
        return False

    async def _is_held(self, target: PartitionKey, offset: int, batch: bytearray) -> bool:
        head = self._view.head(target)
        if head is None or offset >= head.next_offset:
            return False
        if offset < head.log_start:
            return False
        return await self._held(target, offset) == stored_header(batch, 0).crc

    async def _read(
        self, run: StoredRun, wals: Mapping[int, list[WalReader]], topic: str, number: int
    ) -> bytes | None:
        """A run's bytes; None: they can't be read here, which is noted."""
        detail = ""
        if run.object_key:
            end = run.position + run.length
            try:
                data = bytes(await self._store.get_range(run.object_key, run.position, end))
            except (NotFoundError, CorruptDataError) as error:
                detail = str(error)
            else:
                if await self._in_executor(partial(is_whole, data)):
                    return data
                detail = f"{run.object_key} is damaged between bytes {run.position} and {end}"
        else:
            for reader in wals.get(run.wal_key, []):
                try:
                    data = await self._in_executor(
                        partial(reader.read, run.file_generation, run.position, run.length)
                    )
                except (RetryableError, CorruptDataError) as error:
                    detail = str(error)
                    continue
                if await self._in_executor(partial(is_whole, data)):
                    return data
                detail = f"damaged in the WAL with key {run.wal_key}"
            detail = detail or f"only in the WAL with key {run.wal_key}, of another agent"
        self._unread(topic, number, run.end_offset - run.base_offset, detail)
        return None

    def _unread(self, topic: str, number: int, records: int, detail: str) -> None:
        found = self._partition(topic, number)
        found.unread += records
        if detail not in found.notes and len(found.notes) < _NOTES_MAX:
            found.notes.append(detail)

    def _open_wals(self, queries: Queries, closes: ExitStack) -> dict[int, list[WalReader]]:
        """Copies of WALs at hand, by the keys that the lost state knows them by."""
        keys = {wal.wal_id: wal.wal_key for wal in queries.wals()}
        found: dict[int, list[WalReader]] = {}
        for device in self._wals():
            try:
                wal_id = read_wal_id(device)
            except PenstockError as error:
                heard(Cause.REPAIR, error, logger, "a copy of a WAL can't be read")
                continue
            if wal_id in keys:
                reader = WalReader(device)
                closes.callback(reader.close)
                found.setdefault(keys[wal_id], []).append(reader)
        return found

    def _partition(self, topic: str, number: int) -> LostPartition:
        return self.partitions.setdefault((topic, number), LostPartition(topic, number))

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


@dataclass(slots=True)
class _Unsettled:
    """Transactions of a lost partition that were aborted there, or that were open at its end: their
    records were never promised to any reader."""

    aborted: list[AbortedRange]
    first_open: dict[int, int]

    @classmethod
    def of(cls, queries: Queries, key: PartitionKey, floor: int) -> "_Unsettled":
        aborted: list[AbortedRange] = []
        at = floor
        while page := queries.aborted_from(key, at, limit=_PAGE_RUNS):
            aborted += page
            at = page[-1].marker_offset + 1
        return cls(aborted, queries.open_in_partition(key))

    def is_record_of_the_log(self, batch: bytearray, offset: int) -> bool:
        """Whether a batch holds records that readers of committed records had, or would have."""
        header = stored_header(batch, 0)
        if header.attributes & CONTROL:
            return False
        if not header.attributes & TRANSACTIONAL:
            return True
        first_open = self.first_open.get(header.producer_id)
        if first_open is not None and first_open <= offset:
            return False
        return not any(
            found.producer_id == header.producer_id
            and found.first_offset <= offset < found.marker_offset
            for found in self.aborted
        )


def _next_offsets(
    queries: Queries | None,
) -> dict[bytes, tuple[TopicKey, dict[int, int]]]:
    """Return by topic id: its key in the common state, and the next offset of each partition."""
    if queries is None:
        return {}
    heads = {key: next_offset for key, _, next_offset in queries.heads()}
    found: dict[bytes, tuple[TopicKey, dict[int, int]]] = {}
    for topic_key, topic_id, _, partitions, *_ in queries.topic_rows():
        numbers = {
            number: heads.get(partition_key(TopicKey(topic_key), number), 0)
            for number in range(partitions)
        }
        found[topic_id] = (TopicKey(topic_key), numbers)
    return found


def _split(run: StoredRun, data: bytes) -> Iterator[tuple[int, int, bytearray]]:
    """(offset, end offset, bytes) of each batch of a run."""
    is_final = bool(run.object_key) and not run.raw
    position, offset = 0, run.base_offset
    while position + HEADER_BYTES <= len(data):
        header = stored_header(data, position)
        batch = bytearray(data[position : position + header.length])
        count = header.end_offset - header.base_offset
        if is_final:
            offset = header.base_offset
        yield offset, offset + count, batch
        offset += count
        position += header.length


def is_whole(data: bytes) -> bool:
    """Return whether a stretch holds whole batches whose CRC-32C is right, and nothing else."""
    position = 0
    while position + HEADER_BYTES <= len(data):
        length = stored_header(data, position).length
        if length < HEADER_BYTES or not crc_is_right(
            memoryview(data)[position : position + length]
        ):
            return False
        position += length
    return position == len(data)
