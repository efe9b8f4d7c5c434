"""The log of one agent: appends by path, reads, and what keeps both right.

A front that joins the rooms and keeps them in step with what was applied. What differs between the
shapes of an agent is handed in: the order, how queries catch up with it, and the agent's own WAL.

    order = ...                                # see `penstock.order.port`
    log = Log(order=order, own_wal=..., ...)
    order.start(on_applied=log.on_applied, on_answered=log.on_answered, ...)
    await log.start(epoch=order.epoch)
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor

from penstock.log.append.durable import ObjectBytes
from penstock.log.append.paths import Appends
from penstock.log.append.plan import PartitionAppend
from penstock.log.damage.care import DamageCare
from penstock.log.fetch.reader import Missing
from penstock.log.fetch.regions import PartsRead
from penstock.log.fetch.remote_wal import RemoteWal
from penstock.log.fetch.tail import TailRead
from penstock.log.following import Following
from penstock.log.instruments import LogInstruments, NoInstruments
from penstock.log.numbers import ObjectNumbers
from penstock.log.partitions import Partitions
from penstock.log.producer_ids import ProducerIds
from penstock.log.reads import Reads
from penstock.log.retention.keeper import Keeper
from penstock.log.retention.transactions import TransactionKeeper
from penstock.log.routing import Path
from penstock.log.settings import LogSettings
from penstock.log.state_queries import StateQueries
from penstock.log.transaction_reads import TransactionReads
from penstock.log.upload.moved_segments import MovedSegments
from penstock.log.upload.uploader import Syncs, Uploader
from penstock.log.upload.waiting_markers import WaitingMarkers
from penstock.log.wals.parts import LogParts
from penstock.log.wals.port import OwnWal
from penstock.log.wals.takeover import Takeovers
from penstock.model.errors import NotFoundError, PenstockError, RetryableError
from penstock.model.ids import PartitionKey
from penstock.order.port import Heads
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.objects import ObjectStore
from penstock.state.ages import Ages
from penstock.state.answers import AnyAnswer, LogTrimmed
from penstock.state.commands import AnyCommand, TrimLog
from penstock.state.order_types import AppliedEntries, Order
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import AgentStatus
from penstock.state.transactions import AbortedRange
from penstock.wal import WalReader


class Log:
    """One agent's log. Event loop only: `start` it once it follows, and `close` it in the end."""

    def __init__(
        self,
        *,
        order: Order,
        own_wal: Callable[[LogParts], OwnWal],
        view: StateView,
        queries: StateQueries,
        store: ObjectStore,
        clock: Clock,
        ages: Ages,
        limits: LogSettings,
        agent_id: int,
        pool: Executor,
        on_fatal: Callable[[BaseException], None],
        heads: Heads | None = None,
        database: Syncs | None = None,
        remote_wal: RemoteWal | None = None,
        is_keeper: Callable[[], bool] = lambda: True,
        held_since_ms: Callable[[], int | None] = lambda: None,
        compare_history: Callable[[], Awaitable[None]] | None = None,
        instruments: LogInstruments | None = None,
    ) -> None:
        """
        Args:
            own_wal: makes the append path of topics with durability `wal`.
            pool: for block reads, object puts and the WAL.
            on_fatal: ends the process; called when it is unknown what is durable.
            heads: how far this replica is; None: this agent writes the journal, and is never
                behind.
            database: see `LogParts`.
            remote_wal: how other agents' WALs are read.
            is_keeper: whether retention, deletion, the scrub of objects and the time-outs of
                transactions are this agent's.
            ages, held_since_ms, compare_history: see `Keeper`.
        """
        instruments = instruments or NoInstruments()
        self._order = order
        self._view = view
        self._queries = queries
        self._limits = limits
        self._agent_id = agent_id
        self._pool = pool
        self._agents_generation = -1
        self._is_alone = False
        self._wals: dict[int, WalReader] = {}
        self.partitions = Partitions(view)
        self.numbers = ObjectNumbers((agent_id, 0))
        self.reads = Reads(
            view=view,
            queries=queries,
            store=store,
            wals=self._wals,
            partitions=self.partitions,
            clock=clock,
            limits=limits,
            pool=pool,
            heads=heads,
            remote_wal=remote_wal,
            instruments=instruments,
        )
        self.care = DamageCare(
            reads=self.reads,
            view=view,
            queries=queries,
            committer=order,
            store=store,
            wals=self._wals,
            numbers=self.numbers,
            partitions=self.partitions,
            clock=clock,
            limits=limits,
            pool=pool,
            scrubs_objects=is_keeper,
        )
        parts = LogParts(
            order=order,
            view=view,
            queries=queries,
            readers=self._wals,
            tail=self.reads.tail,
            store=store,
            numbers=self.numbers,
            damages=self.reads.damages,
            clock=clock,
            limits=limits,
            pool=pool,
            instruments=instruments,
            known_producer=lambda key, producer_id: queries().producer(key, producer_id),
            database=database,
            on_opened=self.care.damaged_frames.opened,
            on_fatal=on_fatal,
        )
        self.own_wal = own_wal(parts)
        self.objects = parts.flusher(
            ObjectBytes(
                store=store,
                numbers=self.numbers,
                view=view,
                pool=pool,
                flights_max=limits.flush_puts_max,
            ),
            flush_bytes=limits.flush_bytes,
            bytes_max=2 * limits.flush_bytes,
            deliver=parts.take_batches,
        )
        self._appends = Appends(
            wal=self.own_wal, objects=self.objects, view=view, clock=clock, limits=limits
        )
        self._takeovers = Takeovers(
            readers=self._wals,
            new_uploader=parts.uploader,
            committer=order,
            queries=queries.caught_up,
            pool=pool,
            on_opened=self.care.damaged_frames.opened,
        )
        self._producer_ids = ProducerIds(order, block=limits.producer_id_block)
        self.following = Following(
            view=view, reads=self.reads, care=self.care, producer_ids=self._producer_ids
        )
        self.keeper = Keeper(
            queries=queries.caught_up,
            view=view,
            store=store,
            committer=order,
            ages=ages,
            journal_ms=lambda: order.time_ms,
            pool=pool,
            limits=limits,
            numbers=self.numbers,
            may_propose=is_keeper,
            confirm_head=order.confirm_head,
            compare_history=compare_history,
            held_since_ms=held_since_ms,
        )
        self.transactions = TransactionKeeper(
            queries=queries.caught_up,
            view=view,
            committer=order,
            ages=ages,
            pool=pool,
            limits=limits,
            may_propose=is_keeper,
        )
        self.waiting_markers = WaitingMarkers(
            queries=queries.caught_up,
            view=view,
            segments=MovedSegments(store=store, numbers=self.numbers, committer=order),
            pool=pool,
            may_propose=is_keeper,
        )
        self.transaction_reads = TransactionReads(queries, pool)
        # The rooms' parts that many ask for.
        self.tail, self.blocks, self.waiters = (
            self.reads.tail,
            self.reads.blocks,
            self.reads.waiters,
        )
        self.reader, self.damages = self.reads.reader, self.reads.damages
        self.damage_repair, self.scrubber = self.care.repair, self.care.scrubber
        self.lost_ranges, self.rebuilt_ranges = self.care.lost_ranges, self.care.rebuilt_ranges
        self.damaged_frames, self.rebuilt_records = (
            self.care.damaged_frames,
            self.care.rebuilt_records,
        )

    async def start(self, *, epoch: int) -> None:
        """Begin. A WAL that has been here before is served again.

        Raises: as `OwnWal.start`.
        """
        self.numbers.identity = (self._agent_id, epoch)
        await self.own_wal.start(is_default=self._limits.durability == Path.WAL.value)

    async def close(self, deadline_s: float = 30.0) -> bool:
        """Answer what is under way and move what is in the WAL to segments if there is time, then
        stop everything.

        Returns:
            Whether nothing is left in the WAL that only the next start, or a takeover, serves.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s

        def left_s() -> float:
            return max(0.0, until_s - loop.time())

        drained = await self.objects.drain(left_s())
        drained = await self.own_wal.drain(left_s) and drained
        for uploader in self._takeovers.uploaders:
            drained = await uploader.drain(left_s()) and drained
        await self.objects.close()
        await self.care.close()
        await self._takeovers.close()
        await self.own_wal.close()
        for wal_key, reader in self._wals.items():
            if wal_key:  # key 0 was handed in
                reader.close()
        await self.reads.close()
        return drained

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
            timeout_ms: how long the client waits; it is answered by then, also where its batches
                may still be stored. A full WAL is waited for at most as long.
            done: with None when each append holds its status or its own error, else with the
                error of all of them.
            source: the connection that it came from: producers on many of them share commits.
        """
        self._appends.append(appends, timeout_ms=timeout_ms, done=done, source=source)

    def refuse(self, appends: list[PartitionAppend], *, source: int = 0) -> None:
        """Take note of checked batches that are refused retriably before they get here: what their
        producers have sent after them fails until they come again."""
        self._appends.refuse(appends, source=source)

    def hold(self) -> None:
        """Begin no commit: more than one `append` may follow, and `settle` comes after the last,
        in the same callback of the event loop."""
        self.own_wal.hold()

    def settle(self, *, all_came: bool = False) -> None:
        """End the hold: no append follows for now. `all_came`: nor is one to be waited for."""
        self.own_wal.settle(all_came=all_came)

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed in whose outcome isn't known yet."""
        return self._appends.waiting_bytes

    @property
    def append_bytes_max(self) -> int:
        """The largest total of one `append` call, in bytes."""
        return self.own_wal.append_bytes_max

    def let_go(self, error: RetryableError | None) -> None:
        """Fail appends that are not submitted, and those that come, until it is called with None:
        the journal is away from this agent alone. Fetches that wait look again, as its clients are
        served better elsewhere from now on."""
        self._appends.let_go(error)
        is_alone = error is not None
        if is_alone and not self._is_alone:
            self.waiters.wake_in_turns(asyncio.get_running_loop().call_soon)
        self._is_alone = is_alone

    def give_up(self, error: RetryableError) -> None:
        """See `Appends.give_up`."""
        self._appends.give_up(error)

    # -- commands --------------------------------------------------------------------------------

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.order.port.Committer`."""
        return await self._order.commit(commands)

    async def allocate_producer_id(self) -> tuple[int, int]:
        """See `ProducerIds.allocate`."""
        return await self._producer_ids.allocate()

    async def delete_records(self, items: Sequence[tuple[PartitionKey, int]]) -> list[int]:
        """Raise log starts; -1 means the high watermark. Return the new starts, or minus a
        Refusal."""
        flat = [value for item in items for value in item]
        (answer,) = await self.commit([TrimLog(items=flat)])
        assert isinstance(answer, LogTrimmed), answer
        return answer.starts

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

    def aborted(
        self, key: PartitionKey, start: int, end: int, *, last_aborted: int
    ) -> list[AbortedRange] | Missing:
        """See `LogReader.aborted`."""
        return self.reader.aborted(key, start, end, last_aborted=last_aborted)

    def read_failed(self, key: PartitionKey, error: BaseException) -> None:
        """See `Reads.failed`."""
        self.reads.failed(key, error)

    @property
    def loads_max(self) -> int:
        """See `Reads`."""
        return self.reads.loads_max

    def high_watermark(self, key: PartitionKey) -> int:
        """See `Partitions`."""
        return self.partitions.high_watermark(key)

    def last_stable_offset(self, key: PartitionKey) -> int:
        """See `Partitions`."""
        return self.partitions.last_stable_offset(key)

    def log_start(self, key: PartitionKey) -> int:
        """See `Partitions`."""
        return self.partitions.log_start(key)

    async def offset_for_time(self, key: PartitionKey, timestamp_ms: int) -> tuple[int, int] | None:
        """See `Reads`."""
        return await self.reads.offset_for_time(key, timestamp_ms)

    async def offset_of_max_timestamp(self, key: PartitionKey) -> tuple[int, int] | None:
        """See `Reads`."""
        return await self.reads.offset_of_max_timestamp(key)

    def partition_bytes(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the bytes of the runs of each partition, of which the last may be missing before
        `let_queries_find`."""
        return self._queries().partition_bytes(keys)

    def queries(self) -> Queries:
        """Return queries of the state; they find what is applied after `let_queries_find`."""
        return self._queries()

    async def let_queries_find(self) -> None:
        """See `StateQueries.flush`."""
        await self._queries.flush()

    def topic_id_of(self, key: PartitionKey) -> bytes | None:
        """See `Partitions`."""
        return self.partitions.topic_id_of(key)

    def partition_name(self, key: PartitionKey) -> str:
        """See `Partitions.name`."""
        return self.partitions.name(key)

    # -- WALs ------------------------------------------------------------------------------------

    @property
    def uploader(self) -> Uploader | None:
        """See `OwnWal`."""
        return self.own_wal.uploader

    async def take_over(self, device: Device, *, deadline_s: float = 600.0) -> int:
        """Serve and empty the WAL directory of an agent that was fenced.

        Returns:
            How many bytes of records were moved to segment objects.

        Raises:
            NotFoundError: there is no WAL.
            ConflictError: its owner isn't fenced.
            CorruptDataError: all was moved but what is missing or damaged.
            RetryableError: it isn't done yet, and goes on; what was claimed is served.
        """
        return await self._takeovers.take_over(device, deadline_s=deadline_s)

    async def read_own_wal(
        self, wal_key: int, generation: int, position: int, length: int
    ) -> bytes:
        """Return bytes of a run in a WAL of this agent's, for another agent.

        Raises:
            NotFoundError: the WAL isn't this agent's.
            RetryableError: the file was recycled: the run has moved.
        """
        reader = self._wals.get(wal_key)
        if reader is None:
            raise NotFoundError("read WAL", f"WAL {wal_key}", "it isn't this agent's")
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, reader.read, generation, position, length
        )

    # -- following what was applied --------------------------------------------------------------

    def on_applied(self, applied: AppliedEntries) -> None:
        """Follow entries; the order calls it before it gives out their answers."""
        self.following.on_applied(applied)
        if self._view.agents_generation != self._agents_generation:
            self._agents_generation = self._view.agents_generation
            own = self._view.agent(self._agent_id)
            self.own_wal.hurry(hurries=own is not None and own.status is AgentStatus.DRAINING)

    def on_answered(self, applied: AppliedEntries) -> None:
        """Wake the readers; the order calls it once the answers are given out."""
        self.following.on_answered(applied)

    def begin_again(self) -> None:
        """See `Following.begin_again`."""
        self.following.begin_again()
