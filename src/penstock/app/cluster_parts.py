"""A server that is an agent of a cluster: journal in PostgreSQL, objects in a shared store.

The agent itself is put together by `penstock.app.cluster_agent`, on what is opened here. Order at
the start: the lock, the journal, the agent. The end is the reverse.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.app.agent_id import agent_id
from penstock.app.cluster_agent import (
    AgentPlan,
    AgentPorts,
    ClusterAgent,
    open_agent,
    until_answered,
)
from penstock.app.instruments import KafkaInstruments, LogInstruments
from penstock.app.jobs import Job
from penstock.app.joining import (
    agent_sources,
    make_identity,
    own_wal_folder,
)
from penstock.app.layout import DataLayout
from penstock.app.limits import (
    group_settings,
    kafka_settings,
    log_limits,
    membership_settings,
)
from penstock.app.parts import POOL_THREADS, Environment, Parts, ThreadQueries
from penstock.app.store_instruments import StoreInstruments
from penstock.app.wal_report import WalReport, of_agent
from penstock.app.wal_volumes import WalVolumes
from penstock.config.settings import ServerSettings
from penstock.groups.shards import ShardKeeper
from penstock.kafka.net.server import KafkaServer
from penstock.log.archive import Archiver, ArchiveSettings
from penstock.log.cluster_log import ClusterLog
from penstock.log.history.lost_histories import describe
from penstock.membership.membership import Membership
from penstock.model.errors import InvalidRequestError
from penstock.objects.opening import open_reliable_store
from penstock.observability.metrics import Metrics
from penstock.order.cluster_order import ClusterOrder, ClusterOrderSettings
from penstock.order.local_order import new_cluster_id
from penstock.peers.blocks import OwnBlocks
from penstock.peers.client import PeerClient, PeerTimeouts
from penstock.peers.codec import WalRange
from penstock.peers.secret import ClusterSecret
from penstock.peers.zone import ZoneStore
from penstock.ports.journal import Journal
from penstock.replica.postgres import PostgresJournal
from penstock.replica.snapshot_process import write_snapshot_apart
from penstock.system.files import PosixDevice, make_folder
from penstock.system.lock import DirectoryLock

if TYPE_CHECKING:
    from penstock.app.http.agents_api import AgentSources
    from penstock.app.http.peer_routes import PeerSources
    from penstock.app.http.repair_api import RepairSources


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
    agent: ClusterAgent

    @property
    def membership(self) -> Membership | None:
        """The membership that beats for this agent, once it has begun."""
        return self.agent.membership

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
        """The agents that have missed a beat, as far as this agent knows."""
        return self.agent.quiet_agents

    async def start(self) -> None:
        """See `Parts`."""
        await self.agent.start()

    async def leave(self, deadline_s: float) -> None:
        """See `Parts`. Others claim this agent's shards of groups, and no client is sent here."""
        if self.membership is not None:
            await self.membership.leave(lambda: len(self.shards.owned()), deadline_s=deadline_s)

    async def drain(self, deadline_s: float) -> bool:
        """See `Parts`."""
        await self.shards.close()
        drained = await self.log.close(deadline_s)
        if self.agent.cut_off is not None:
            await self.agent.cut_off.close()
        if self.membership is not None:
            await self.membership.end(self.order.end_epoch)
        await self.order.close()
        await self.zone.close()
        return drained

    def jobs(self) -> Sequence[Job]:
        """See `Parts`."""
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
        return [*volumes, *self.agent.jobs()]

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
            "digest": None if self.agent.digests is None else self.agent.digests.status(),
            "waiting_bytes": self.log.waiting_bytes,
            "wal": report.status() if report else None,
            "archived_position": self.archiver.archived_position,
            "snapshot_position": self.archiver.snapshot_position,
            "lost_histories": describe(self.view.open_histories),
            "lost_replicas": self.agent.lost.kept,
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
            **({} if self.agent.digests is None else self.agent.digests.gauges()),
            "penstock_append_waiting_bytes": self.log.waiting_bytes,
            "penstock_foreign_objects_total": len(self.log.numbers.foreign),
            "penstock_journal_confirmed_seconds": now_s - self.order.head_confirmed_s,
            "penstock_replica_unstored_bytes": self.order.unstored_bytes,
            "penstock_clock_skew_seconds": self.order.clock_skew_ms / 1000,
            "penstock_agents": sum(agent.live for agent in self.view.agents()),
            "penstock_group_shards": len(self.shards.owned()),
            "penstock_lost_histories": len(self.view.open_histories),
            "penstock_snapshots_refused_total": self.archiver.refused_count,
            "penstock_snapshots_uncompared_total": self.archiver.uncompared_count,
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

    def repair_sources(self) -> "RepairSources":
        """See `Parts`."""
        from penstock.app.http.repair_api import RepairSources

        return RepairSources(
            damage=self.log.damage_repair,
            scan=self.log.scan,
            rebuilt=self.log.rebuilt_records,
            lost_ranges=self.log.lost_ranges,
            topic_id_of=self.log.topic_id_of,
            partition_name=self.log.partition_name,
            histories=self.agent.history_repair,
        )

    def peer_sources(self) -> "PeerSources":
        """See `Parts`."""
        from penstock.app.http.peer_routes import PeerSources

        async def read_wal(wanted: WalRange) -> bytes:
            return await self.log.read_own_wal(
                wanted.wal_key, wanted.generation, wanted.position, wanted.length
            )

        return PeerSources(
            own=self.own_blocks,
            block_bytes=self.settings.block_bytes,
            read_wal=read_wal,
            standing_of=self.agent.standing_of,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _wal_report(self) -> WalReport | None:
        return of_agent(self.log.uploader, self.log.wal_free_bytes, self.settings.wal_bytes_max)

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

    async def open_journal() -> PostgresJournal:
        return await PostgresJournal.open(
            settings.journal,
            name=settings.cluster_name,
            new_cluster_id=lambda: new_cluster_id(random),
        )

    journal = await until_answered(open_journal)
    make_folder(layout.root)
    calls = PeerClient(
        ClusterSecret(settings.cluster_secret),
        PeerTimeouts(silence_s=settings.peer_timeout_ms / 1000),
    )
    closing.callback(calls.close)

    def open_queries(path: Path) -> ThreadQueries:
        queries = ThreadQueries(path)
        closing.callback(queries.close)
        return queries

    ports = AgentPorts(
        environment=environment,
        journal=journal,
        cluster_id=journal.cluster_id,
        open_store=lambda url: open_one(url or settings.objects),
        open_queries=open_queries,
        replica=layout.replica,
        scratch=layout.scratch,
        pool=pool,
        applier=applier,
        calls=calls,
        wal_folder=own_wal_folder(settings, layout, random),
        write_snapshot=partial(write_snapshot_apart, layout.replica),
        kafka_instruments=KafkaInstruments(metrics),
        log_instruments=LogInstruments(metrics),
    )
    agent = await open_agent(ports, _plan(settings, environment, me=me))
    assert isinstance(agent.queries, ThreadQueries)
    return ClusterParts(
        settings=settings,
        layout=layout,
        clock=clock,
        ages=agent.ages,
        metrics=metrics,
        view=agent.view,
        queries=agent.queries,
        store=agent.store,
        pool=pool,
        log=agent.log,
        groups=agent.groups,
        broker=agent.broker,
        kafka=KafkaServer(agent.broker),
        journal=journal,
        order=agent.order,
        zone=agent.store,
        own_blocks=agent.own_blocks,
        shards=agent.shards,
        archiver=agent.archiver,
        agent=agent,
    )


def _plan(settings: ServerSettings, environment: Environment, *, me: int) -> AgentPlan:
    return AgentPlan(
        identity=make_identity(settings, environment, me=me),
        limits=log_limits(settings),
        membership=membership_settings(settings),
        groups=group_settings(settings),
        kafka=kafka_settings(settings),
        archive=ArchiveSettings(
            interval_ms=settings.archive_interval_ms,
            keep_ms=settings.restore_window_ms,
            snapshot_interval_ms=settings.snapshot_interval_ms,
            snapshot_entries=settings.snapshot_entries,
        ),
        restore_window_ms=settings.restore_window_ms,
        retention_check_s=settings.retention_check_ms / 1000,
        digest_interval_ms=settings.digest_interval_ms,
        order=ClusterOrderSettings(clock_believed_after_ms=settings.clock_believed_after_ms),
    )
