"""An agent of a cluster: a journal and a store that several hosts share.

Order at the start: a replica (made of the archive if there is none), caught up; then the log over
it, which follows while this agent's epoch is opened; then its WAL.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from penstock.agent.foundation import Foundation, StopCompany
from penstock.agent.jobs import Job
from penstock.agent.patience import until_answered
from penstock.agent.ports import AgentPorts
from penstock.agent.settings import AgentSettings, ClusterSettings
from penstock.agent.zone_agents import ZoneAgents, peer_of
from penstock.groups.coordinator import GroupCoordinator
from penstock.log import Log
from penstock.log.archive import Archiver, WriteSnapshot
from penstock.log.history.lost_histories import LostHistories
from penstock.log.history.repair import HistoryRepair
from penstock.log.opening.cluster import open_cluster_order
from penstock.log.snapshot_check import SnapshotCheck
from penstock.log.state_queries import ReplicaQueries
from penstock.log.wals.cluster_wal import ClusterWal
from penstock.membership.cut_off import CutOff, CutOffSettings
from penstock.membership.digests import DigestKeeper
from penstock.model.errors import JournalOlderError, RetryableError
from penstock.objects.origins import open_origins
from penstock.peers.blocks import OwnBlocks
from penstock.peers.wal import PeerWal
from penstock.peers.zone import Calls, ZoneStore
from penstock.placement.rendezvous import owner_of
from penstock.placement.zones import ZONE_LABEL
from penstock.ports.journal import Journal
from penstock.replica.archive import Archive
from penstock.state.ages import Ages
from penstock.state.order_types import AppliedEntries
from penstock.state.orders import ClusterOrder
from penstock.state.read.view import StateView

logger = logging.getLogger(__name__)

_ARCHIVER: Final = b"archive"
_KEEPER: Final = b"keeper"
"""Names of work that one agent does for all, by which rendezvous hashing chooses the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJournal:
    """A journal that several hosts share. Implements `AgentJournal`."""

    journal: Journal
    cluster_id: str
    replica: Path
    """The SQLite file of the agent's replica."""
    applier: Executor
    """Has one thread, which applies entries."""
    calls: Calls
    """Makes the calls to other agents."""
    write_snapshot: WriteSnapshot | None = None
    """See `Archiver`."""
    on_opened: Callable[[ClusterOrder], None] = lambda _: None
    """Called with the order as soon as its replica is open."""
    on_older: Callable[[JournalOlderError], None] = lambda _: None
    """Called when the replica turned out to hold what the journal has lost."""

    async def join(self, settings: AgentSettings, ports: AgentPorts) -> "ClusterFoundation":
        """See `AgentJournal`.

        Raises: as `open_cluster_order`.
        """
        cluster = settings.cluster
        assert cluster is not None
        clock, me = ports.clock, settings.identity.agent_id
        store = ports.open_store("")
        archive = Archive(
            store, cluster_id=self.cluster_id, scratch=ports.scratch, executor=ports.pool
        )
        order = await self._open_order(settings, cluster, ports, archive)
        self.on_opened(order)
        ages = Ages(
            clock,
            journal_ms=lambda: order.time_ms,
            is_doubted=lambda: order.is_clock_doubted,
        )
        queries = ports.open_queries(self.replica, None)
        clock.start_from(queries().steady_ms(order.found_ms))
        view = StateView.load(queries())
        # What a restore inherited is read where the parent keeps it.
        store = open_origins(store, queries().origins(), ports.open_store)
        own_blocks = OwnBlocks(store, bytes_max=settings.log.block_cache_bytes)
        zone = ZoneStore(
            store,
            agent_id=me,
            agents=ZoneAgents(view, settings.identity.labels.get(ZONE_LABEL, "")),
            owner_of=owner_of,
            own=own_blocks,
            calls=self.calls,
            block_bytes=settings.log.block_bytes,
            clock=clock,
        )
        lost = LostHistories(
            journal=self.journal,
            archive=archive,
            order=order,
            view=view,
            queries=queries,
            folder=self.replica.parent,
            scratch=ports.scratch,
            executor=ports.pool,
        )
        archiver = Archiver(
            journal=self.journal,
            order=order,
            archive=archive,
            # A state that may be wrong becomes no snapshot, and nothing is trimmed after it.
            is_chosen=lambda: is_chosen(_ARCHIVER, view, me) and order.write_stop.error is None,
            note_lost=lost.note,
            drop_lost=lost.drop_archived,
            held_from=lost.held_from,
            compare_snapshot=SnapshotCheck(
                journal=self.journal, archive=archive, scratch=ports.scratch, executor=ports.pool
            ).compare,
            ask_digest=lambda: foundation.ask_digest(),  # noqa: PLW0108 - made below
            equal_position=lambda: foundation.equal_position,
            scratch=ports.scratch,
            write_snapshot=self.write_snapshot,
            clock=clock,
            age_ms=ages.now_ms,
            executor=ports.pool,
            settings=cluster.archive,
        )
        log = Log(
            order=order,
            own_wal=partial(ClusterWal, folder=ports.wal_folder),
            view=view,
            queries=ReplicaQueries(queries),
            store=zone,
            clock=clock,
            ages=ages,
            limits=settings.log,
            agent_id=me,
            pool=ports.pool,
            on_fatal=ports.on_fatal,
            heads=order,
            remote_wal=PeerWal(self.calls, address_of=partial(peer_of, view)),
            is_keeper=partial(is_chosen, _KEEPER, view, me),
            # What a moment of the window named is deleted only after it.
            held_since_ms=lambda: ages.least_ms(order.time_ms) - cluster.restore_window_ms,
            compare_history=archiver.compare,
            instruments=ports.log_instruments,
        )
        foundation = ClusterFoundation(
            agent_id=me,
            cluster_id=order.cluster_id,
            ages=ages,
            view=view,
            queries=queries,
            store=zone,
            log=log,
            heads=order,
            has_company=True,
            settings=settings,
            ports=ports,
            journal=self,
            order=order,
            own_blocks=own_blocks,
            archiver=archiver,
            lost=lost,
            history_repair=HistoryRepair(
                journal=self.journal,
                archive=archive,
                order=order,
                log=log,
                view=view,
                queries=queries,
                store=zone,
                folder=self.replica.parent,
                scratch=ports.scratch,
                executor=ports.pool,
            ),
        )
        return foundation

    async def _open_order(
        self, settings: AgentSettings, cluster: ClusterSettings, ports: AgentPorts, archive: Archive
    ) -> ClusterOrder:
        open_one = partial(
            open_cluster_order,
            self.journal,
            archive,
            self.replica,
            identity=settings.identity,
            cluster_id=self.cluster_id,
            clock=ports.clock,
            wall=ports.clock.wall,
            random=ports.random,
            executor=self.applier,
            settings=cluster.order,
            wal=ports.wal_folder.device,
        )
        try:
            return await until_answered(open_one)
        except JournalOlderError as error:
            # The replica held what the journal has lost; it has been set aside.
            logger.warning("making a replica of the archive: %s", error)
            self.on_older(error)
            return await until_answered(open_one)


@dataclass(slots=True, kw_only=True)
class ClusterFoundation(Foundation):
    """A replica, a log whose bytes lie in memory, a WAL or objects, and what keeps them right."""

    settings: AgentSettings
    ports: AgentPorts
    journal: ClusterJournal
    order: ClusterOrder
    store: ZoneStore
    own_blocks: OwnBlocks
    archiver: Archiver
    lost: LostHistories
    history_repair: HistoryRepair
    digests: DigestKeeper | None = None
    """Compares the agents' states, once this agent follows."""

    @property
    def equal_position(self) -> int:
        """Return up to where this agent's state is known to equal another's; 0: nowhere."""
        return 0 if self.digests is None else self.digests.equal_position

    def ask_digest(self) -> None:
        """Have the agents compare their states soon."""
        if self.digests is not None:
            self.digests.ask()

    async def follow(self) -> None:
        """See `Foundation`."""
        # Fenced, or the replica holds what never happened: the next start opens a new epoch, over
        # a replica that it has checked against the journal.
        await self.order.start(
            on_applied=self._on_applied,
            on_answered=self.log.on_answered,
            on_stopped=self.ports.on_fatal,
        )

    def new_cut_off(self, groups: GroupCoordinator) -> CutOff:
        """See `Foundation`."""

        def let_go(error: RetryableError | None) -> None:
            if error is not None:
                self.order.let_go(error)
            self.log.let_go(error)

        def give_up(error: RetryableError) -> None:
            self.order.give_up_groups(error)
            # Another agent may have claimed them. A JoinGroup would wait here for members that are
            # there by now, for as long as the journal is away.
            groups.release(lambda _: True)
            self.log.give_up(error)

        return CutOff(
            me=self.agent_id,
            epoch=self.order.epoch,
            head_confirmed_s=lambda: self.order.head_confirmed_s,
            view=self.view,
            calls=self.journal.calls,
            clock=self.ports.clock,
            let_go=let_go,
            give_up=give_up,
            settings=CutOffSettings(cut_off_s=self.settings.cut_off_s),
        )

    async def begin(self) -> None:
        """See `Foundation`.

        Raises: as `Log.start`.
        """
        # Before the WAL is opened, which cuts frames that only a lost history orders.
        await until_answered(self.lost.prepare)
        assert self.settings.cluster is not None
        self.digests = DigestKeeper(
            me=self.agent_id,
            epoch=self.order.epoch,
            order=self.order,
            view=self.view,
            replica=self.journal.replica,
            scratch=self.ports.scratch,
            clock=self.ports.clock,
            executor=self.ports.pool,
            interval_ms=self.settings.cluster.digest_interval_ms,
            on_fatal=self.ports.on_fatal,
        )
        await until_answered(self._start_log)

    async def drain(self, stop_company: StopCompany, deadline_s: float) -> bool:
        """See `Foundation`."""
        drained = await self.log.close(deadline_s)
        await stop_company(self.order.end_epoch)
        await self.order.close()
        await self.store.close()
        return drained

    def jobs(self) -> Sequence[Job]:
        """See `Foundation`."""
        interval_s = self.settings.retention_check_s
        assert self.settings.cluster is not None
        archive_interval_s = self.settings.cluster.archive.interval_ms / 1000
        return [
            Job(name="retention", interval_s=interval_s, run=self._retain, matters=True),
            *self.log_jobs(interval_s),
            Job(
                name="archive",
                interval_s=min(1.0, archive_interval_s),
                run=self.archiver.run_once,
                matters=True,
            ),
            Job(name="lost histories", interval_s=interval_s, run=self.lost.run_once),
            Job(name="checkpoint", interval_s=1.0, run=self._checkpoint, matters=True),
            Job(name="pace of reading", interval_s=1.0, run=self._share_journal),
            Job(name="comparison of states", interval_s=1.0, run=self._compare),
        ]

    # -- inside ----------------------------------------------------------------------------------

    async def _start_log(self) -> None:
        if self.order.write_stop.error is not None:
            # Claiming a WAL is refused while the states of the agents differ, and opening it cuts
            # what the state does not name. The job that compares states begins only after this
            # start: without a comparison here, agents that restart would wait for it forever.
            await self._compare()
        await self.log.start(epoch=self.order.epoch)

    def _on_applied(self, applied: AppliedEntries) -> None:
        self.log.on_applied(applied)
        self.on_followed()

    async def _share_journal(self) -> None:
        self.journal.journal.share_among(sum(agent.live for agent in self.view.agents()))

    async def _retain(self) -> None:
        if self.order.write_stop.error is not None:
            # A state that may be wrong must delete nothing.
            raise self.order.write_stop.error
        await self.log.keeper.run_once()

    async def _compare(self) -> None:
        if self.digests is not None:
            await self.digests.run_once()

    async def _checkpoint(self) -> None:
        if self.order.checkpoint_due:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self.ports.pool, self.order.checkpoint)


def is_chosen(work: bytes, view: StateView, me: int) -> bool:
    """Whether an agent does what one agent does for all, by the live agents that it knows of."""
    live = [agent.agent_id for agent in view.agents() if agent.live]
    return owner_of(work, live or [me]) == me
