"""The log of an agent in a cluster: flushes, other agents' bytes, one order for all.

It keeps nothing that the cluster can't lose, save a WAL of its own once a topic asks for that.
Assembled in this order, since the agent's epoch is opened while its view already follows:

    order = await ClusterOrder.open(...); view = StateView.load(...)
    log = ClusterLog(ordering=order, view=view, ...)
    await order.start(on_applied=log.on_applied, ...)
    await log.start(epoch=order.epoch)
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from penstock.log.append.dispatch import Dispatcher
from penstock.log.append.flight import Flight
from penstock.log.append.lane import AppendRequest
from penstock.log.append.plan import PartitionAppend
from penstock.log.append.to_tail import take_batches
from penstock.log.catching_up import caught_up
from penstock.log.fetch.reader import Behind
from penstock.log.fetch.remote_wal import RemoteRuns, RemoteWal
from penstock.log.instruments import LogInstruments
from penstock.log.ordering import Applied, Ordering
from penstock.log.retention.keeper import Keeper
from penstock.log.routing import Path, Routes
from penstock.log.serving import ServingLog
from penstock.log.settings import LogSettings
from penstock.log.upload.uploader import Uploader
from penstock.log.wals.cluster_wal import ClusterWal
from penstock.log.wals.own_wal import WalFolder
from penstock.model.errors import PenstockError, RetryableError
from penstock.model.ids import TopicKey
from penstock.placement.rendezvous import owner_of
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.objects import ObjectStore
from penstock.state.ages import Ages
from penstock.state.answers import AnyAnswer
from penstock.state.changes import Change
from penstock.state.commands import AnyCommand
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import AgentStatus
from penstock.wal import WalReader

_KEEPER: Final = b"keeper"


class ClusterLog(ServingLog):
    """One agent's log. `start` after the epoch was opened; `close` in the end."""

    def __init__(
        self,
        *,
        ordering: Ordering,
        view: StateView,
        queries: Callable[[], Queries],
        store: ObjectStore,
        clock: Clock,
        ages: Ages,
        limits: LogSettings,
        agent_id: int,
        pool: Executor,
        on_fatal: Callable[[BaseException], None],
        compare_history: Callable[[], Awaitable[None]] | None,
        wal_folder: WalFolder | None = None,
        remote_wal: RemoteWal | None = None,
        is_keeper: Callable[[], bool] | None = None,
        held_since_ms: Callable[[], int | None] = lambda: None,
        instruments: LogInstruments | None = None,
        behind: Behind | None = None,
    ) -> None:
        """
        Args:
            queries: gives the calling thread's own read-only connection.
            pool: for block reads, object puts and the WAL.
            on_fatal: ends the process; called when it is unknown what is durable.
            wal_folder: where this agent has a WAL once a topic asks for one; None: topics with
                durability `wal` are refused retriably here.
            remote_wal: how other agents' WALs are read.
            is_keeper: whether retention and deletion are this agent's; None: rendezvous hashing.
            ages, held_since_ms, compare_history: see `Keeper`.
            behind: whether queries may be behind what the view knows; None: they never are.
        """
        self._wals: dict[int, WalReader] = {}
        super().__init__(
            view=view,
            queries=queries,
            store=store,
            wals=self._wals,
            clock=clock,
            limits=limits,
            identity=(agent_id, 0),
            pool=pool,
            remote_runs=RemoteRuns(remote_wal, owner_of=self._wal_owner, pool=pool)
            if remote_wal
            else None,
            instruments=instruments,
            before_stored=self._check_head,
            behind=behind,
            scrubs_objects=is_keeper or self._is_keeper,
        )
        self._ordering = ordering
        self._agent_id = agent_id
        self._agents_generation = -1
        self._loop = asyncio.get_running_loop()
        self._is_alone = False
        self._caught_up = queries if behind is None else caught_up(queries, behind, self._loop)
        self._dispatcher = Dispatcher(
            self,
            routes=Routes(
                view=view, default=Path(limits.durability), is_under_way=self._is_under_way
            ),
            clock=clock,
            limits=limits,
        )
        self._objects = self._object_flusher(
            ordering=ordering,
            store=store,
            deliver=self._take_batches,
            on_fatal=on_fatal,
        )
        self._wal = ClusterWal(
            folder=wal_folder,
            readers=self._wals,
            ordering=ordering,
            view=view,
            queries=self._found_in_pool,
            known_producer=self._known_producer,
            tail=self.tail,
            store=store,
            numbers=self.numbers,
            damages=self.damages,
            clock=clock,
            limits=limits,
            pool=pool,
            deliver=self._take_batches,
            over=self._instruments.flushed,
            on_opened=self.damaged_frames.opened,
            on_fatal=on_fatal,
        )
        self.keeper = Keeper(
            queries=queries,
            view=view,
            store=store,
            committer=ordering,
            ages=ages,
            journal_ms=lambda: ordering.time_ms,
            pool=pool,
            limits=limits,
            numbers=self.numbers,
            may_propose=is_keeper or self._is_keeper,
            confirm_head=ordering.confirm_head,
            compare_history=compare_history,
            held_since_ms=held_since_ms,
        )

    async def start(self, *, epoch: int) -> None:
        """Begin. A WAL that has been here before is claimed and served again.

        Raises:
            ConflictError: another live agent owns that WAL.
            CorruptDataError: the file that names the WAL is damaged.
            RetryableError: the journal doesn't answer.
        """
        self.numbers.identity = (self._agent_id, epoch)
        await self._wal.start(is_default=self._limits.durability == Path.WAL.value)

    async def close(self, deadline_s: float = 30.0) -> bool:
        """Answer what is under way and move what is in the WAL to segments if there is time, then
        stop everything.

        Returns:
            Whether nothing is left in the WAL that only the next start, or a takeover, serves.
        """
        until_s = self._loop.time() + deadline_s

        def left_s() -> float:
            return max(0.0, until_s - self._loop.time())

        drained = await self._objects.drain(left_s())
        drained = await self._wal.drain(left_s) and drained
        await self._objects.close()
        await self.damaged_frames.close()
        await self.lost_ranges.close()
        await self.rebuilt_ranges.close()
        await self._wal.close()
        await self.reader.close()
        await self.blocks.close()
        return drained

    # -- order -----------------------------------------------------------------------------------

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        """See `penstock.order.committer.Committer`."""
        return await self._ordering.commit(commands)

    async def confirm_head(self) -> None:
        """See `Ordering`."""
        await self._ordering.confirm_head()

    @property
    def position(self) -> int:
        """See `Ordering`."""
        return self._ordering.position

    @property
    def time_ms(self) -> int:
        """See `Ordering`."""
        return self._ordering.time_ms

    @property
    def head_confirmed_s(self) -> float:
        """See `Ordering`."""
        return self._ordering.head_confirmed_s

    def on_applied(self, applied: Sequence[Applied]) -> None:
        """Follow a batch of entries; called by the order before it gives out answers."""
        changes: list[Change] = []
        for entry in applied:
            self._view.apply(entry.changes)
            changes += entry.changes
        self._follow(changes)
        if self._view.agents_generation != self._agents_generation:
            self._agents_generation = self._view.agents_generation
            own = self._view.agent(self._agent_id)
            self._wal.hurry(hurries=own is not None and own.status is AgentStatus.DRAINING)
        # Answers to this agent's own flushes are given out by callbacks that are queued behind
        # this one: they fill the tail cache, and only then readers look there.
        self._loop.call_soon(self._loop.call_soon, self._wake_readers, changes)

    # -- append ----------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed in whose outcome isn't known yet."""
        return self._objects.waiting_bytes + self._wal.waiting_bytes

    @property
    def append_bytes_max(self) -> int:
        """The largest total of one `append` call, in bytes."""
        return self._limits.frame_bytes_max

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
            timeout_ms: how long the client waits; it is answered by then. What it was told "timed
                out" of may still be stored.
            done: with None when each append holds its status or its own error, else with the
                error of all of them.
        """
        self._dispatcher.append(appends, timeout_ms=timeout_ms, done=done, source=source)

    def refuse(self, appends: list[PartitionAppend], *, source: int = 0) -> None:
        """See `ServingLog`. On either path: a topic's may change before its batches come again."""
        self._objects.refuse(appends, source)
        self._wal.refuse(appends, source)

    def submit(self, path: Path, request: AppendRequest, *, wait_s: float) -> None:
        """See `penstock.log.append.dispatch.Paths`."""
        if path is Path.OBJECT:
            self._objects.submit(request, wait_s=wait_s)
        else:
            self._wal.submit(request)

    def let_go(self, error: RetryableError | None) -> None:
        """Fail appends that are not submitted, and those that come, until it is called with None:
        the journal is away from this agent alone. Fetches that wait look again, as its clients are
        served better elsewhere from now on."""
        self._objects.let_go(error)
        self._wal.let_go(error)
        is_alone = error is not None
        if is_alone and not self._is_alone:
            self.waiters.wake_in_turns(self._loop.call_soon)
        self._is_alone = is_alone

    def give_up(self, error: RetryableError) -> None:
        """Answer appends that were submitted: this agent's epoch is over, so that no copy of them
        that is still on its way will be applied."""
        self._objects.give_up(error)
        self._wal.give_up(error)

    def _is_under_way(self, path: Path, topic_key: TopicKey) -> bool:
        if path is Path.OBJECT:
            return self._objects.holds_topic(topic_key)
        return self._wal.holds_topic(topic_key)

    # -- WALs ------------------------------------------------------------------------------------

    @property
    def uploader(self) -> Uploader | None:
        """Moves the own WAL to segment objects; None while there is none."""
        return self._wal.uploader

    @property
    def wal_free_bytes(self) -> int:
        """Bytes that the own WAL can still take; 0 while there is none."""
        return self._wal.free_bytes

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
        return await self._wal.take_over(device, deadline_s=deadline_s)

    async def read_own_wal(
        self, wal_key: int, generation: int, position: int, length: int
    ) -> bytes:
        """Bytes of a run in a WAL of this agent's, for another agent.

        Raises:
            NotFoundError: the WAL isn't this agent's.
            RetryableError: the file was recycled: the run has moved.
        """
        return await self._wal.read(wal_key, generation, position, length)

    # -- following -------------------------------------------------------------------------------

    def _take_batches(self, flight: Flight) -> int:
        assert flight.plan is not None
        requests = [waiting.request for waiting in flight.waiting]
        return take_batches(self.tail, flight.plan, requests, leader_epoch=self._view.leader_epoch)

    def _found_in_pool(self) -> Queries:
        return self._caught_up()

    def _check_head(self) -> None:
        """Refuse to serve what may have been deleted: the grace that a deletion waits for is
        twice as long as this agent goes on without knowing the journal's head.

        Raises:
            RetryableError: it has not been confirmed for too long.
        """
        age_s = self._clock.monotonic_s() - self._ordering.head_confirmed_s
        if age_s > self._limits.delete_grace_ms / 2000:
            raise RetryableError(
                "read",
                "log",
                f"the journal's head has not been confirmed for {age_s:.1f} s",
                "the journal is away from this agent",
            )

    def _is_keeper(self) -> bool:
        live = [agent.agent_id for agent in self._view.agents() if agent.live]
        return owner_of(_KEEPER, live or [self._agent_id]) == self._agent_id
