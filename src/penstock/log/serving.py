"""What every kind of log does alike: fetch, look-ups, and following what was applied.

How batches get into the log is the part that differs: `penstock.log.log.Log` commits them in a
lane of its own, `penstock.log.cluster_log.ClusterLog` flushes them in a cluster.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from penstock.log.append.broken import KnownProducer
from penstock.log.append.durable import ObjectBytes
from penstock.log.append.flight import Flight
from penstock.log.append.flusher import Flusher
from penstock.log.append.plan import PartitionAppend
from penstock.log.damage.copy_places import copy_sources
from penstock.log.damage.copy_sources import CopySource
from penstock.log.damage.findings import DamagedError, Damages, Troubles
from penstock.log.damage.frames import DamagedFrames
from penstock.log.damage.noted_ranges import NotedRanges
from penstock.log.damage.rebuilt_records import RebuiltRecords
from penstock.log.damage.repair import DamageRepair
from penstock.log.damage.run_restorer import RunRestorer
from penstock.log.damage.scan import Progress, scan
from penstock.log.damage.scrub import Scrubber
from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.reader import Behind, LogReader, Missing
from penstock.log.fetch.regions import PartsRead
from penstock.log.fetch.remote_wal import RemoteRuns
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.fetch.tail import TailCache, TailRead
from penstock.log.fetch.times import find_max_timestamp, find_time
from penstock.log.fetch.waiters import Waiters
from penstock.log.instruments import LogInstruments, NoInstruments
from penstock.log.numbers import ObjectNumbers
from penstock.log.ordering import Submits
from penstock.log.retention.keeper import Keeper
from penstock.log.settings import LogSettings
from penstock.model.errors import NotFoundError, PenstockError
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.ports.clock import Clock
from penstock.ports.objects import FileStore, ObjectStore
from penstock.state.answers import AnyAnswer, LogTrimmed, ProducerIds
from penstock.state.changes import (
    Change,
    HeadMoved,
    HistoryChanged,
    RunsMoved,
    TopicDeleted,
)
from penstock.state.commands import AllocateProducerIds, AnyCommand, TrimLog
from penstock.state.numbers import INT64_MAX
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.wal import WalReader

_ANYWHERE: Final = 1 << 62


class ServingLog(ABC):
    """Fetch side of a log. Event loop only."""

    keeper: Keeper
    """Made by each log, which knows what orders its commands."""

    def __init__(
        self,
        *,
        view: StateView,
        queries: Callable[[], Queries],
        store: ObjectStore,
        wals: Mapping[int, WalReader],
        clock: Clock,
        limits: LogSettings,
        identity: tuple[int, int],
        pool: Executor,
        remote_runs: RemoteRuns | None = None,
        before_stored: Callable[[], None] | None = None,
        behind: Behind | None = None,
        instruments: LogInstruments | None = None,
        scrubs_objects: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            queries: gives the calling thread's own read-only connection.
            identity: this agent's (id, epoch).
            wals: of the own WALs, by key; may change later.
            remote_runs: reads runs of other agents' WALs.
            before_stored: called before anything but the tail cache is served; raises if it must
                not be.
            behind: whether queries may be behind what the view knows.
            scrubs_objects: whether it is this agent that reads objects to find rot.
        """
        self._view = view
        self._clock = clock
        self._limits = limits
        self._pool = pool
        self._queries = queries
        self._behind = behind
        self._known_producer: KnownProducer = lambda key, producer_id: queries().producer(
            key, producer_id
        )
        self._producer_ids: list[int] = []
        self._producer_ids_lock = asyncio.Lock()
        self.numbers = ObjectNumbers(identity)
        self.tail = TailCache(limits.tail_cache_bytes)
        self.blocks = BlockCache(limits)
        self.waiters = Waiters()
        self._instruments = instruments or NoInstruments()
        self.damages = Damages(
            clock=clock,
            partition_name=self.partition_name,
            log_start=self._log_start,
            on_found=self._instruments.damaged,
            on_healed=self._instruments.healed,
        )
        self._troubles = Troubles(clock)
        own_queries = queries()
        self.reader = LogReader(
            queries=own_queries,
            tail=self.tail,
            blocks=self.blocks,
            wals=wals,
            store=store,
            limits=limits,
            checks=RunChecks(
                damages=self.damages,
                clock=clock,
                pool=pool,
                clean_end=partial(_clean_end, own_queries),
                epochs=view.epoch_starts,
                seed_of=view.seed,
                again_s=limits.check_again_after_ms / 1000,
                store=store,
                topic_id_of=self.topic_id_of,
            ),
            remote_runs=remote_runs,
            before_stored=before_stored,
            behind=behind,
        )
        self.damage_repair = DamageRepair(
            damages=self.damages,
            examiner=self.reader.examiner,
            checks=self.reader.checks,
            queries=self._found_in_pool,
            let_queries_find=self.let_queries_find,
            committer=self,
            epochs=view.epoch_starts,
            restorer=RunRestorer(
                sources=partial(self._copy_sources, store, wals),
                store=store,
                numbers=lambda: self.numbers,
                committer=self,
                checks=self.reader.checks,
                epochs=view.epoch_starts,
                topic_id_of=self.topic_id_of,
            ),
            levels=view,
        )
        noted = partial(
            NotedRanges,
            queries=queries,
            let_queries_find=self.let_queries_find,
            partition_name=self.partition_name,
            log_start=self._log_start,
            pool=pool,
        )
        self.lost_ranges, self.rebuilt_ranges = noted("lost_ranges"), noted("rebuilt_ranges")
        self.damaged_frames = DamagedFrames(
            examiner=self.reader.examiner,
            queries=self._found_in_pool,
            partition_name=self.partition_name,
            pool=pool,
        )
        self.rebuilt_records = RebuiltRecords(
            repair=self.damage_repair,
            checks=self.reader.checks,
            queries=self._found_in_pool,
            let_queries_find=self.let_queries_find,
            store=store,
            numbers=lambda: self.numbers,
            committer=self,
            epochs=view.epoch_starts,
            topic_id_of=self.topic_id_of,
            partition_name=self.partition_name,
        )
        is_local = isinstance(store, FileStore)
        self.scrubber = self._scrubber(
            limits.scrub_bytes_per_s,
            lambda: (is_local or limits.scrub_bucket) and scrubs_objects(),
        )

    @abstractmethod
    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.order.committer.Committer`."""

    @abstractmethod
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
            timeout_ms: how long the client waits.
            done: with None when each append holds its status or its own error, else with the
                error of all of them.
            source: the connection that it came from.
        """

    def refuse(  # noqa: B027 - the lane of a log of one server takes no such note yet
        self, appends: list[PartitionAppend], *, source: int = 0
    ) -> None:
        """Take note of checked batches that are refused retriably before they get here: what their
        producers have sent after them fails until they come again."""

    def hold(self) -> None:  # noqa: B027 - whoever never waits for company has nothing to do
        """More than one `append` may follow; `settle` comes after the last, in the same callback
        of the event loop."""

    def settle(self, *, all_came: bool = False) -> None:  # noqa: B027
        """End the hold: no append follows for now. `all_came`: nor is one to be waited for."""

    @property
    @abstractmethod
    def append_bytes_max(self) -> int:
        """The largest total of one `append` call, in bytes."""

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

    def read_failed(self, key: PartitionKey, error: BaseException) -> None:
        """A client's read of a partition failed: count it and, unless it is damage, which has a
        line of its own, say so in the log."""
        self._instruments.read_failed(type(error).__name__)
        if not isinstance(error, DamagedError):
            self._troubles.met(error, self.partition_name(key))

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
            self.reader, self._in_pool, self._found_in_pool, key, timestamp_ms, self.log_start(key)
        )

    async def offset_of_max_timestamp(self, key: PartitionKey) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that has the greatest timestamp."""
        return await find_max_timestamp(
            self.reader, self._in_pool, self._found_in_pool, key, self.log_start(key)
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
        return self._queries().partition_bytes(keys)

    async def let_queries_find(self) -> None:
        """Let queries of the database find all that was applied here before the call.

        Raises:
            RetryableError: whoever writes the database is away, or it has no space.
        """
        if self._behind is not None and self._behind.is_behind:
            await self._behind.flush()

    def topic_id_of(self, key: PartitionKey) -> bytes | None:
        """The id of a partition's topic; None: it is gone."""
        topic = self._view.topic_by_key(topic_key_of(key))
        return None if topic is None else bytes(topic.topic_id)

    def partition_name(self, key: PartitionKey) -> str:
        """A partition for people, such as `flights-3`."""
        topic = self._view.topic_by_key(topic_key_of(key))
        name = "(a deleted topic)" if topic is None else topic.name
        return f"{name}-{partition_of(key)}"

    def _log_start(self, key: PartitionKey) -> int | None:
        head = self._view.head(key)
        return None if head is None else head.log_start

    async def scan(
        self, *, bytes_per_s: int, reads_objects: bool, progress: Progress
    ) -> dict[str, Any]:
        """Read all that is stored once, to know what is damaged; see `penstock.log.damage.scan`.

        Args:
            bytes_per_s: the rate.
            reads_objects: false: the WALs of this host alone.

        Raises:
            RetryableError: the store, or the process that writes the database, is away.
        """
        await self.let_queries_find()
        sizes = await asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: self._queries().partition_bytes(None)
        )
        return await scan(
            self._scrubber(bytes_per_s, lambda: reads_objects),
            clock=self._clock,
            total_bytes=sum(sizes.values()),
            progress=progress,
        )

    # -- following what was applied --------------------------------------------------------------

    def begin_anew(self) -> None:
        """Begin again after entries were missed and the view was read once more: forget where runs
        lie and what was in them, which may have been cleaned since, and let all who wait look."""
        self.reader.forget_all_places()
        self._ranges_noted()
        for key in list(self.tail.partitions()):
            self.tail.forget(key)
        self.waiters.notify_all()

    def _wal_owner(self, wal_key: int) -> int | None:
        """The agent that owns a WAL; key 0 is the journal writer's of a host, whoever that is."""
        if wal_key == 0:
            return 0
        for wal in self._queries().wals():
            if wal.wal_key == wal_key:
                return wal.agent
        return None

    def _follow(self, changes: Iterable[Change]) -> None:
        """Bring the caches up to what was applied; the view has been."""
        for change in changes:
            if isinstance(change, RunsMoved):
                self.reader.forget_places(change.partition_key)
                if change.repaired:
                    # By another agent, perhaps: it is damaged no more.
                    self.damages.given_up(change.partition_key, change.start, change.end)
                    self._ranges_noted()
                    self.damaged_frames.repaired()
                if change.cleaned:
                    # What compaction has removed must not come out of memory either.
                    self.tail.forget_before(change.partition_key, change.end)
            elif isinstance(change, TopicDeleted):
                self._forget_topic(change)
            elif isinstance(change, HistoryChanged):
                # The block may have been given out by the lost rows, too.
                self._producer_ids = []

    def _ranges_noted(self) -> None:
        self.lost_ranges.changed()
        self.rebuilt_ranges.changed()

    def _wake_readers(self, changes: Iterable[Change]) -> None:
        moved: list[PartitionKey] = []
        for change in changes:
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

    def _copy_sources(
        self, store: ObjectStore, wals: Mapping[int, WalReader], url: str
    ) -> list[CopySource]:
        """Where copies of damaged runs are looked for, the nearest first."""
        return copy_sources(
            tail=self.tail,
            blocks=self.blocks,
            block_bytes=self._limits.block_bytes,
            store=store,
            wals=wals,
            url=url,
            queries=self._found_in_pool,
            pool=self._pool,
            topic_id_of=self.topic_id_of,
        )

    def _found_in_pool(self) -> Queries:
        """Queries that find all that was appended; for threads of the pool."""
        return self._queries()

    def _object_flusher(
        self,
        *,
        ordering: Submits,
        store: ObjectStore,
        deliver: Callable[[Flight], object],
        on_fatal: Callable[[BaseException], None],
    ) -> Flusher:
        """Make what appends to topics with durability `object`."""
        limits = self._limits
        return Flusher(
            ordering=ordering,
            bytes_store=ObjectBytes(
                store=store,
                numbers=self.numbers,
                view=self._view,
                pool=self._pool,
                flights_max=limits.flush_puts_max,
            ),
            known_producer=self._known_producer,
            clock=self._clock,
            flush_bytes=limits.flush_bytes,
            bytes_max=2 * limits.flush_bytes,
            store_wait_s=limits.append_wait_ms_max / 1000,
            unordered_max=limits.flushes_open_max,
            deliver=deliver,
            over=self._instruments.flushed,
            on_fatal=on_fatal,
        )

    def _scrubber(self, bytes_per_s: int, reads_objects: Callable[[], bool]) -> Scrubber:
        return Scrubber(
            # What was appended just now is read at the next pass.
            queries=self._queries,
            view=self._view,
            examiner=self.reader.examiner,
            clock=self._clock,
            pool=self._pool,
            bytes_per_s=bytes_per_s,
            reads_objects=reads_objects,
        )

    async def _in_pool(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _clean_end(queries: Queries, key: PartitionKey) -> int:
    """Up to where batches may be missing: where a partition was compacted by key, and anywhere in a
    partition of which a loss was accepted. There the sums of runs alone tell what is missing."""
    if queries.lost_range_before(key, INT64_MAX) is not None:
        return _ANYWHERE
    row = queries.clean_rows([key]).get(key)
    return 0 if row is None else row.clean_end
