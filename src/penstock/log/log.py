"""The log: append and fetch by partition, and the look-ups that the Kafka face asks for.

A thin front that assembles the lane, the caches, the uploader and the keeper, and keeps them in
step with what was applied. Event loop only.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.log.append.lane import AppendRequest, CommitLane, Delivery, Orderer
from penstock.log.append.plan import PartitionAppend
from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.reader import LogReader, Missing
from penstock.log.fetch.regions import PartsRead
from penstock.log.fetch.tail import TailCache, TailRead
from penstock.log.fetch.times import find_max_timestamp, find_time
from penstock.log.fetch.waiters import Waiters
from penstock.log.instruments import LogInstruments, NoInstruments
from penstock.log.limits import LogLimits
from penstock.log.numbers import ObjectNumbers
from penstock.log.retention.keeper import Keeper
from penstock.log.upload.uploader import Uploader
from penstock.metadata.changes import HeadMoved, RunsMoved, TopicDeleted
from penstock.metadata.commands import (
    AllocateProducerIds,
    AnyAnswer,
    AnyCommand,
    BatchStatus,
    LogTrimmed,
    ProducerIds,
    TrimLog,
)
from penstock.metadata.queries import Queries
from penstock.metadata.view import MetadataView
from penstock.model.errors import (
    NotFoundError,
    OverloadedError,
    PenstockError,
    StorageFullError,
)
from penstock.model.ids import PartitionKey, topic_key_of
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.records.batch import patch_base_offset
from penstock.wal import WalReader, WalWriter

logger = logging.getLogger(__name__)

_PINNED_SHARE: Final = 4


class Log:
    """One agent's log. Made by `open`, ended by `close`."""

    def __init__(
        self,
        *,
        order: Orderer,
        view: MetadataView,
        queries: Callable[[], Queries],
        wal_writer: WalWriter,
        wal_reader: WalReader,
        store: ObjectStore,
        clock: Clock,
        limits: LogLimits,
        identity: tuple[int, int],
        pool: ThreadPoolExecutor,
        on_fatal: Callable[[BaseException], None],
        instruments: LogInstruments | None = None,
    ) -> None:
        """
        Args:
            queries: gives the calling thread's own read-only connection.
            identity: this agent's (id, epoch).
            pool: for block reads, object puts and WAL preparation.
            on_fatal: ends the process; called when it is unknown what is durable.
        """
        self._order = order
        self._view = view
        self._clock = clock
        self._limits = limits
        self._pool = pool
        self._wal_writer = wal_writer
        self._on_fatal = on_fatal
        self._queries = queries
        self._instruments = instruments or NoInstruments()
        self._producer_ids: list[int] = []
        self._producer_ids_lock = asyncio.Lock()
        self._spare: asyncio.Future[None] | None = None
        self.tail = TailCache(limits.tail_cache_bytes)
        self.blocks = BlockCache(limits)
        self.numbers = ObjectNumbers(identity)
        self.waiters = Waiters()
        self.reader = LogReader(
            queries=queries(),
            tail=self.tail,
            blocks=self.blocks,
            wals={0: wal_reader},
            store=store,
            pool=pool,
            limits=limits,
            behind=self,
        )
        self.lane = CommitLane(
            wal=wal_writer,
            order=order,
            clock=clock,
            limits=limits,
            deliver=self._deliver,
            announce=self._announce,
            on_fatal=on_fatal,
        )
        self.uploader = Uploader(
            queries=self._fresh_queries,
            database=order,
            view=view,
            tail=self.tail,
            wal_writer=wal_writer,
            wal_reader=wal_reader,
            store=store,
            committer=self,
            clock=clock,
            pool=pool,
            limits=limits,
            numbers=self.numbers,
        )
        self.keeper = Keeper(
            queries=self._fresh_queries,
            view=view,
            store=store,
            committer=self,
            clock=clock,
            pool=pool,
            limits=limits,
            numbers=self.numbers,
        )

    def start(self) -> None:
        """Start the lane's thread and the background tasks."""
        self.lane.start()
        self.uploader.start(self._queries().wal_runs())
        self._prepare_spare()

    async def close(self, deadline_s: float = 30.0) -> bool:
        """Move what is in the WAL to segments if there is time, then stop everything.

        Returns:
            Whether the WAL is empty; if not, its records are in it and the next start serves
            them from there.
        """
        drained = await self.uploader.drain(deadline_s)
        await self.uploader.close()
        await self.lane.close()
        if self._spare is not None:
            await asyncio.gather(self._spare, return_exceptions=True)
        self._wal_writer.close()
        await self.reader.close()
        await self.blocks.close()
        return drained

    # -- order -----------------------------------------------------------------------------------

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.metadata.committer.Committer`."""
        return await self.lane.commit(commands)

    @property
    def is_behind(self) -> bool:
        """Whether something was appended that queries of the database do not find yet."""
        return self._order.uncommitted_count > 0

    async def flush(self) -> None:
        """Let queries find all that was appended before the call.

        Raises:
            StorageFullError: no space; to be tried again.
        """
        if self.is_behind:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._order.commit)

    def _fresh_queries(self) -> Queries:
        """The calling thread's, which find all that was appended before, if there is space."""
        if self.is_behind:
            with contextlib.suppress(StorageFullError):
                self._order.commit()
        return self._queries()

    # -- append ----------------------------------------------------------------------------------

    def append(
        self,
        appends: list[PartitionAppend],
        *,
        timeout_ms: int,
        done: Callable[[PenstockError | None], None],
        source: int = 0,
    ) -> None:
        """Store checked batches of one request; `done` is called once, on the event loop.

        Args:
            timeout_ms: how long the client waits; a full WAL is waited for at most as long.
            done: with None when each append holds its status, else with the error that befell
                all of them.
            source: the connection that it came from: producers on many of them share commits.
        """
        length = sum(append.batch.length for append in appends)
        if self.lane.waiting_bytes + length > self._limits.waiting_bytes_max:
            waiting = self.lane.waiting_bytes
            done(
                OverloadedError(
                    "append",
                    "log",
                    f"{waiting} bytes wait already, {self._limits.waiting_bytes_max} may",
                    "try again later",
                )
            )
            return
        wait_ms = min(max(timeout_ms, 0), self._limits.append_wait_ms_max)
        deadline_s = self._clock.monotonic_s() + wait_ms / 1000
        self.lane.submit(AppendRequest(appends, length, deadline_s, done, source))

    @property
    def append_bytes_max(self) -> int:
        """The largest total of one `append` call, in bytes."""
        return self._wal_writer.frame_bytes_max

    async def allocate_producer_id(self) -> tuple[int, int]:
        """A producer id that nobody else gets, and its epoch, 0."""
        async with self._producer_ids_lock:
            if not self._producer_ids:
                (answer,) = await self.commit(
                    [AllocateProducerIds(count=self._limits.producer_id_block)]
                )
                assert isinstance(answer, ProducerIds), answer
                # Popped from the end, so that ids are given out in ascending order.
                self._producer_ids = list(
                    range(answer.first + answer.count - 1, answer.first - 1, -1)
                )
            return self._producer_ids.pop(), 0

    # -- fetch -----------------------------------------------------------------------------------

    def read(
        self, key: PartitionKey, offset: int, bytes_max: int, *, may_load: bool = True
    ) -> TailRead | Missing | None:
        """See `LogReader.read`."""
        return self.reader.read(key, offset, bytes_max, may_load=may_load)

    def read_parts(
        self, key: PartitionKey, offset: int, bytes_max: int, *, may_load: bool = True
    ) -> TailRead | PartsRead | Missing | None:
        """See `LogReader.read_parts`."""
        return self.reader.read_parts(key, offset, bytes_max, may_load=may_load)

    @property
    def loads_max(self) -> int:
        """Loads that one fetch may have under way: together they must not push one another out
        of the block cache."""
        limits = self._limits
        blocks = limits.block_cache_bytes // limits.block_bytes
        return max(1, blocks // (2 * (1 + limits.prefetch_blocks)))

    def high_watermark(self, key: PartitionKey) -> int:
        """The offset after the last record. Raises: NotFoundError."""
        head = self._view.head(key)
        if head is None:
            raise NotFoundError("look up", f"partition key {key}", "no such partition")
        return head.next_offset

    def last_stable_offset(self, key: PartitionKey) -> int:
        """The high watermark, until there are transactions. Raises: NotFoundError."""
        return self.high_watermark(key)

    def log_start(self, key: PartitionKey) -> int:
        """The first offset that may be read. Raises: NotFoundError."""
        head = self._view.head(key)
        if head is None:
            raise NotFoundError("look up", f"partition key {key}", "no such partition")
        return head.log_start

    async def offset_for_time(self, key: PartitionKey, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record whose timestamp is at least `timestamp_ms`."""
        return await find_time(
            self.reader, self._in_pool, self._fresh_queries, key, timestamp_ms, self.log_start(key)
        )

    async def offset_of_max_timestamp(self, key: PartitionKey) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that has the greatest timestamp."""
        return await find_max_timestamp(
            self.reader, self._in_pool, self._fresh_queries, key, self.log_start(key)
        )

    async def delete_records(self, items: Sequence[tuple[PartitionKey, int]]) -> list[int]:
        """Raise log starts; -1 means the high watermark. Answers the new starts, or minus a
        Refusal."""
        flat = [value for item in items for value in item]
        (answer,) = await self.commit([TrimLog(items=flat)])
        assert isinstance(answer, LogTrimmed), answer
        return answer.starts

    def partition_bytes(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Bytes of the runs of each partition."""
        return self._fresh_queries().partition_bytes(keys)

    # -- following what was applied --------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        if delivery.error is None:
            self._view.apply(delivery.changes)
            self._take_batches(delivery)
            self._follow(delivery)
        else:
            if delivery.place is not None:
                # Its frame lies in the WAL, though nothing names it.
                self.uploader.added(0, generation=delivery.place.generation)
            self.uploader.look_again()
        self._instruments.committed(delivery)
        self._prepare_spare()

    def _take_batches(self, delivery: Delivery) -> None:
        plan, place = delivery.plan, delivery.place
        if plan is None or place is None:
            return
        stored = 0
        for request in delivery.appends:
            _unpin(request)
        for key, _, group in plan.runs:
            for append in group:
                if append.status is not BatchStatus.STORED:
                    continue
                batch, base_offset = append.batch, append.base_offset
                patch_base_offset(batch.view, base_offset)
                self.tail.add(key, base_offset, base_offset + batch.record_count, batch.view)
                stored += batch.length
        self.uploader.added(stored, generation=place.generation)

    def _follow(self, delivery: Delivery) -> None:
        for change in delivery.changes:
            if isinstance(change, RunsMoved):
                self.reader.forget_places(change.partition_key)
            elif isinstance(change, TopicDeleted):
                self._forget_topic(change)

    def _announce(self, delivery: Delivery) -> None:
        moved: list[PartitionKey] = []
        for change in delivery.changes:
            if isinstance(change, HeadMoved):
                moved.append(change.partition_key)
            elif isinstance(change, TopicDeleted):
                moved += self.waiters.of_topic(change.topic_key)
        if moved:
            self.waiters.notify(moved)

    def _forget_topic(self, change: TopicDeleted) -> None:
        gone = [key for key in self.tail.partitions() if topic_key_of(key) == change.topic_key]
        for key in gone:
            self.tail.forget(key)
            self.reader.forget_places(key)

    def _prepare_spare(self) -> None:
        if (self._spare is None or self._spare.done()) and self._wal_writer.needs_spare():
            self._spare = asyncio.get_running_loop().run_in_executor(self._pool, self._make_spare)

    def _make_spare(self) -> None:
        try:
            self._wal_writer.prepare_spare()
        except StorageFullError as error:
            # The lane makes its own file, or finds the WAL full and says so.
            logger.debug("no spare WAL file: %s", error)
        except PenstockError as error:
            self._on_fatal(error)

    async def _in_pool(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _unpin(request: AppendRequest) -> None:
    """Copy what was stored of a request if it is little of it: views keep the whole request in
    memory, and the tail cache counts only what it was given."""
    stored = sum(
        append.batch.length for append in request.appends if append.status is BatchStatus.STORED
    )
    request_bytes = memoryview(request.appends[0].batch.view.obj).nbytes
    if stored * _PINNED_SHARE < request_bytes:
        for append in request.appends:
            append.batch.view = memoryview(bytearray(append.batch.view))
