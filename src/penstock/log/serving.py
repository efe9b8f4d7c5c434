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
from penstock.log.append.lane import AppendRequest
from penstock.log.append.plan import FramePlan, PartitionAppend
from penstock.log.damage import DamagedError, Damages, Troubles
from penstock.log.damage_repair import DamageRepair
from penstock.log.fetch.blocks import BlockCache
from penstock.log.fetch.reader import Behind, LogReader, Missing
from penstock.log.fetch.regions import PartsRead
from penstock.log.fetch.remote_wal import RemoteRuns
from penstock.log.fetch.run_checks import RunChecks
from penstock.log.fetch.tail import TailCache, TailRead
from penstock.log.fetch.times import find_max_timestamp, find_time
from penstock.log.fetch.waiters import Waiters
from penstock.log.instruments import LogInstruments, NoInstruments
from penstock.log.limits import LogLimits
from penstock.log.numbers import ObjectNumbers
from penstock.log.retention.keeper import Keeper
from penstock.log.scrub import Scrubber
from penstock.metadata.answers import AnyAnswer, BatchStatus, LogTrimmed, ProducerIds
from penstock.metadata.changes import (
    Change,
    HeadMoved,
    HistoryChanged,
    RunsMoved,
    TopicDeleted,
)
from penstock.metadata.commands import AllocateProducerIds, AnyCommand, TrimLog
from penstock.metadata.queries import Queries
from penstock.metadata.view import MetadataView
from penstock.model.errors import NotFoundError, PenstockError
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.ports.clock import Clock
from penstock.ports.objects import FileStore, ObjectStore
from penstock.records.batch import patch_base_offset
from penstock.wal import WalReader

_PINNED_SHARE: Final = 4


_ANYWHERE: Final = 1 << 62


class ServingLog(ABC):
    """Fetch side of a log. Event loop only."""

    keeper: Keeper
    """Made by each log, which knows what orders its commands."""

    def __init__(
        self,
        *,
        view: MetadataView,
        queries: Callable[[], Queries],
        store: ObjectStore,
        wals: Mapping[int, WalReader],
        clock: Clock,
        limits: LogLimits,
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
        self._found_in_pool: Callable[[], Queries] = lambda: self._queries()  # noqa: PLW0108 - it changes
        """Queries that find all that was appended; for threads of the pool."""
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
                topic_id_of=self._topic_id_of,
            ),
            remote_runs=remote_runs,
            before_stored=before_stored,
            behind=behind,
        )
        self.damage_repair = DamageRepair(
            damages=self.damages,
            examiner=self.reader.examiner,
            checks=self.reader.checks,
            queries=lambda: self._found_in_pool(),  # noqa: PLW0108 - it changes
            let_queries_find=self.let_queries_find,
            committer=self,
            epochs=view.epoch_starts,
        )
        is_local = isinstance(store, FileStore)
        self.scrubber = Scrubber(
            # What was appended just now is read at the next pass.
            queries=queries,
            view=view,
            examiner=self.reader.examiner,
            clock=clock,
            pool=pool,
            bytes_per_s=limits.scrub_bytes_per_s,
            reads_objects=lambda: (is_local or limits.scrub_bucket) and scrubs_objects(),
        )

    @abstractmethod
    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.metadata.committer.Committer`."""

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
                error that befell all of them.
            source: the connection that it came from.
        """

    def hold(self) -> None:  # noqa: B027 - whoever never waits for company has nothing to do
        """More than one `append` may follow; `settle` comes after the last, in the same callback
        of the event loop."""

    def settle(self, *, all_came: bool = False) -> None:  # noqa: B027
        """Nothing more to append for now. `all_came`: nor to wait for."""

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

    def _topic_id_of(self, key: PartitionKey) -> bytes | None:
        topic = self._view.topic_by_key(topic_key_of(key))
        return None if topic is None else bytes(topic.topic_id)

    def lost_ranges(self) -> list[dict[str, Any]]:
        """Offsets whose loss was accepted, at most 1,000 ranges; for `/v1/status`."""
        return [
            {"partition": self.partition_name(key), "start": start, "end": end, "time_ms": time_ms}
            for key, start, end, time_ms in self._queries().lost_ranges(1_000)
        ]

    def partition_name(self, key: PartitionKey) -> str:
        """A partition for people, such as `flights-3`."""
        topic = self._view.topic_by_key(topic_key_of(key))
        name = "(a deleted topic)" if topic is None else topic.name
        return f"{name}-{partition_of(key)}"

    def _log_start(self, key: PartitionKey) -> int | None:
        head = self._view.head(key)
        return None if head is None else head.log_start

    # -- following what was applied --------------------------------------------------------------

    def begin_anew(self) -> None:
        """What was applied was missed, and the view was read anew: forget where runs lie and what
        was in them, which may have been cleaned since, and let all who wait look again."""
        self.reader.forget_all_places()
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
                if change.cleaned:
                    # What compaction has removed must not come out of memory either.
                    self.tail.forget_before(change.partition_key, change.end)
            elif isinstance(change, TopicDeleted):
                self._forget_topic(change)
            elif isinstance(change, HistoryChanged):
                # The block may have been given out by the lost rows, too.
                self._producer_ids = []

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

    async def _in_pool(self, work: Callable[[], object]) -> object:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def take_batches(
    tail: TailCache, plan: FramePlan, requests: Iterable[AppendRequest], *, leader_epoch: int
) -> int:
    """Patch what was stored of a commit and keep it in the tail cache; its bytes."""
    for request in requests:
        _unpin(request)
    stored = 0
    for key, _, group in plan.runs:
        for append in group:
            if append.status is not BatchStatus.STORED:
                continue
            batch, base_offset = append.batch, append.base_offset
            patch_base_offset(batch.view, base_offset, leader_epoch)
            tail.add(key, base_offset, base_offset + batch.record_count, batch.view)
            stored += batch.length
    return stored


def _unpin(request: AppendRequest) -> None:
    """Copy what was stored of a request if it is little of it: views keep the whole request in
    memory, and the tail cache counts only what it was given."""
    stored = 0
    for append in request.appends:
        if append.status is BatchStatus.STORED:
            stored += append.batch.length
    request_bytes = memoryview(request.appends[0].batch.view.obj).nbytes
    if stored * _PINNED_SHARE < request_bytes:
        for append in request.appends:
            append.batch.view = memoryview(bytearray(append.batch.view))


def _clean_end(queries: Queries, key: PartitionKey) -> int:
    """Up to where batches may be missing: where a partition was compacted by key, and anywhere in a
    partition of which a loss was accepted. There the sums of runs alone tell what is missing."""
    if queries.lost_ranges_of(key):
        return _ANYWHERE
    row = queries.clean_rows([key]).get(key)
    return 0 if row is None else row.clean_end
