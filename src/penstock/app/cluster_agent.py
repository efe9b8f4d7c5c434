"""One agent of a cluster, put together on ports: what a server runs, and what the simulation runs.

Journal, stores, clock, randomness, executors and the way to other agents are handed in, so that
only they differ between the two. Order at the start: a replica (made of the archive if there is
none), caught up; then the log over it, which follows while this agent's epoch is opened; then
membership and groups.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.app.face import open_clients
from penstock.app.jobs import Job
from penstock.app.parts import Environment
from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.settings import GroupSettings
from penstock.groups.shards import ShardKeeper, ShardSettings
from penstock.kafka.broker import Broker
from penstock.kafka.instruments import Instruments as KafkaInstruments
from penstock.kafka.nodes import ClusterNodes
from penstock.kafka.settings import KafkaSettings
from penstock.log.archive import Archiver, ArchiveSettings, WriteSnapshot
from penstock.log.cluster_log import ClusterLog
from penstock.log.history.lost_histories import LostHistories
from penstock.log.history.repair import HistoryRepair
from penstock.log.instruments import LogInstruments
from penstock.log.opening.cluster import open_cluster_order
from penstock.log.ordering import Applied
from penstock.log.settings import LogSettings
from penstock.log.snapshot_check import SnapshotCheck
from penstock.log.wals.own_wal import WalFolder
from penstock.membership.cut_off import CutOff, CutOffSettings
from penstock.membership.digests import DigestKeeper
from penstock.membership.membership import Membership, MembershipSettings
from penstock.model.errors import JournalOlderError, RetryableError
from penstock.objects.origins import open_origins
from penstock.order.cluster_order import AgentIdentity, ClusterOrder, ClusterOrderSettings
from penstock.peers.blocks import OwnBlocks
from penstock.peers.standing import Asked, Standing
from penstock.peers.wal import PeerWal
from penstock.peers.zone import Calls, ZoneStore
from penstock.placement.rendezvous import owner_of
from penstock.placement.zones import ZONE_LABEL
from penstock.ports.journal import Journal
from penstock.ports.objects import ObjectStore
from penstock.replica.archive import Archive
from penstock.state.ages import Ages
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.system.waiting import wait

T = TypeVar("T")

logger = logging.getLogger(__name__)

JOURNAL_WAIT_S: Final = 60.0
"""How long a start waits for a journal that doesn't answer."""
_RETRY_S: Final = 0.5
_KEEPER: Final = b"archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPorts:
    """These ports are what an agent is put together on."""

    environment: Environment
    journal: Journal
    cluster_id: str
    open_store: Callable[[str], ObjectStore]
    """Opens the store at a URL; "": the cluster's own."""
    open_queries: Callable[[Path], Callable[[], Queries]]
    """Gives each calling thread its connection to the replica's file."""
    replica: Path
    scratch: Path
    pool: Executor
    applier: Executor
    """Has one thread, which applies entries."""
    calls: Calls
    """Makes the calls to other agents."""
    wal_folder: WalFolder
    write_snapshot: WriteSnapshot | None = None
    """See `Archiver`."""
    kafka_instruments: KafkaInstruments | None = None
    log_instruments: LogInstruments | None = None
    checks_pool: Executor | None = None
    """See `RecordChecks`."""
    on_older: Callable[[JournalOlderError], None] = lambda _: None
    """Called when the replica turned out to hold what the journal has lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlan:
    """An agent's settings in the words of the packages that act on them."""

    identity: AgentIdentity
    limits: LogSettings
    membership: MembershipSettings
    groups: GroupSettings
    kafka: KafkaSettings
    archive: ArchiveSettings
    restore_window_ms: int
    """What a moment of it named is deleted only after it."""
    retention_check_s: float
    digest_interval_ms: int = 3_600_000
    """Between comparisons of the agents' states; 0: this agent asks for none."""
    cut_off_s: float = 0.75
    """Without a reading of the journal's head, after which clients are sent to other agents."""
    order: ClusterOrderSettings | None = None
    shards: "ShardSettings | None" = None


@dataclass(slots=True, kw_only=True)
class ClusterAgent:
    """The parts of one agent. `start` begins; what it was handed in closes by itself."""

    ports: AgentPorts
    plan: AgentPlan
    archive: Archive
    order: ClusterOrder
    ages: Ages
    view: StateView
    queries: Callable[[], Queries]
    store: ZoneStore
    own_blocks: OwnBlocks
    log: ClusterLog
    shards: ShardKeeper
    groups: GroupCoordinator
    broker: Broker
    archiver: Archiver
    lost: LostHistories
    history_repair: HistoryRepair
    membership: Membership | None = None
    digests: DigestKeeper | None = None
    cut_off: CutOff | None = None

    @property
    def quiet_agents(self) -> frozenset[int]:
        """The agents that have missed a beat, as far as this agent knows."""
        return frozenset() if self.membership is None else self.membership.quiet

    @property
    def is_alone(self) -> bool:
        """Whether the journal is away from this agent and there for others."""
        return self.cut_off is not None and self.cut_off.is_alone

    @property
    def equal_position(self) -> int:
        """Up to here this agent's state is known to be equal to another's; 0: nothing is known."""
        return 0 if self.digests is None else self.digests.equal_position

    def ask_digest(self) -> None:
        """Have the agents compare their states soon."""
        if self.digests is not None:
            self.digests.ask()

    async def start(self) -> None:
        """Follow, open an epoch, and begin to serve.

        Raises: as `ClusterOrder.start` and `ClusterLog.start`.
        """
        environment = self.ports.environment
        # Fenced, or the replica holds what never happened: the next start opens a new epoch, over
        # a replica that it has checked against the journal.
        await self.order.start(on_applied=self._on_applied, on_stopped=environment.on_fatal)
        # Before the log also since the feature level that claiming a WAL needs is raised by it,
        # and since recovering a WAL may take longer than the others wait for a beat.
        self.membership = Membership(
            me=self.order.agent_id,
            epoch=self.order.epoch,
            order=self.order,
            view=self.view,
            clock=environment.clock,
            on_fenced=environment.on_fatal,
            is_alone=self._says_it_is_alone,
            settings=self.plan.membership,
        )
        self.membership.start()
        self.cut_off = CutOff(
            me=self.order.agent_id,
            epoch=self.order.epoch,
            head_confirmed_s=lambda: self.order.head_confirmed_s,
            view=self.view,
            calls=self.ports.calls,
            clock=environment.clock,
            let_go=self._let_go,
            give_up=self._give_up,
            settings=CutOffSettings(cut_off_s=self.plan.cut_off_s),
        )
        self.cut_off.start()
        # Before the WAL is opened, which cuts frames that only a lost history orders.
        await until_answered(self.lost.prepare)
        self.digests = DigestKeeper(
            me=self.order.agent_id,
            epoch=self.order.epoch,
            order=self.order,
            view=self.view,
            replica=self.ports.replica,
            scratch=self.ports.scratch,
            clock=environment.clock,
            executor=self.ports.pool,
            interval_ms=self.plan.digest_interval_ms,
            on_fatal=environment.on_fatal,
        )
        await until_answered(self._start_log)
        self.groups.start()
        self.shards.start(self.groups)

    def jobs(self) -> list[Job]:
        """Return the jobs that come round."""
        interval_s = self.plan.retention_check_s
        return [
            Job(
                name="expiry of idle groups",
                interval_s=interval_s,
                run=self.groups.expire,
                matters=True,
            ),
            Job(name="retention", interval_s=interval_s, run=self._retain, matters=True),
            Job(name="leftovers", interval_s=1.0, run=self.log.keeper.clear_leftovers),
            Job(name="scrub", interval_s=1.0, run=self.log.scrubber.run_once),
            Job(
                name="archive",
                interval_s=min(1.0, self.plan.archive.interval_ms / 1000),
                run=self.archiver.run_once,
                matters=True,
            ),
            Job(name="lost histories", interval_s=interval_s, run=self.lost.run_once),
            Job(name="checkpoint", interval_s=1.0, run=self._checkpoint, matters=True),
            Job(name="pace of reading", interval_s=1.0, run=self._share_journal),
            Job(name="comparison of states", interval_s=1.0, run=self._compare),
        ]

    async def _start_log(self) -> None:
        if self.order.write_stop.error is not None:
            # Claiming a WAL is refused while the states of the agents differ, and opening it cuts
            # what the state does not name. The job that compares states begins only after this
            # start: without a comparison here, agents that restart would wait for it forever.
            await self._compare()
        await self.log.start(epoch=self.order.epoch)

    def _on_applied(self, applied: Sequence[Applied]) -> None:
        self.log.on_applied(applied)
        self.shards.follow()

    def _let_go(self, error: RetryableError | None) -> None:
        if error is not None:
            self.order.let_go(error)
        self.log.let_go(error)

    def _give_up(self, error: RetryableError) -> None:
        self.order.give_up_groups(error)
        # Another agent may have claimed them. A JoinGroup would wait here for members that are
        # there by now, for as long as the journal is away.
        self.groups.release(lambda _: True)
        self.log.give_up(error)

    def standing_of(self, asked: Asked) -> Standing:
        """Tell another agent what is known here of its epoch."""
        if self.cut_off is None:
            raise RetryableError("tell standing", f"agent {asked.agent}", "this agent is starting")
        return self.cut_off.standing_of(asked)

    def _says_it_is_alone(self, agent: int, epoch: int) -> bool:
        return self.cut_off is not None and self.cut_off.says_it_is_alone(agent, epoch)

    async def _share_journal(self) -> None:
        self.ports.journal.share_among(sum(agent.live for agent in self.view.agents()))

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


async def open_agent(
    ports: AgentPorts,
    plan: AgentPlan,
    *,
    on_order: Callable[[ClusterOrder], None] = lambda _: None,
) -> ClusterAgent:
    """Open an agent; nothing is served yet.

    Args:
        on_order: called with the order as soon as its replica is open.

    Raises: as `open_cluster_order`.
    """
    environment = ports.environment
    clock = environment.clock
    me = plan.identity.agent_id
    store = ports.open_store("")
    archive = Archive(
        store, cluster_id=ports.cluster_id, scratch=ports.scratch, executor=ports.pool
    )
    order = await _open_order(ports, plan, archive)
    on_order(order)
    clock.start_from(order.found_ms)
    ages = Ages(
        clock,
        journal_ms=lambda: order.time_ms,
        is_doubted=lambda: order.is_clock_doubted,
    )
    queries = ports.open_queries(ports.replica)
    view = StateView.load(queries())
    # What a restore inherited is read where the parent keeps it.
    store = open_origins(store, queries().origins(), ports.open_store)
    own_blocks = OwnBlocks(store, bytes_max=plan.limits.block_cache_bytes)
    zone = ZoneStore(
        store,
        agent_id=me,
        agents=_ZoneAgents(view, plan.identity.labels.get(ZONE_LABEL, "")),
        owner_of=owner_of,
        own=own_blocks,
        calls=ports.calls,
        block_bytes=plan.limits.block_bytes,
        clock=clock,
    )

    def address_of(agent: int) -> str | None:
        found = view.agent(agent)
        return found.peer if found is not None and found.live else None

    lost = LostHistories(
        journal=ports.journal,
        archive=archive,
        committer=order,
        view=view,
        queries=queries,
        folder=ports.replica.parent,
        scratch=ports.scratch,
        executor=ports.pool,
    )
    archiver = Archiver(
        journal=ports.journal,
        order=order,
        archive=archive,
        # A state that may be wrong becomes no snapshot, and nothing is trimmed after it.
        is_chosen=lambda: _is_chosen(view, me) and order.write_stop.error is None,
        note_lost=lost.note,
        drop_lost=lost.drop_archived,
        held_from=lost.held_from,
        compare_snapshot=SnapshotCheck(
            journal=ports.journal, archive=archive, scratch=ports.scratch, executor=ports.pool
        ).compare,
        ask_digest=lambda: agent.ask_digest(),  # noqa: PLW0108 - made below
        equal_position=lambda: agent.equal_position,
        scratch=ports.scratch,
        write_snapshot=ports.write_snapshot,
        clock=clock,
        age_ms=ages.now_ms,
        executor=ports.pool,
        settings=plan.archive,
    )
    log = ClusterLog(
        ordering=order,
        view=view,
        queries=queries,
        store=zone,
        clock=clock,
        ages=ages,
        limits=plan.limits,
        agent_id=me,
        pool=ports.pool,
        on_fatal=environment.on_fatal,
        wal_folder=ports.wal_folder,
        remote_wal=PeerWal(ports.calls, address_of=address_of),
        # What a moment of the window named is deleted only behind it.
        held_since_ms=lambda: ages.least_ms(order.time_ms) - plan.restore_window_ms,
        compare_history=archiver.compare,
        instruments=ports.log_instruments,
    )
    shards = ShardKeeper(
        me=me,
        order=order,
        view=view,
        clock=clock,
        shows_answers=lambda: order.shows_answers,
        quiet=lambda: agent.quiet_agents,  # made below
        settings=plan.shards,
    )
    groups, broker = open_clients(
        environment,
        group_settings=plan.groups,
        kafka_settings=plan.kafka,
        instruments=ports.kafka_instruments,
        view=view,
        queries=queries(),
        log=log,
        committer=order,
        cluster_id=order.cluster_id,
        node_id=me,
        shows_answers=lambda: order.shows_answers,
        ownership=shards,
        heads=order,
        now_ms=ages.now_ms,
        cluster=ClusterNodes(
            me=me,
            view=view,
            coordinators=shards,
            is_cut_off=lambda: clock.monotonic_s() - order.head_confirmed_s > plan.cut_off_s,
            is_alone=lambda: agent.is_alone,  # made below
            quiet=lambda: agent.quiet_agents,
        ),
        checks_pool=ports.checks_pool,
    )
    agent = ClusterAgent(
        ports=ports,
        plan=plan,
        archive=archive,
        order=order,
        ages=ages,
        view=view,
        queries=queries,
        store=zone,
        own_blocks=own_blocks,
        log=log,
        shards=shards,
        groups=groups,
        broker=broker,
        archiver=archiver,
        lost=lost,
        history_repair=HistoryRepair(
            journal=ports.journal,
            archive=archive,
            log=log,
            view=view,
            queries=queries,
            store=zone,
            folder=ports.replica.parent,
            scratch=ports.scratch,
            executor=ports.pool,
        ),
    )
    return agent


async def _open_order(ports: AgentPorts, plan: AgentPlan, archive: Archive) -> ClusterOrder:
    open_one = partial(
        open_cluster_order,
        ports.journal,
        archive,
        ports.replica,
        identity=plan.identity,
        cluster_id=ports.cluster_id,
        clock=ports.environment.clock,
        wall=ports.environment.clock.wall,
        random=ports.environment.random,
        executor=ports.applier,
        settings=plan.order,
        wal=ports.wal_folder.device,
    )
    try:
        return await until_answered(open_one)
    except JournalOlderError as error:
        # The replica held what the journal has lost; it has been set aside.
        logger.warning("making a replica of the archive: %s", error)
        ports.on_older(error)
        return await until_answered(open_one)


class _ZoneAgents:
    """The live agents of a zone and their HTTP ports, as the view has them."""

    def __init__(self, view: StateView, zone: str) -> None:
        self._view = view
        self._zone = zone
        self._generation = -1
        self._found: dict[int, str] = {}

    def __call__(self) -> dict[int, str]:
        if self._generation != self._view.agents_generation:
            self._generation = self._view.agents_generation
            self._found = {
                agent.agent_id: agent.peer
                for agent in self._view.agents()
                if agent.live and agent.peer and agent.labels.get(ZONE_LABEL, "") == self._zone
            }
        return self._found


def _is_chosen(view: StateView, me: int) -> bool:
    live = [agent.agent_id for agent in view.agents() if agent.live]
    return owner_of(_KEEPER, live or [me]) == me


async def until_answered(work: Callable[[], Awaitable[T]]) -> T:
    """Try again while the journal doesn't answer, for `JOURNAL_WAIT_S`."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + JOURNAL_WAIT_S
    said = ""
    while True:
        try:
            return await work()
        except RetryableError as error:
            if loop.time() > until_s:
                raise
            if str(error) != said:
                said = str(error)
                logger.warning("waiting for the journal: %s", error)
            await wait(_RETRY_S)
