"""Everything that handlers reach: one value, assembled by the app."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kafka.fetch_session import FetchSessions
from penstock.kafka.instruments import Instruments, NoInstruments
from penstock.kafka.nodes import Nodes, OneNode
from penstock.kafka.settings import KafkaSettings
from penstock.metadata.committer import Committer
from penstock.metadata.ordering import Heads
from penstock.ports.clock import Clock
from penstock.ports.random import Random

if TYPE_CHECKING:
    from penstock.groups.coordinator import GroupCoordinator
    from penstock.log.serving import ServingLog
    from penstock.metadata.view import MetadataView


@dataclass(slots=True, kw_only=True)
class Broker:
    """The parts of a server that the Kafka face calls. `advertised_port` may be set once the
    listening port is known."""

    view: "MetadataView"
    committer: Committer
    log: "ServingLog"
    groups: "GroupCoordinator"
    clock: Clock
    random: Random
    cluster_id: str
    node_id: int
    advertised_host: str
    advertised_port: int
    settings: KafkaSettings = field(default_factory=KafkaSettings)
    instruments: Instruments = field(default_factory=NoInstruments)
    fetch_sessions: FetchSessions = field(default_factory=FetchSessions)
    heads: Heads | None = None
    """How far this replica is against the cluster's journal; None: this server has it to itself,
    so that it is never behind."""
    cluster: Nodes | None = None
    """The cluster's agents; None: this server stands alone."""
    nodes: Nodes = field(init=False)
    """Whom clients are sent to."""

    def __post_init__(self) -> None:
        self.nodes = self.cluster or OneNode(self)

    @property
    def epoch(self) -> int:
        """Leader epoch of every partition: of the last restore of this cluster."""
        return self.view.leader_epoch
