"""The log: append and fetch by partition, and the look-ups that the Kafka face asks for.

A thin front that assembles the lane, the caches, the uploader and the keeper, and keeps them in
step with what was applied. Event loop only.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from penstock.log.append.dispatch import Dispatcher
from penstock.log.append.flight import Flight
from penstock.log.append.lane import AppendRequest, CommitLane, Delivery, Orderer
from penstock.log.append.lane_ordering import LaneOrdering
from penstock.log.append.plan import PartitionAppend
from penstock.log.append.to_tail import take_batches
from penstock.log.fetch.remote_wal import RemoteRuns, RemoteWal
from penstock.log.instruments import LogInstruments
from penstock.log.retention.keeper import Keeper
from penstock.log.routing import Path, Routes
from penstock.log.serving import ServingLog
from penstock.log.settings import LogSettings
from penstock.log.upload.pending import RunSeeds, committed_runs
from penstock.log.upload.uploader import Uploader, WalFiles
from penstock.log.wals.takeover import Takeovers
from penstock.model.errors import PenstockError, StorageFullError
from penstock.model.ids import TopicKey
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.objects import ObjectStore
from penstock.state.ages import Ages
from penstock.state.answers import AnyAnswer
from penstock.state.commands import AnyCommand
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.system.heard import Cause, heard
from penstock.wal import WalReader, WalWriter

logger = logging.getLogger(__name__)


class Log(ServingLog):
    """An embedded server's log. `start` it, and `close` it in the end."""

    def __init__(
        self,
        *,
        order: Orderer,
        view: StateView,
        queries: Callable[[], Queries],
        wal_writer: WalWriter,
        wal_reader: WalReader,
        store: ObjectStore,
        clock: Clock,
        ages: Ages,
        limits: LogSettings,
        identity: tuple[int, int],
        pool: Executor,
        on_fatal: Callable[[BaseException], None],
        instruments: LogInstruments | None = None,
        remote_wal: RemoteWal | None = None,
        on_delivered: Callable[[Delivery], None] = lambda _: None,
    ) -> None:
        """
        Args:
            queries: gives the calling thread's own read-only connection.
            identity: this agent's (id, epoch).
            pool: for block reads, object puts and WAL preparation.
            on_fatal: ends the process; called when it is unknown what is durable.
            remote_wal: how the WALs of other workers of this host are read.
            on_delivered: called with each outcome that changed something, once the view has it
                and before it is answered.
        """
        self._wals = {0: wal_reader}
        super().__init__(
            view=view,
            queries=queries,
            store=store,
            wals=self._wals,
            clock=clock,
            limits=limits,
            identity=identity,
            pool=pool,
            behind=self,
            remote_runs=RemoteRuns(remote_wal, owner_of=self._wal_owner, pool=pool)
            if remote_wal
            else None,
            instruments=instruments,
        )
        self._on_delivered = on_delivered
        self._seeds = RunSeeds(self._view)
        self._order = order
        self.position = 0
        """The last entry that was delivered here; `time_ms` is journal time there."""
        self.time_ms = 0
        self._wal_writer = wal_writer
        self._on_fatal = on_fatal
        self._committed_queries = queries
        self._queries = self._fresh_queries
        self._spare: asyncio.Future[None] | None = None
        self.lane = CommitLane(
            wal=wal_writer,
            order=order,
            known_producer=self._known_producer,
            clock=clock,
            levels=view,
            limits=limits,
            deliver=self._deliver,
            announce=self._announce,
            on_fatal=on_fatal,
        )
        self._objects = self._object_flusher(
            ordering=LaneOrdering(self.lane.submit_commands),
            store=store,
            deliver=self._deliver_flight,
            on_fatal=on_fatal,
        )
        self._dispatcher = Dispatcher(
            self,
            routes=Routes(
                view=view, default=Path(limits.durability), is_under_way=self._is_under_way
            ),
            clock=clock,
            limits=limits,
        )

        def new_uploader(wal_key: int, reader: WalReader, files: WalFiles) -> Uploader:
            return Uploader(
                queries=self._fresh_queries,
                database=order,
                view=view,
                tail=self.tail,
                wal_writer=files,
                wal_reader=reader,
                store=store,
                committer=self,
                clock=clock,
                pool=pool,
                limits=limits,
                numbers=self.numbers,
                damages=self.damages,
                wal_key=wal_key,
            )

        self.uploader = new_uploader(0, wal_reader, wal_writer)
        self._takeovers = Takeovers(
            readers=self._wals,
            new_uploader=new_uploader,
            committer=self,
            queries=self._fresh_queries,
            pool=pool,
            on_opened=self.damaged_frames.opened,
        )
        self.keeper = Keeper(
            queries=self._fresh_queries,
            view=view,
            store=store,
            committer=self,
            ages=ages,
            journal_ms=lambda: order.time_ms,
            pool=pool,
            limits=limits,
            numbers=self.numbers,
        )

    def start(self) -> None:
        """Start the lane's thread and the background tasks."""
        self.lane.start()
        self.uploader.start(self._committed_queries().wal_runs())
        self.damaged_frames.opened(0, self._wal_writer.recovery.damaged)
        self._prepare_spare()

    async def close(self, deadline_s: float = 30.0) -> bool:
        """Move what is in the WAL to segments if there is time, then stop everything.

        Returns:
            Whether the WAL is empty; if not, its records are in it and the next start serves
            them from there.
        """
        await self._objects.drain(deadline_s)
        drained = await self.uploader.drain(deadline_s)
        await self.damaged_frames.close()
        await self.lost_ranges.close()
        await self.rebuilt_ranges.close()
        await self._takeovers.close()
        await self.uploader.close()
        await self._objects.close()
        await self.lane.close()
        if self._spare is not None:
            await asyncio.gather(self._spare, return_exceptions=True)
        self._wal_writer.close()
        for wal_key, reader in self._wals.items():
            if wal_key:
                reader.close()
        await self.reader.close()
        await self.blocks.close()
        return drained

    # -- order -----------------------------------------------------------------------------------

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.order.committer.Committer`."""
        return await self.lane.commit(commands)

    async def confirm_head(self) -> None:
        """See `penstock.order.heads.Heads`. Whoever writes the journal is at its head."""

    @property
    def head_confirmed_s(self) -> float:
        """See `Heads`."""
        return self._clock.monotonic_s()

    @property
    def is_behind(self) -> bool:
        """Whether something was appended that queries of the database do not find yet."""
        return self._order.uncommitted_count > 0

    @property
    def hidden_position(self) -> int:
        """The position of the last answered command that queries of the database can't find yet,
        since there was no space for it; 0: they find all of them."""
        position = self.lane.hidden_position
        return position if position > self._order.committed_position else 0

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
            try:
                self._order.commit()
            except StorageFullError as error:
                heard(Cause.DATABASE_FULL, error, logger, "queries find what was before")
        return self._committed_queries()

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
            done: with None when each append holds its status, else with the error of
                all of them.
            source: the connection that it came from: producers on many of them share commits.
        """
        self._dispatcher.append(appends, timeout_ms=timeout_ms, done=done, source=source)

    def hold(self) -> None:
        """See `ServingLog`."""
        self.lane.hold()

    def settle(self, *, all_came: bool = False) -> None:
        """See `ServingLog`."""
        self.lane.settle(all_came=all_came)

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed in whose outcome isn't known yet."""
        return self.lane.waiting_bytes + self._objects.waiting_bytes

    def submit(self, path: Path, request: AppendRequest, *, wait_s: float) -> None:
        """See `penstock.log.append.dispatch.Paths`."""
        if path is Path.WAL:
            self.lane.submit(request)
            return
        self._objects.submit(request, wait_s=wait_s)

    def _is_under_way(self, path: Path, topic_key: TopicKey) -> bool:
        if path is Path.OBJECT:
            return self._objects.holds_topic(topic_key)
        return self.lane.waiting_bytes > 0

    @property
    def append_bytes_max(self) -> int:
        """The largest total of one `append` call, in bytes."""
        return self._wal_writer.frame_bytes_max

    async def take_over(self, device: Device, *, deadline_s: float = 600.0) -> int:
        """Serve and empty the WAL directory of another worker of this host, which was fenced.

        Returns and raises: see `Takeovers.take_over`.
        """
        return await self._takeovers.take_over(device, deadline_s=deadline_s)

    # -- following what was applied --------------------------------------------------------------

    def _deliver(self, delivery: Delivery) -> None:
        if delivery.error is None:
            self._view.apply(delivery.changes)
            self._take_batches(delivery)
            self._follow(delivery.changes)
            if delivery.position:
                self.position, self.time_ms = delivery.position, delivery.time_ms
                self._on_delivered(delivery)
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
        leader_epoch = self._view.leader_epoch
        stored = take_batches(self.tail, plan, delivery.appends, leader_epoch=leader_epoch)
        runs = committed_runs(plan, place, leader_epoch=leader_epoch, seeds=self._seeds)
        self.uploader.added(stored, generation=place.generation, runs=runs)

    def _deliver_flight(self, flight: Flight) -> None:
        assert flight.plan is not None
        requests = [waiting.request for waiting in flight.waiting]
        take_batches(self.tail, flight.plan, requests, leader_epoch=self._view.leader_epoch)

    def _announce(self, delivery: Delivery) -> None:
        if self._objects.waiting_bytes:
            # The entry may name a flush, which fills the tail cache in callbacks that are queued
            # by now: readers look there first.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._wake_readers, delivery.changes)
        else:
            self._wake_readers(delivery.changes)

    def _prepare_spare(self) -> None:
        if (self._spare is None or self._spare.done()) and self._wal_writer.needs_spare():
            self._spare = asyncio.get_running_loop().run_in_executor(self._pool, self._make_spare)

    def _make_spare(self) -> None:
        try:
            self._wal_writer.prepare_spare()
        except StorageFullError as error:
            # The lane makes its own file, or finds the WAL full and says so.
            heard(Cause.WAL_SPACE, error, logger, "no spare WAL file")
        except PenstockError as error:
            self._on_fatal(error)
