"""A server's parts, whatever its shape: what its lifecycle, HTTP port and status reach."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.assembly import Agent
from penstock.agent.foundation import Foundation
from penstock.agent.jobs import Job
from penstock.config.addresses import Address, parse_address
from penstock.config.checks import is_cluster
from penstock.config.settings import ServerSettings
from penstock.groups.coordinator import GroupCoordinator
from penstock.kafka.broker import Broker
from penstock.kafka.net.server import KafkaServer
from penstock.log.layout import DataLayout
from penstock.log.serving import ServingLog
from penstock.observability.metrics import Metrics
from penstock.ports.objects import ObjectStore
from penstock.ports.random import Random
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
    """What a server is opened with beside its settings."""

    clock: BelievedClock
    random: Random
    on_fatal: Callable[[BaseException], None]
    """Ends the process; called when it is unknown what is durable."""
    advertised: Address
    """What clients are told to connect to."""
    peer: Address | None
    """Other agents call this one at this address; None: it has no HTTP port."""
    http: Address | None = None
    """Tools reach its HTTP port at this address, where it differs from the one for agents."""


@dataclass(slots=True, kw_only=True)
class Parts(ABC):
    """A server's parts, open. `start`, then `drain`, then `closing.close`."""

    settings: ServerSettings
    layout: DataLayout
    clock: BelievedClock
    metrics: Metrics
    pool: ThreadPoolExecutor
    agent: Agent
    foundation: Foundation
    """Of the agent."""
    kafka: KafkaServer
    closing: ExitStack = field(default_factory=ExitStack)
    """Closes what the parts hold, in reverse; the last is the directory's lock."""

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
        """Gives each calling thread its own connection to the state."""
        return self.foundation.queries

    @property
    def store(self) -> ObjectStore:
        """The objects, inherited ones too."""
        return self.foundation.store

    @property
    def log(self) -> ServingLog:
        """The log of the agent."""
        return self.foundation.log

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of groups."""
        return self.agent.groups

    @property
    def broker(self) -> Broker:
        """The value that handlers of the Kafka face reach."""
        return self.agent.broker

    @property
    def epoch(self) -> int:
        """The epoch of this agent."""
        return self.foundation.epoch

    @property
    def position(self) -> int:
        """The last entry of the journal that is applied here."""
        return self.foundation.ordering.position

    async def start(self) -> None:
        """Begin: after it clients may be served."""
        await self.agent.start()

    async def leave(self, deadline_s: float) -> None:  # noqa: B027 - most have nobody to tell
        """Hand over to others what clients would look for here, while all is still served."""

    async def wait_for_others(self, deadline_s: float) -> None:  # noqa: B027 - most are alone
        """Serve on until the other workers of this host have ended, which drain through this one;
        at most `deadline_s`."""

    async def drain(self, deadline_s: float) -> bool:
        """Bring what was acknowledged to where it stays, and stop the log. Whether all of it is
        there; what isn't is safe in the WAL."""
        return await self.agent.drain(deadline_s)

    def jobs(self) -> Sequence[Job]:
        """Return the work that comes round."""
        return self.agent.jobs()

    @abstractmethod
    def status(self) -> dict[str, object]:
        """What there is to say of its storage, for /v1/status."""

    @abstractmethod
    def gauges(self) -> dict[str, float]:
        """Return the values of its storage's gauges by name, for /metrics."""

    @abstractmethod
    def not_ready(self) -> str:
        """Why clients can't be served as they should be, or ""."""

    @abstractmethod
    async def back_up(
        self, destination: str, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, object]:
        """Copy everything acknowledged so far, while serving; what the manifest says.

        Args:
            progress: told bytes done and in all, on the event loop.

        Raises:
            PenstockError: it can't be made.
        """

    def agent_sources(self) -> "AgentSources | None":
        """What the HTTP calls about agents are answered from; None: there is one agent."""
        return None

    def repair_sources(self) -> "RepairSources":
        """What the HTTP calls of `penstock repair` are answered by."""
        from penstock.app.http.repair_api import RepairSources

        return RepairSources(
            damage=self.log.damage_repair,
            scan=self.log.scan,
            rebuilt=self.log.rebuilt_records,
            lost_ranges=self.log.lost_ranges,
            topic_id_of=self.log.topic_id_of,
            partition_name=self.log.partition_name,
            without_secret=True,
        )

    def pipeline_sources(self) -> "PipelineSources":
        """What jobs of the pipeline are answered from."""
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
            on_loopback=bool(settings.http)
            and not settings.cluster_secret
            and parse_address(settings.http, setting="http").is_loopback,
        )

    def peer_sources(self) -> "PeerSources | None":
        """What other agents ask for; None: there are none."""
        return None
