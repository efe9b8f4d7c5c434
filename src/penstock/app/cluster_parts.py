"""A server can be an agent of a cluster: journal in PostgreSQL, objects in a shared store.

This module opens the lock and the journal, in this order; `penstock.agent` then puts the agent
together on them. They are closed in the reverse order.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.agent.assembly import assemble
from penstock.agent.cluster import ClusterFoundation, ClusterJournal
from penstock.agent.company import Company
from penstock.agent.jobs import Job
from penstock.agent.patience import until_answered
from penstock.agent.settings import ClusterSettings
from penstock.app.agent_id import agent_id
from penstock.app.joining import agent_sources
from penstock.app.opening import Opening
from penstock.app.parts import Environment, Parts
from penstock.app.wal_report import WalReport, of_agent
from penstock.app.wal_volumes import WalVolumes
from penstock.config.settings import ServerSettings
from penstock.kafka.net.server import KafkaServer
from penstock.log.archive import ArchiveSettings
from penstock.log.history.lost_histories import describe
from penstock.log.layout import DataLayout
from penstock.model.errors import InvalidRequestError
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.local_journal import new_cluster_id
from penstock.peers.client import PeerClient, PeerTimeouts
from penstock.peers.codec import WalRange
from penstock.peers.secret import ClusterSecret
from penstock.replica.postgres import PostgresJournal
from penstock.replica.snapshot_process import write_snapshot_apart
from penstock.state.orders import ClusterOrder
from penstock.system.files import PosixDevice, make_folder
from penstock.system.lock import DirectoryLock

if TYPE_CHECKING:
    from penstock.app.http.agents_api import AgentSources
    from penstock.app.http.peer_routes import PeerSources
    from penstock.app.http.repair_api import RepairSources


@dataclass(slots=True, kw_only=True)
class ClusterParts(Parts):
    """The parts of one agent."""

    foundation: ClusterFoundation
    company: Company

    @property
    def order(self) -> ClusterOrder:
        """The order that gives this agent's entries their positions."""
        return self.foundation.order

    async def leave(self, deadline_s: float) -> None:
        """See `Parts`. Other agents claim this agent's shards of groups, and clients are no longer
        sent to this agent."""
        await self.company.leave(deadline_s)

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

    def status(self) -> dict[str, object]:
        """See `Parts`."""
        report = self._wal_report()
        counts = self.foundation.store.counts
        now_s = self.clock.monotonic_s()
        return {
            "feature_level": self.view.feature_level,
            "journal_confirmed_s": round(now_s - self.order.head_confirmed_s, 3),
            "agents": len(self.view.agents()),
            "group_shards": len(self.company.shards.owned()),
            "digest": None if self.foundation.digests is None else self.foundation.digests.status(),
            "waiting_bytes": self.foundation.log.waiting_bytes,
            "wal": report.status() if report else None,
            "archived_position": self.foundation.archiver.archived_position,
            "snapshot_position": self.foundation.archiver.snapshot_position,
            "lost_histories": describe(self.view.open_histories),
            "lost_replicas": self.foundation.lost.kept,
            "blocks": {
                "own": counts.own,
                "peer": counts.peer,
                "refused": counts.refused,
                "away": counts.away,
                "loads": self.foundation.own_blocks.load_count,
            },
        }

    def gauges(self) -> dict[str, float]:
        """See `Parts`."""
        report = self._wal_report()
        now_s = self.clock.monotonic_s()
        return {
            **(report.gauges() if report else {}),
            **({} if self.foundation.digests is None else self.foundation.digests.gauges()),
            "penstock_append_waiting_bytes": self.foundation.log.waiting_bytes,
            "penstock_foreign_objects_total": len(self.log.numbers.foreign),
            "penstock_journal_confirmed_seconds": now_s - self.order.head_confirmed_s,
            "penstock_replica_unstored_bytes": self.order.unstored_bytes,
            "penstock_clock_skew_seconds": self.order.clock_skew_ms / 1000,
            "penstock_agents": sum(agent.live for agent in self.view.agents()),
            "penstock_group_shards": len(self.company.shards.owned()),
            "penstock_lost_histories": len(self.view.open_histories),
            "penstock_snapshots_refused_total": self.foundation.archiver.refused_count,
            "penstock_snapshots_uncompared_total": self.foundation.archiver.uncompared_count,
        }

    def not_ready(self) -> str:
        """See `Parts`."""
        if self.order.answering_since_s is None:
            return "the journal's database doesn't answer"
        return ""

    async def back_up(
        self,
        destination: str,
        progress: Callable[[int, int], None] | None = None,  # noqa: ARG002 - the port's
    ) -> dict[str, object]:
        """See `Parts`. A cluster's bucket is its backup."""
        raise InvalidRequestError(
            "back up",
            destination,
            "a cluster's archive in the bucket is its backup",
            "penstock restore --from URL makes a cluster or a data directory from the archive",
        )

    def agent_sources(self) -> "AgentSources":
        """See `Parts`."""
        return agent_sources(self, take_over=self._take_over)

    def repair_sources(self) -> "RepairSources":
        """See `Parts`."""
        histories = self.foundation.history_repair
        return replace(Parts.repair_sources(self), histories=histories, without_secret=False)

    def peer_sources(self) -> "PeerSources":
        """See `Parts`."""
        from penstock.app.http.peer_routes import PeerSources

        async def read_wal(wanted: WalRange) -> bytes:
            return await self.foundation.log.read_own_wal(
                wanted.wal_key, wanted.generation, wanted.position, wanted.length
            )

        return PeerSources(
            own=self.foundation.own_blocks,
            block_bytes=self.settings.block_bytes,
            read_wal=read_wal,
            standing_of=self.company.standing_of,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _wal_report(self) -> WalReport | None:
        log = self.foundation.log
        return of_agent(log.uploader, log.own_wal.free_bytes, self.settings.wal_bytes_max)

    async def _take_over(self, directory: str) -> int:
        return await self.foundation.log.take_over(PosixDevice(Path(directory)))


async def open_cluster_agent(settings: ServerSettings, environment: Environment) -> ClusterParts:
    """Open an agent; nothing is served yet.

    Raises:
        ConflictError: another process uses the data directory.
        RetryableError: the journal doesn't answer.
        InvalidRequestError: the database can't hold a journal.
    """
    layout = DataLayout.of(settings.data)
    assert environment.peer is not None
    random = environment.random
    with ExitStack() as closing:
        closing.callback(DirectoryLock.acquire(layout.root).release)
        opening = Opening(settings, environment, layout, closing)
        applier = ThreadPoolExecutor(1, thread_name_prefix="apply")
        closing.callback(applier.shutdown)
        me = agent_id(layout.root, wanted=settings.node_id, random=random)

        async def open_journal() -> PostgresJournal:
            return await PostgresJournal.open(
                settings.journal,
                name=settings.cluster_name,
                new_cluster_id=lambda: new_cluster_id(random),
            )

        journal = await until_answered(open_journal)
        make_folder(layout.root)
        calls = PeerClient(
            environment.secret or ClusterSecret(settings.cluster_secret),
            PeerTimeouts(silence_s=settings.peer_timeout_ms / 1000),
        )
        closing.callback(calls.close)
        ports = opening.ports(
            ClusterJournal(
                journal=journal,
                cluster_id=journal.cluster_id,
                replica=layout.replica,
                applier=applier,
                calls=calls,
                write_snapshot=partial(write_snapshot_apart, layout.replica),
            ),
            lambda: opening.open_remote(settings.objects, writer=f"agent-{me}"),
        )
        cluster = _cluster_settings(settings)
        agent = await assemble(opening.agent_settings(me=me, cluster=cluster), ports)
        foundation = agent.foundation
        assert isinstance(foundation, ClusterFoundation)
        assert agent.company is not None
        return ClusterParts(
            settings=settings,
            layout=layout,
            clock=environment.clock,
            metrics=opening.metrics,
            pool=opening.pool,
            agent=agent,
            foundation=foundation,
            company=agent.company,
            kafka=KafkaServer(agent.broker),
            closing=closing.pop_all(),
        )


def _cluster_settings(settings: ServerSettings) -> ClusterSettings:
    return ClusterSettings(
        archive=ArchiveSettings(
            interval_ms=settings.archive_interval_ms,
            keep_ms=settings.restore_window_ms,
            snapshot_interval_ms=settings.snapshot_interval_ms,
            snapshot_entries=settings.snapshot_entries,
        ),
        restore_window_ms=settings.restore_window_ms,
        digest_interval_ms=settings.digest_interval_ms,
        order=ClusterOrderSettings(clock_believed_after_ms=settings.clock_believed_after_ms),
    )
