"""Everything that handlers reach: one value, assembled by the app."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.kafka.access import Authority
from penstock.kafka.auto_creation import AutoCreation
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.instruments import Instruments, NoInstruments
from penstock.kafka.nodes import Node, Nodes, OneNode
from penstock.kafka.quotas.quotas import Quotas
from penstock.kafka.record_checks import RecordChecks
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.topic_room import Creations
from penstock.order.port import Heads
from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.security.listener import Listener
from penstock.state.order_types import Committer
from penstock.system.seldom import Seldom
from penstock.system.turns import Turns

if TYPE_CHECKING:
    from penstock.groups.coordinator import GroupCoordinator
    from penstock.log import Log
    from penstock.security.audit import Audit
    from penstock.security.authenticator import Authenticator
    from penstock.state.read.view import StateView


@dataclass(slots=True, kw_only=True)
class Broker:
    """The parts of a server that the Kafka face calls. `advertised_port` may be set once the
    listening port is known."""

    view: "StateView"
    committer: Committer
    log: "Log"
    groups: "GroupCoordinator"
    clock: Clock
    random: Random
    cluster_id: str
    node_id: int
    advertised_host: str
    advertised_port: int
    settings: KafkaSettings = field(default_factory=KafkaSettings)
    instruments: Instruments = field(default_factory=NoInstruments)
    record_checks: RecordChecks = field(default_factory=RecordChecks)
    turns: Turns = field(default_factory=Turns)
    """The turns of the event loop in which long requests are served."""
    long_produces: asyncio.Lock = field(default_factory=asyncio.Lock)
    long_fetches: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request of more partitions than one turn has room for is read. One such request
    is
    read at a time: reading takes many times the request's bytes, and reading several at once would
    not be faster."""
    long_requests: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The same of other APIs' requests of a megabyte, until their answers are reserved."""
    position: Callable[[], int]
    """The last entry of the journal that is applied here."""
    heads: Heads | None = None
    """How far this replica is against the cluster's journal; None: this server has it to itself,
    so that it is never behind."""
    cluster: Nodes | None = None
    """The cluster's agents; None: this server stands alone."""
    authority: Authority | None = field(init=False)
    """The authorizer; None: everything is allowed."""
    listeners: Sequence[Listener] = ()
    """This server's; empty: one, of PLAINTEXT. The address of the first one is the broker's own."""
    authenticator: "Authenticator | None" = None
    """Authenticates clients of listeners with SASL; None: there is none."""
    audit: "Audit | None" = None
    """Gathers what clients do, for the audit log; None: there is none."""
    quotas: Quotas = field(init=False)
    fetch_sessions: FetchSessions = field(init=False)
    auto_creation: AutoCreation = field(init=False)
    """How many topics requests for metadata may create."""
    creations: Creations = field(init=False)
    """The topics and partitions that requests create now."""
    seldom: Seldom = field(init=False)
    """Says which of handlers' warnings is worth a line."""
    nodes: Nodes = field(init=False)
    """The brokers that clients are sent to, with the addresses of their first listeners."""
    _nodes_of: dict[str, Nodes] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = self.cluster or OneNode(self.node_id, self._itself)
        acls = self.settings.acls
        self.authority = (
            None if acls is None else Authority(self.view, acls, self.clock, self.heads)
        )
        self.quotas = Quotas(self.view.quotas, self.clock)
        self.fetch_sessions = FetchSessions(self.settings.fetch_sessions_max)
        self.auto_creation = AutoCreation(self.settings.auto_create_topics_per_s)
        self.creations = Creations(self.view, self.settings)
        self.seldom = Seldom(self.clock)

    @property
    def epoch(self) -> int:
        """Leader epoch of every partition: of the last restore of this cluster."""
        return self.view.leader_epoch

    def nodes_of(self, listener: str) -> Nodes:
        """Return the brokers with the addresses of a listener of this server; "": of the first."""
        if not listener:
            return self.nodes
        found = self._nodes_of.get(listener)
        if found is None:
            found = self._nodes_of[listener] = self._new_nodes(listener)
        return found

    def _new_nodes(self, name: str) -> Nodes:
        if self.cluster is not None:
            return self.cluster.of_listener(name)
        own = next(each for each in self.listeners if each.name == name)
        node = Node(self.node_id, own.advertised_host, own.advertised_port)
        return OneNode(self.node_id, lambda: node)

    def _itself(self) -> Node:
        return Node(self.node_id, self.advertised_host, self.advertised_port)
