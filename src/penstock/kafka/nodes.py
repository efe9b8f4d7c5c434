"""The brokers that clients are shown: this server alone, or the agents of its cluster.

Any agent serves any partition, so a leader is nothing but where clients of a partition are sent:
to one agent of their zone, the same one for all of them, so that caches hold it once. Being
shown another leader than a moment ago costs a client a connection and nothing else.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.placement.leaders import Leaders
from penstock.placement.rendezvous import owner_of
from penstock.placement.replicas import Replicas
from penstock.placement.zones import ZONE_LABEL, Place, candidates
from penstock.security.listener import DEFAULT_NAME, LISTENERS_LABEL, parse_endpoints
from penstock.state.rows import Agent, AgentStatus

if TYPE_CHECKING:
    from penstock.state.read.view import StateView


class Node(NamedTuple):
    """A broker as clients see it. `rack` is its zone."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Nodes(Protocol):
    """Whom clients are sent to."""

    def all(self) -> Sequence[Node]:
        """The brokers that may be connected to, by id."""
        ...

    def leaders(self, zone: str) -> Leaders:
        """Return the leaders of partitions for clients of a zone ("": of none)."""
        ...

    def replicas(self, zone: str) -> Replicas:
        """Return the replicas of partitions, as clients of a zone are shown them."""
        ...

    def controller(self, zone: str) -> int:
        """Return the broker that administrators of a zone ask; any would do."""
        ...

    def coordinator(self, group_id: str) -> Node | None:
        """Return the coordinator of a group; None: there is none at the moment."""
        ...

    def transaction_coordinator(self, transactional_id: str, zone: str) -> Node | None:
        """Return the broker that producers of a zone take a transactional id to; any would do."""
        ...

    def is_far(self, zone: str) -> bool:
        """Whether there are brokers in a zone, and this one is not."""
        ...

    def is_leaving(self) -> bool:
        """Whether this broker is being drained, and others lead all partitions."""
        ...

    def is_alone(self) -> bool:
        """Whether the journal is away from this broker and there for others: what is new since is
        known to them alone."""
        ...

    def of_listener(self, name: str) -> "Nodes":
        """Return the same brokers with the addresses of a listener; those without it are left
        out."""
        ...


class OneNode:
    """A server that stands alone.

    Args:
        itself: gives its node, whose port may become known later.
    """

    def __init__(self, node_id: int, itself: Callable[[], Node]) -> None:
        self._node_id = node_id
        self._itself = itself
        self._leaders = Leaders((node_id,))
        self._replicas = Replicas(self._leaders, {"": self._leaders})

    def all(self) -> Sequence[Node]:
        """See `Nodes`."""
        return (self._itself(),)

    def leaders(self, zone: str) -> Leaders:  # noqa: ARG002 - the port's
        """See `Nodes`."""
        return self._leaders

    def replicas(self, zone: str) -> Replicas:  # noqa: ARG002 - the port's
        """See `Nodes`."""
        return self._replicas

    def controller(self, zone: str) -> int:  # noqa: ARG002 - the port's
        """See `Nodes`."""
        return self._node_id

    def coordinator(self, group_id: str) -> Node | None:  # noqa: ARG002 - the port's
        """See `Nodes`."""
        return self._itself()

    def transaction_coordinator(
        self,
        transactional_id: str,  # noqa: ARG002 - the port's
        zone: str,  # noqa: ARG002 - the port's
    ) -> Node | None:
        """See `Nodes`."""
        return self._itself()

    def is_far(self, zone: str) -> bool:  # noqa: ARG002 - the port's
        """See `Nodes`."""
        return False

    def is_leaving(self) -> bool:
        """See `Nodes`."""
        return False

    def is_alone(self) -> bool:
        """See `Nodes`."""
        return False

    def of_listener(self, name: str) -> "Nodes":  # noqa: ARG002 - the port's
        """See `Nodes`. The broker knows the addresses of its own listeners."""
        return self


class ClusterNodes:
    """The agents that the journal knows, as this agent's view has them."""

    def __init__(
        self,
        *,
        me: int,
        view: "StateView",
        coordinator_of: Callable[[str], int | None],
        is_cut_off: Callable[[], bool] = lambda: False,
        is_alone: Callable[[], bool] = lambda: False,
        quiet: Callable[[], frozenset[int]] = frozenset,
        listener: str = "",
    ) -> None:
        """
        Args:
            me: this agent's id.
            coordinator_of: returns the live agent that coordinates a group.
            quiet: agents that have missed a beat, and may be gone: what is decided about them
                comes later, and until then clients are sent to others, while there are any.
            is_cut_off: whether the journal has been away from this agent for long: then clients
                are sent to others, who may well reach it, while there are any.
            is_alone: whether others are known to reach the journal meanwhile.
            listener: the listener whose addresses clients are shown; "": each agent's first one.
        """
        self._listener = listener
        self._me = me
        self._is_cut_off = is_cut_off
        self._is_alone = is_alone
        self._was_cut_off = False
        self._quiet = quiet
        self._were_quiet: frozenset[int] = frozenset()
        self._view = view
        self._coordinator_of = coordinator_of
        self._generation = -1
        self._nodes: dict[int, Node] = {}
        self._places: list[Place] = []
        self._leaders: dict[str, Leaders] = {}
        # Found by the candidates of their leaders.
        self._replicas: dict[tuple[int, ...], Replicas] = {}
        self._zone = ""
        self._zones: set[str] = set()
        self._is_leaving = False

    def all(self) -> Sequence[Node]:
        """See `Nodes`. Those that are being drained stay until their groups have moved, since
        tools ask each broker that they are shown for its groups."""
        self._follow()
        return tuple(self._nodes.values())

    def leaders(self, zone: str) -> Leaders:
        """See `Nodes`."""
        self._follow()
        known = self._leaders.get(zone)
        if known is None:
            known = Leaders(candidates(self._places, zone) or (self._me,))
            # Zones come from clients, so what is kept of them is bounded.
            if any(place.zone == zone for place in self._places) or not zone:
                self._leaders[zone] = known
        return known

    def replicas(self, zone: str) -> Replicas:
        """See `Nodes`."""
        near = self.leaders(zone)
        known = self._replicas.get(near.candidates)
        if known is None:
            zones = {
                found: Leaders(
                    [
                        place.agent
                        for place in self._places
                        if place.zone == found and not place.draining
                    ]
                )
                for found in self._zones
            }
            known = self._replicas[near.candidates] = Replicas(near, zones)
        return known

    def controller(self, zone: str) -> int:
        """See `Nodes`."""
        self._follow()
        owner = owner_of(b"controller", candidates(self._places, zone))
        return self._me if owner is None else owner

    def coordinator(self, group_id: str) -> Node | None:
        """See `Nodes`."""
        self._follow()
        owner = self._coordinator_of(group_id)
        return None if owner is None else self._nodes.get(owner)

    def transaction_coordinator(self, transactional_id: str, zone: str) -> Node | None:
        """See `Nodes`."""
        self._follow()
        owner = owner_of(transactional_id.encode(), candidates(self._places, zone))
        return None if owner is None else self._nodes.get(owner)

    def is_far(self, zone: str) -> bool:
        """See `Nodes`."""
        self._follow()
        return zone != self._zone and zone in self._zones

    def is_leaving(self) -> bool:
        """See `Nodes`. An agent that alone is cut off or quiet is not: `CutOff` knows when its
        clients are served better elsewhere."""
        self._follow()
        return self._is_leaving

    def is_alone(self) -> bool:
        """See `Nodes`."""
        return self._is_alone()

    def of_listener(self, name: str) -> "ClusterNodes":
        """See `Nodes`."""
        return ClusterNodes(
            me=self._me,
            view=self._view,
            coordinator_of=self._coordinator_of,
            is_cut_off=self._is_cut_off,
            is_alone=self._is_alone,
            quiet=self._quiet,
            listener=name,
        )

    def _follow(self) -> None:
        view = self._view
        is_cut_off, quiet = self._is_cut_off(), self._quiet()
        if (
            self._generation == view.agents_generation
            and is_cut_off == self._was_cut_off
            and quiet == self._were_quiet
        ):
            return
        self._was_cut_off, self._were_quiet = is_cut_off, quiet
        self._generation = view.agents_generation
        endpoints = {
            agent.agent_id: endpoint_of(agent, self._listener)
            for agent in view.agents()
            if agent.live
        }
        live = [agent for agent in view.agents() if endpoints.get(agent.agent_id)]
        self._nodes = {agent.agent_id: _node(agent, endpoints[agent.agent_id]) for agent in live}
        self._places = [
            Place(
                agent=agent.agent_id,
                zone=agent.labels.get(ZONE_LABEL, ""),
                draining=agent.status is AgentStatus.DRAINING
                or agent.agent_id in quiet
                or (is_cut_off and agent.agent_id == self._me),
            )
            for agent in live
        ]
        self._zone = next((place.zone for place in self._places if place.agent == self._me), "")
        self._zones = {place.zone for place in self._places if not place.draining}
        own = next((agent for agent in live if agent.agent_id == self._me), None)
        self._is_leaving = (
            own is not None
            and own.status is AgentStatus.DRAINING
            and any(not place.draining for place in self._places)
        )
        self._leaders.clear()
        self._replicas.clear()


def endpoint_of(agent: Agent, listener: str) -> str:
    """Return HOST:PORT of an agent's listener; "": it has none of this name.

    An agent publishes all its listeners in a label, unless it has the one of the setting `kafka`,
    or is of a release that knows no others.
    """
    published = agent.labels.get(LISTENERS_LABEL, "")
    if not listener or (not published and listener == DEFAULT_NAME):
        return agent.endpoint
    return parse_endpoints(published).get(listener, "")


def _node(agent: Agent, endpoint: str) -> Node:
    host, _, port = endpoint.rpartition(":")
    return Node(agent.agent_id, host.strip("[]"), int(port), agent.labels.get(ZONE_LABEL) or None)
