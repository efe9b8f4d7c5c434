"""A server of any shape shows its parts to its lifecycle, HTTP port and status in one way."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.assembly import Agent
from penstock.agent.foundation import Foundation
from penstock.agent.jobs import Job
from penstock.config.addresses import Address
from penstock.config.checks import is_cluster
from penstock.config.settings import ServerSettings
from penstock.groups.coordinator import GroupCoordinator
from penstock.kafka.broker import Broker
from penstock.kafka.net.server import KafkaServer
from penstock.log import Log
from penstock.log.layout import DataLayout
from penstock.observability.metrics import Metrics
from penstock.peers.secret import ClusterSecret
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
from penstock.security.listener import Listener
from penstock.state.ages import Ages
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.system.believed_clock import BelievedClock
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.app.api.sources import PipelineSources
    from penstock.app.http.agents_api import AgentSources
    from penstock.app.http.peer_routes import PeerSources
    from penstock.app.http.repair_api import RepairSources


class Environment(NamedTuple):
    """Everything besides its settings that a server is opened with."""

    clock: BelievedClock
    random: Random
    on_fatal: Callable[[BaseException], None]
    """Ends the process. It is called when nothing can be said about what is durable."""
    advertised: Address
    """The address of this server in answers to clients."""
    peer: Address | None
    """Other agents call this agent at this address; None: this agent has no HTTP port."""
    listeners: Sequence[Listener] = ()
    """The listeners of Kafka clients; the first one has the address above. Empty: that alone."""
    secret: ClusterSecret | None = None
    """The secret of the cluster's agents."""
    http: Address | None = None
    """Tools reach the HTTP port at this address; None: at the same address as agents."""


@dataclass(slots=True, kw_only=True)
class Parts(ABC):
    """The open parts of a server. Callers call `start`, then `drain`, then `closing.close`."""

    settings: ServerSettings
    layout: DataLayout
    clock: BelievedClock
    metrics: Metrics
    pool: ThreadPoolExecutor
    agent: Agent
    foundation: Foundation
    """Everything that the agent was opened on: state, clock, pool, store."""
    kafka: KafkaServer
    closing: ExitStack = field(default_factory=ExitStack)
    """Closes what the parts hold, in the reverse order of opening; the directory's lock is last."""

    @property
    def ages(self) -> Ages:
        """The time by which things expire."""
        return self.foundation.ages

    @property
    def view(self) -> StateView:
        """The state in memory."""
        return self.foundation.view

    @property
    def queries(self) -> Callable[[], Queries]:
        """Returns the calling thread's own connection to the state."""
        return self.foundation.queries

    @property
    def store(self) -> ObjectStore:
        """The store of the log's objects, including objects inherited from a restored log."""
        return self.foundation.store

    @property
    def log(self) -> Log:
        """The log of the agent."""
        return self.foundation.log

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of groups."""
        return self.agent.groups

    @property
    def broker(self) -> Broker:
        """The broker that handlers of the Kafka face call."""
        return self.agent.broker

    @property
    def epoch(self) -> int:
        """Return this agent's epoch, which each start raises."""
        return self.foundation.order.epoch

    @property
    def position(self) -> int:
        """The position of the last journal entry that this agent has applied."""
        return self.foundation.order.position

    async def start(self) -> None:
        """Start the parts. After this returns, clients may be served."""
        await self.agent.start()

    async def leave(self, deadline_s: float) -> None:  # noqa: B027 - most shapes have no other agent
        """Hand over to other agents what clients look for at this one, while it still serves."""

    async def wait_for_others(self, deadline_s: float) -> None:  # noqa: B027 - most are alone
        """Serve until the other workers of this host have ended, since they drain through this
        worker; at most `deadline_s`."""

    async def drain(self, deadline_s: float) -> bool:
        """Move acknowledged records to segment objects, and stop the log.

        Returns:
            Whether all records are in objects. The others are safe in the WAL.
        """
        return await self.agent.drain(deadline_s)

    def jobs(self) -> Sequence[Job]:
        """Return the jobs that run at intervals."""
        return self.agent.jobs()

    @abstractmethod
    def status(self) -> dict[str, object]:
        """Return the state of this server's storage, as /v1/status shows it."""

    @abstractmethod
    def gauges(self) -> dict[str, float]:
        """Return the values of the storage's gauges by name, for /metrics."""

    @abstractmethod
    def not_ready(self) -> str:
        """Return the reason why clients can't be served as they should be, or ""."""

    @abstractmethod
    async def back_up(
        self, destination: str, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, object]:
        """Copy every record acknowledged so far, while serving; return the backup's manifest.

        Args:
            progress: gets the bytes copied so far and the bytes in all, on the event loop.

        Raises:
            PenstockError: the backup can't be made.
        """

    def agent_sources(self) -> "AgentSources | None":
        """Return the sources of the HTTP calls about agents; None: there is one agent."""
        return None

    def repair_sources(self) -> "RepairSources":
        """Return the sources of the HTTP calls of `penstock repair`."""
        from penstock.app.http.repair_api import RepairSources

        return RepairSources(
            damage=self.log.damage_repair,
            care=self.log.care,
            rebuilt=self.log.rebuilt_records,
            lost_ranges=self.log.lost_ranges,
            topic_id_of=self.log.topic_id_of,
            partition_name=self.log.partition_name,
            without_secret=True,
        )

    def pipeline_sources(self) -> "PipelineSources":
        """Return the sources of the pipeline API."""
        from penstock.app.api.sources import PipelineSources, url_without_credentials

        settings, broker = self.settings, self.broker
        shared = is_cluster(settings)
        objects = settings.objects if shared else str(DataLayout.of(settings.data).objects)
        return PipelineSources(
            cluster_id=broker.cluster_id,
            version=VERSION,
            ages=self.ages,
            view=self.view,
            queries=self.queries,
            log=self.log,
            heads=broker.heads,
            store=self.store,
            pool=self.pool,
            metrics=self.metrics,
            scratch=str(self.layout.scratch),
            objects_url=url_without_credentials(objects),
            block_bytes=settings.block_bytes,
            object_bytes_max=settings.pipeline_object_bytes_max,
            confirm_timeout_s=broker.settings.confirm_timeout_s,
            without_secret=not shared,
        )

    def peer_sources(self) -> "PeerSources | None":
        """Return the sources of the calls of other agents; None: there are no other agents."""
        return None
