"""An agent of a cluster, put together: journal in PostgreSQL, objects in a shared store.

Order at the start: the lock, the journal, a replica (made of the archive if there is none), caught
up; then the log over it, which follows while this agent's epoch is opened; then membership and
groups. The end is the reverse.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.app.agent_id import agent_id
from penstock.app.face import open_face
from penstock.app.instruments import LogInstruments
from penstock.app.jobs import Job
from penstock.app.joining import (
    agent_sources,
    make_identity,
    make_membership,
    own_wal_folder,
)
from penstock.app.layout import DataLayout
from penstock.app.limits import log_limits
from penstock.app.parts import POOL_THREADS, Environment, Parts, ThreadQueries
from penstock.app.store_instruments import StoreInstruments
from penstock.app.wal_report import WalReport, of_agent
from penstock.app.wal_volumes import WalVolumes
from penstock.cluster.membership import Membership
from penstock.config.settings import ServerSettings
from penstock.groups.shards import ShardKeeper
from penstock.kafka.nodes import ClusterNodes
from penstock.log.archive import Archiver, ArchiveSettings
from penstock.log.cluster_log import ClusterLog
from penstock.log.cluster_opening import open_cluster_order
from penstock.log.ordering import Applied
from penstock.metadata.ages import Ages
from penstock.metadata.cluster_order import ClusterOrder, ClusterOrderSettings
from penstock.metadata.order import new_cluster_id
from penstock.metadata.view import MetadataView
from penstock.model.errors import (
    InvalidRequestError,
    JournalOlderError,
    PenstockError,
    RetryableError,
)
from penstock.objects.opening import open_reliable_store
from penstock.objects.origins import open_origins
from penstock.observability.metrics import Metrics
from penstock.peers.blocks import OwnBlocks
from penstock.peers.client import PeerClient, PeerTimeouts
from penstock.peers.codec import WalRange
from penstock.peers.secret import ClusterSecret
from penstock.peers.wal import PeerWal
from penstock.peers.zone import ZoneStore
from penstock.placement.rendezvous import owner_of
from penstock.placement.zones import ZONE_LABEL
from penstock.ports.journal import Journal
from penstock.replica.archive import Archive
from penstock.replica.postgres import PostgresJournal
from penstock.replica.snapshot_process import write_snapshot_apart
from penstock.system.files import PosixDevice, make_folder
from penstock.system.lock import DirectoryLock
from penstock.system.waiting import wait

if TYPE_CHECKING:
    from penstock.app.agents_api import AgentSources
    from penstock.app.peer_routes import PeerSources

T = TypeVar("T")

logger = logging.getLogger(__name__)

JOURNAL_WAIT_S: Final = 60.0
"""How long a start waits for a journal that doesn't answer."""
CUT_OFF_S: Final = 2.0
"""Without a reading of the journal's head, after which clients are sent to other agents."""
_RETRY_S: Final = 0.5
_KEEPER: Final = b"archive"


@dataclass(slots=True, kw_only=True)
class ClusterParts(Parts):
    """The parts of one agent."""

    journal: Journal
    order: ClusterOrder
    log: ClusterLog
    zone: ZoneStore
    own_blocks: OwnBlocks
    shards: ShardKeeper
    archiver: Archiver
    environment: Environment
    membership: Membership | None = None

    @property
    def epoch(self) -> int:
        """See `Parts`."""
        return self.order.epoch

    @property
    def position(self) -> int:
        """See `Parts`."""
        return self.order.position

    @property
    def quiet_agents(self) -> frozenset[int]:
        """Those that have missed a beat, as far as this agent knows."""
        return frozenset() if self.membership is None else self.membership.quiet

    async def start(self) -> None:
        """See `Parts`."""
        await self.order.start(on_applied=self._on_applied, on_stopped=self._on_stopped)
        # Before the log also since the feature level that claiming a WAL needs is raised by it.
        self.membership = make_membership(
            self.settings,
            self.environment,
            me=self.order.agent_id,
            epoch=self.order.epoch,
            order=self.order,
            view=self.view,
        )
        self.membership.start()
        await _until_answered(partial(self.log.start, epoch=self.order.epoch))
        self.groups.start()
        self.shards.start(self.groups)

    async def leave(self, deadline_s: float) -> None:
        """See `Parts`. Others claim this agent's shards of groups, and no client is sent here."""
        if self.membership is not None:
            await self.membership.leave(lambda: len(self.shards.owned()), deadline_s=deadline_s)

    async def drain(self, deadline_s: float) -> bool:
        """See `Parts`."""
        await self.shards.close()
        drained = await self.log.close(deadline_s)
        if self.membership is not None:
            await self.membership.close()
        await self.order.close()
        await self.zone.close()
        return drained

    def jobs(self) -> Sequence[Job]:
        """See `Parts`."""
        interval_s = self.settings.retention_check_ms / 1000
        volumes = []
        if self.settings.wal_volumes:
            found = WalVolumes(
                pattern=self.settings.wal_volumes,
                own=self.layout.root,
                me=self.order.agent_id,
                view=self.view,
                queries=self.queries,
                clock=self.clock,
                pool=self.pool,
                take_over=self._take_over,
            )
            volumes.append(Job(name="takeover of WALs", interval_s=1.0, run=found.run_once))
        return [
            *volumes,
            Job(name="expiry of idle groups", interval_s=interval_s, run=self.groups.expire),
            Job(name="retention", interval_s=interval_s, run=self.log.keeper.run_once),
            Job(name="leftovers", interval_s=1.0, run=self.log.keeper.clear_leftovers),
            Job(
                name="archive",
                interval_s=min(1.0, self.settings.archive_interval_ms / 1000),
                run=self.archiver.run_once,
            ),
            Job(name="checkpoint", interval_s=1.0, run=self._checkpoint),
        ]

    def status(self) -> dict[str, Any]:
        """See `Parts`."""
        report = self._wal_report()
        counts = self.zone.counts
        now_s = self.clock.monotonic_s()
        return {
            "feature_level": self.view.feature_level,
            "journal_confirmed_s": round(now_s - self.order.head_confirmed_s, 3),
            "agents": len(self.view.agents()),
            "group_shards": len(self.shards.owned()),
            "waiting_bytes": self.log.waiting_bytes,
            "wal": report.status() if report else None,
            "archived_position": self.archiver.archived_position,
            "snapshot_position": self.archiver.snapshot_position,
            "blocks": {
                "own": counts.own,
                "peer": counts.peer,
                "refused": counts.refused,
                "away": counts.away,
                "loads": self.own_blocks.load_count,
            },
        }

    def gauges(self) -> dict[str, float]:
        """See `Parts`."""
        report = self._wal_report()
        now_s = self.clock.monotonic_s()
        return {
            **(report.gauges() if report else {}),
            "penstock_append_waiting_bytes": self.log.waiting_bytes,
            "penstock_journal_confirmed_seconds": now_s - self.order.head_confirmed_s,
            "penstock_agents": sum(agent.live for agent in self.view.agents()),
            "penstock_group_shards": len(self.shards.owned()),
        }

    def not_ready(self) -> str:
        """See `Parts`."""
        if self.order.answering_since_s is None:
            return "the journal doesn't answer"
        return ""

    async def back_up(
        self,
        destination: str,
        progress: Callable[[int, int], None] | None = None,  # noqa: ARG002 - the port's
    ) -> dict[str, Any]:
        """See `Parts`. A cluster's bucket is its backup."""
        raise InvalidRequestError(
            "back up",
            destination,
            "a cluster's archive in the bucket is its backup",
            "penstock restore --from URL makes a cluster or a data directory of it",
        )

    def agent_sources(self) -> "AgentSources":
        """See `Parts`."""
        assert self.membership is not None
        return agent_sources(self, self.membership, take_over=self._take_over)

    def peer_sources(self) -> "PeerSources":
        """See `Parts`."""
        from penstock.app.peer_routes import PeerSources

        async def read_wal(wanted: WalRange) -> bytes:
            return await self.log.read_own_wal(
                wanted.wal_key, wanted.generation, wanted.position, wanted.length
            )

        return PeerSources(
            own=self.own_blocks, block_bytes=self.settings.block_bytes, read_wal=read_wal
        )

    # -- inside ----------------------------------------------------------------------------------

    def _wal_report(self) -> WalReport | None:
        return of_agent(self.log.uploader, self.log.wal_free_bytes, self.settings.wal_bytes_max)

    def _on_applied(self, applied: Sequence[Applied]) -> None:
        self.log.on_applied(applied)
        self.shards.follow()

    def _on_stopped(self, error: PenstockError) -> None:
        # Fenced, or the replica holds what never happened: the next start opens a new epoch, over
        # a replica that it has checked against the journal.
        self.environment.on_fatal(error)

    async def _checkpoint(self) -> None:
        if self.order.checkpoint_due:
            await asyncio.get_running_loop().run_in_executor(self.pool, self.order.checkpoint)

    async def _take_over(self, directory: str) -> int:
        return await self.log.take_over(PosixDevice(Path(directory)))


async def open_cluster_agent(settings: ServerSettings, environment: Environment) -> ClusterParts:
    """Open an agent; nothing is served yet.

    Raises:
        ConflictError: another process uses the data directory.
        RetryableError: the journal doesn't answer.
        InvalidRequestError: the database can't hold a journal.
    """
    layout = DataLayout.of(settings.data)
    with ExitStack() as closing:
        closing.callback(DirectoryLock.acquire(layout.root).release)
        parts = await _open(settings, environment, layout, closing)
        parts.closing.push(closing.pop_all())
        return parts


async def _open(
    settings: ServerSettings, environment: Environment, layout: DataLayout, closing: ExitStack
) -> ClusterParts:
    clock, random = environment.clock, environment.random
    assert environment.peer is not None
    metrics = Metrics()
    pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="storage")
    closing.callback(pool.shutdown)
    applier = ThreadPoolExecutor(1, thread_name_prefix="apply")
    closing.callback(applier.shutdown)
    me = agent_id(layout.root, wanted=settings.node_id, random=random)
    open_one = partial(
        open_reliable_store,
        clock=clock,
        random=random,
        meter=StoreInstruments(metrics),
        executor=pool,
        writer=f"agent-{me}",
    )
    store = open_one(settings.objects)

    async def open_journal() -> PostgresJournal:
        return await PostgresJournal.open(
            settings.journal,
            name=settings.cluster_name,
            new_cluster_id=lambda: new_cluster_id(random),
        )

    journal = await _until_answered(open_journal)
    archive = Archive(store, cluster_id=journal.cluster_id, scratch=layout.scratch, executor=pool)
    make_folder(layout.root)
    open_order = partial(
        open_cluster_order,
        journal,
        archive,
        layout.replica,
        identity=make_identity(settings, environment, me=me),
        cluster_id=journal.cluster_id,
        clock=clock,
        random=random,
        executor=applier,
        settings=ClusterOrderSettings(clock_believed_after_ms=settings.clock_believed_after_ms),
        wal=PosixDevice(layout.root),
    )
    try:
        order = await _until_answered(open_order)
    except JournalOlderError as error:
        # The replica held what never happened; it has been dropped.
        logger.warning("making a replica of the archive: %s", error)
        order = await _until_answered(open_order)
    clock.start_from(order.found_ms)
    ages = Ages(
        clock,
        journal_ms=lambda: order.time_ms,
        is_doubted=lambda: order.is_clock_doubted,
    )
    queries = ThreadQueries(layout.replica)
    closing.callback(queries.close)
    view = MetadataView.load(queries())
    limits = log_limits(settings)
    # What a restore inherited is read where the parent keeps it.
    store = open_origins(store, queries().origins(), open_one)
    own_blocks = OwnBlocks(store, bytes_max=settings.block_cache_bytes)
    calls = PeerClient(
        ClusterSecret(settings.cluster_secret),
        PeerTimeouts(silence_s=settings.peer_timeout_ms / 1000),
    )
    closing.callback(calls.close)
    zone = ZoneStore(
        store,
        agent_id=me,
        agents=_ZoneAgents(view, settings.labels.get(ZONE_LABEL, "")),
        owner_of=owner_of,
        own=own_blocks,
        calls=calls,
        block_bytes=settings.block_bytes,
        clock=clock,
    )

    def address_of(agent: int) -> str | None:
        found = view.agent(agent)
        return found.peer if found is not None and found.live else None

    log = ClusterLog(
        ordering=order,
        view=view,
        queries=queries,
        store=zone,
        clock=clock,
        ages=ages,
        limits=limits,
        agent_id=me,
        pool=pool,
        on_fatal=environment.on_fatal,
        wal_folder=own_wal_folder(settings, layout, random),
        remote_wal=PeerWal(calls, address_of=address_of),
        # What a moment of the window named is deleted only behind it.
        held_since_ms=lambda: ages.least_ms(order.time_ms) - settings.restore_window_ms,
        instruments=LogInstruments(metrics),
    )
    shards = ShardKeeper(me=me, order=order, view=view, clock=clock)
    face = open_face(
        settings,
        environment,
        metrics=metrics,
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
            is_cut_off=lambda: clock.monotonic_s() - order.head_confirmed_s > CUT_OFF_S,
            quiet=lambda: parts.quiet_agents,  # made below
        ),
    )
    archiver = Archiver(
        journal=journal,
        order=order,
        archive=archive,
        is_chosen=lambda: _is_chosen(view, me),
        scratch=layout.scratch,
        write_snapshot=partial(write_snapshot_apart, layout.replica),
        clock=clock,
        age_ms=ages.now_ms,
        executor=pool,
        settings=ArchiveSettings(
            interval_ms=settings.archive_interval_ms,
            keep_ms=settings.restore_window_ms,
            snapshot_interval_ms=settings.snapshot_interval_ms,
            snapshot_entries=settings.snapshot_entries,
        ),
    )
    parts = ClusterParts(
        settings=settings,
        layout=layout,
        clock=clock,
        ages=ages,
        metrics=metrics,
        view=view,
        queries=queries,
        store=zone,
        pool=pool,
        log=log,
        groups=face.groups,
        broker=face.broker,
        kafka=face.kafka,
        journal=journal,
        order=order,
        zone=zone,
        own_blocks=own_blocks,
        shards=shards,
        archiver=archiver,
        environment=environment,
    )
    return parts


class _ZoneAgents:
    """The live agents of a zone and their HTTP ports, as the view has them."""

    def __init__(self, view: MetadataView, zone: str) -> None:
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


def _is_chosen(view: MetadataView, me: int) -> bool:
    live = [agent.agent_id for agent in view.agents() if agent.live]
    return owner_of(_KEEPER, live or [me]) == me


async def _until_answered(work: Callable[[], Awaitable[T]]) -> T:
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
