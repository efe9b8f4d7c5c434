"""Repairs lost histories: appends their acknowledged records again, or gives them up.

Order of effects, per history: its states are made of the archive -> lost batches are appended
through the usual path, some at a time -> how far that came is noted in the store -> the history is
closed by a journal entry, if nothing was left unread. A repair that is cut is started again and
goes on after what was noted: of batches without a producer's sequence, at most one group of a
partition may then be appended twice.
"""

import asyncio
import contextlib
import logging
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from crc32c import crc32c

from penstock.log.append.plan import PartitionAppend
from penstock.log.history.appended_notes import AppendedNotes
from penstock.log.history.lost_histories import ASIDE_WAL
from penstock.log.history.lost_moves import lost_moves
from penstock.log.history.lost_records import LostBatch, LostPartition, LostRecords, is_whole
from penstock.log.history.lost_states import LostStates, lost_states
from penstock.log.log import Log
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    NotFoundError,
    PenstockError,
)
from penstock.model.ids import PartitionKey
from penstock.ports.journal import Journal
from penstock.ports.objects import ObjectStore
from penstock.records.batch import TRANSACTIONAL, BatchLimits, check_batch, stored_header
from penstock.replica.archive import Archive
from penstock.state.answers import BatchStatus, Done, Refused, SegmentStored
from penstock.state.commands import CloseHistory, CreateTopic, StoreSegment
from penstock.state.order_types import Order
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import LostHistory, StoredTopic
from penstock.system.files import PosixDevice

T = TypeVar("T")

logger = logging.getLogger(__name__)

_GROUP_BATCHES: Final = 256
_TIMEOUT_MS: Final = 60_000
_SEQUENCES: Final = 1 << 31
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CRC_AT: Final = 17
_CRC_FROM: Final = 21
_ANY: Final = BatchLimits(
    message_bytes_max=(1 << 31) - 1,
    timestamp_before_max_ms=(1 << 63) - 1,
    timestamp_after_max_ms=(1 << 63) - 1,
    log_append_time=False,
    compacts=False,
)
"""They were accepted once, under their topic's limits of then."""


@dataclass(slots=True, kw_only=True)
class HistoryReport:
    """The report says what a lost history holds, and what became of it."""

    history: LostHistory
    held_end: int = 0
    """The last position of it that the archive holds."""
    closed: bool = False
    partitions: list[LostPartition] = field(default_factory=list)
    moves: int = 0
    """Runs of the present log whose move from a WAL to a segment was lost."""
    damaged: list[str] = field(default_factory=list)
    """Keys of segments to which the lost history had moved runs of the present log, and which are
    damaged or have another size now."""
    topics: list[str] = field(default_factory=list)
    """Topics that only the lost history has; a repair creates them."""

    @property
    def unread(self) -> int:
        """Records that can't be read by this agent."""
        return sum(found.unread for found in self.partitions)


class HistoryRepair:
    """Event loop only; one repair at a time."""

    def __init__(
        self,
        *,
        journal: Journal,
        archive: Archive,
        order: Order,
        log: Log,
        view: StateView,
        queries: Callable[[], Queries],
        store: ObjectStore,
        folder: Path,
        scratch: Path,
        executor: Executor | None,
    ) -> None:
        """
        Args:
            folder: the agent's directory, in which copies of its WAL lie.
            scratch: a folder for states on their way.
        """
        self._journal = journal
        self._archive = archive
        self._order = order
        self._log = log
        self._view = view
        self._queries = queries
        self._store = store
        self._folder = folder
        self._scratch = scratch / "lost-states"
        self._executor = executor
        self._working = asyncio.Lock()

    async def look(self, wanted: int | None = None) -> list[HistoryReport]:
        """Return what the open histories hold; nothing is changed."""
        return await self._each(wanted, appends=False)

    async def append(self, wanted: int | None = None) -> list[HistoryReport]:
        """Append what the open histories hold, and close those of which all could be read."""
        return await self._each(wanted, appends=True)

    async def give_up(self, wanted: int | None = None) -> list[HistoryReport]:
        """Close open histories without appending anything. What they hold isn't read."""
        reports = []
        async with self._working:
            await self._order.confirm_head()
            for history in self._open(wanted):
                report = HistoryReport(history=history)
                await self._close(report, self._order.position, give_up=True)
                reports.append(report)
        return reports

    # -- inside ------------------------------------------------------------------------------------

    def _open(self, wanted: int | None) -> list[LostHistory]:
        if wanted is not None and wanted not in self._view.open_histories:
            raise NotFoundError("repair", f"lost history {wanted}", "there is no such open history")
        return [
            found for found in self._view.open_histories.values() if wanted in (None, found.history)
        ]

    async def _each(self, wanted: int | None, *, appends: bool) -> list[HistoryReport]:
        reports = []
        async with self._working:
            await self._order.confirm_head()
            for history in self._open(wanted):
                seen = self._order.position
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch.mkdir(parents=True)
                try:
                    states = await lost_states(
                        self._archive,
                        self._journal,
                        history,
                        folder=self._scratch,
                        executor=self._executor,
                    )
                    report = await self._one(history, states, appends=appends)
                    is_whole_again = not report.unread and not report.damaged
                    if appends and is_whole_again and states.lost:
                        await self._close(report, seen, give_up=False)
                    reports.append(report)
                finally:
                    shutil.rmtree(self._scratch, ignore_errors=True)
        return reports

    async def _one(
        self, history: LostHistory, states: LostStates, *, appends: bool
    ) -> HistoryReport:
        records = self._records(states)
        report = HistoryReport(history=history, held_end=states.end)
        if appends and states.lost:
            await self._create_topics(states, report)
        await self._move(states, report, moves=appends)
        notes = AppendedNotes(self._store, history.history)
        with contextlib.ExitStack() as closes:
            common = None
            if states.common is not None:
                common = closes.enter_context(closing(Queries(states.common)))
            group: list[LostBatch] = []
            group_bytes = 0
            bytes_max = self._log.append_bytes_max // 2
            async for batch in records.batches():
                found = records.partitions[batch.topic, batch.partition]
                if await notes.holds(batch):
                    found.appended += batch.end_offset - batch.offset
                    continue
                if self._is_duplicate(batch, common):
                    found.duplicates += batch.end_offset - batch.offset
                    continue
                if not appends:
                    continue
                full = len(group) >= _GROUP_BATCHES or group_bytes + len(batch.data) > bytes_max
                if group and (full or group[0].partition_key != batch.partition_key):
                    await self._append(notes, group, records)
                    group, group_bytes = [], 0
                group.append(batch)
                group_bytes += len(batch.data)
            if group:
                await self._append(notes, group, records)
        report.partitions = [records.partitions[key] for key in sorted(records.partitions)]
        if not appends:
            report.topics = sorted(records.missing_topics)
        return report

    def _records(self, states: LostStates) -> LostRecords:
        return LostRecords(
            states,
            view=self._view,
            present=self._queries,
            store=self._store,
            wals=lambda: [
                PosixDevice(path) for path in sorted(self._folder.glob(f"{ASIDE_WAL}[0-9]*"))
            ],
            held=self._held,
            executor=self._executor,
        )

    async def _create_topics(self, states: LostStates, report: HistoryReport) -> None:
        """Topics that were made in lost rows: their records need a place."""
        for path in states.lost:
            rows = await self._in_executor(partial(_topics_of, path))
            known = set()
            if states.common is not None:
                common = await self._in_executor(partial(_topics_of, states.common))
                known = {topic.topic_id for topic in common}
            for topic in rows:
                if topic.topic_id in known or self._view.topic_by_id(topic.topic_id) is not None:
                    continue
                (answer,) = await self._order.commit(
                    [
                        CreateTopic(
                            name=topic.name,
                            topic_id=topic.topic_id,
                            partitions=topic.partitions,
                            configs=topic.configs,
                            replication_factor=topic.replication_factor,
                        )
                    ]
                )
                if isinstance(answer, Refused):
                    logger.error("topic %s of a lost history: %s", topic.name, answer.detail)
                else:
                    report.topics.append(topic.name)

    async def _move(self, states: LostStates, report: HistoryReport, *, moves: bool) -> None:
        """Name in segments what the lost history had moved out of WALs. First: a WAL's bytes may be
        gone, and the present log is read below."""
        commands = await self._in_executor(
            partial(lost_moves, states.lost, self._queries, self._view)
        )
        for command in commands:
            try:
                size = await self._store.size(command.object_key)
            except NotFoundError:
                continue
            if size != command.object_bytes or not await self._is_intact(command):
                logger.error("a segment of a lost history is damaged: %s", command.object_key)
                report.damaged.append(command.object_key)
                continue
            if not moves:
                report.moves += sum(len(run.runs) // 4 for run in command.runs)
                continue
            (answer,) = await self._order.commit([command])
            if isinstance(answer, SegmentStored):
                report.moves += answer.moved
            elif isinstance(answer, Refused):
                logger.error("%s can't be named again: %s", command.object_key, answer.detail)

    async def _is_intact(self, command: StoreSegment) -> bool:
        for run in command.runs:
            end = run.position + sum(run.runs[3::4])
            data = bytes(await self._store.get_range(command.object_key, run.position, end))
            if not await self._in_executor(partial(is_whole, data)):
                return False
        return True

    async def _held(self, key: PartitionKey, offset: int) -> int | None:
        try:
            read = await self._log.reader.read_loaded(key, offset, 1)
        except (NotFoundError, CorruptDataError):
            return None  # damaged, or trimmed meanwhile: what was lost is not there
        if read is None:
            return None
        data = b"".join(read.views)
        header = stored_header(data, 0)
        return header.crc if header.base_offset == offset else None

    # -- appending ---------------------------------------------------------------------------------

    def _is_duplicate(self, batch: LostBatch, common: Queries | None) -> bool:
        """Return whether the present state has a batch's producer, epoch and sequences: the
        producer was not answered, or asked again after the loss."""
        producer_id, epoch, first = _PRODUCER.unpack_from(batch.data, _PRODUCER_AT)
        if producer_id < 0:
            return False
        found = self._queries().producer_ranges(batch.partition_key, producer_id)
        if found is None or found[0] != epoch:
            return False
        last = (first + batch.end_offset - batch.offset - 1) % _SEQUENCES
        ranges = found[1]
        for start, end in zip(ranges[::3], ranges[1::3], strict=True):
            if (first - start) % _SEQUENCES <= (end - start) % _SEQUENCES:
                return True
        if not ranges:
            return False  # a marker began the epoch
        behind = (ranges[-2] - last) % _SEQUENCES
        if behind >= _SEQUENCES // 2 or common is None or batch.common_key is None:
            return False
        # Older than the ranges that are kept. If the producer was known before the histories
        # parted, its sequences have followed on since, so that it sent these again.
        before = common.producer_ranges(batch.common_key, producer_id)
        return before is not None and before[0] == epoch

    async def _append(
        self, notes: AppendedNotes, group: list[LostBatch], records: LostRecords
    ) -> None:
        found = records.partitions[group[0].topic, group[0].partition]
        for batch in group:
            if stored_header(batch.data, 0).attributes & TRANSACTIONAL:
                # Of a transaction that was committed in the lost history, which goes on in none.
                _forget_producer(batch.data)
        appends = await self._store_batches([batch.data for batch in group], group[0].partition_key)
        refused: list[LostBatch] = []
        for batch, append in zip(group, appends, strict=True):
            count = batch.end_offset - batch.offset
            if append.error is not None:
                raise append.error
            if append.status is BatchStatus.STORED:
                found.appended += count
            elif append.status is BatchStatus.DUPLICATE:
                found.duplicates += count
            else:
                refused.append(batch)
        if refused:
            # Their producer has gone on: with other sequences, or in another epoch.
            for batch in refused:
                _forget_producer(batch.data)
            appends = await self._store_batches(
                [batch.data for batch in refused], group[0].partition_key
            )
            for batch, append in zip(refused, appends, strict=True):
                if append.error is not None:
                    raise append.error
                if append.status is not BatchStatus.STORED:
                    raise ConflictError(
                        "repair",
                        f"{batch.topic}-{batch.partition} offset {batch.offset}",
                        f"refused: {append.base_offset}",
                    )
                found.appended += batch.end_offset - batch.offset
        await notes.add(group)

    async def _store_batches(
        self, batches: list[bytearray], key: PartitionKey
    ) -> list[PartitionAppend]:
        appends = [PartitionAppend(key, check_batch(memoryview(data), _ANY, 0)) for data in batches]
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(None)
            else:
                answered.set_exception(error)

        self._log.append(appends, timeout_ms=_TIMEOUT_MS, done=done)
        await answered
        return appends

    async def _close(self, report: HistoryReport, seen: int, *, give_up: bool) -> None:
        history = report.history.history
        records = sum(found.appended for found in report.partitions)
        (answer,) = await self._order.commit(
            [CloseHistory(history=history, seen_position=seen, give_up=give_up, records=records)]
        )
        if answer != Done():
            detail = answer.detail if isinstance(answer, Refused) else repr(answer)
            raise ConflictError("repair", f"lost history {history}", detail, "repair it again")
        report.closed = True
        logger.warning(
            "lost history %d is closed: %s",
            history,
            "given up" if give_up else f"{records} records were appended again",
        )

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _topics_of(path: Path) -> list[StoredTopic]:
    with closing(Queries(path)) as queries:
        return queries.topic_rows()


def _forget_producer(data: bytearray) -> None:
    """Make a batch one without a producer: the same records, no sequence."""
    (attributes,) = struct.unpack_from(">H", data, _CRC_FROM)
    struct.pack_into(">H", data, _CRC_FROM, attributes & ~TRANSACTIONAL)
    _PRODUCER.pack_into(data, _PRODUCER_AT, -1, -1, -1)
    struct.pack_into(">I", data, _CRC_AT, crc32c(memoryview(data)[_CRC_FROM:]))
