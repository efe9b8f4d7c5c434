"""Sends members to the agent that owns their group's share partitions (docs/share-groups.md).

A client looks for a share partition at the leader that Metadata names. An agent that doesn't own
the group names the owner as the partition's present leader (KIP-951), under a leader epoch that is
above Metadata's and grows with every move, which clients take.
"""

from types import ModuleType
from typing import Final, NamedTuple

from penstock.groups.errors import GroupError
from penstock.kafka.broker import Broker
from penstock.kafka.nodes import Node
from penstock.kafka.wire.encode import Entity
from penstock.state.cluster_tables import group_shard

UNKNOWN_WAIT_S: Final = 0.5
"""How long an answer is held back that tells a client nothing new, so that it doesn't ask at once
again."""
ELSEWHERE: Final = frozenset(
    {
        GroupError.NOT_COORDINATOR,
        GroupError.COORDINATOR_NOT_AVAILABLE,
        GroupError.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""The group is another agent's, or its owner is being found."""


class Leader(NamedTuple):
    """The agent to ask. `node` None: it is not known now."""

    node: Node | None
    epoch: int

    @property
    def node_id(self) -> int:
        """The agent's id; -1: it is not known."""
        return -1 if self.node is None else self.node.node_id


NO_LEADER: Final = Leader(None, -1)


def leader_of(broker: Broker, group_id: str) -> Leader:
    """Find the owner of a group's share partitions."""
    node = broker.nodes.coordinator(group_id)
    if node is None or node.node_id == broker.node_id:
        return NO_LEADER
    return Leader(node, broker.view.leader_epoch + broker.view.shard_epoch(group_shard(group_id)))


def endpoints_of(types: ModuleType, leader: Leader) -> tuple[Entity, ...]:
    """Return the endpoint of the agent to ask, in the answer's classes."""
    node = leader.node
    if node is None:
        return ()
    endpoint: Entity = types.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port)
    return (endpoint,)
