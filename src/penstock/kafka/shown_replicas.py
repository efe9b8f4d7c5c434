"""The replicas of a topic's partitions that a client is shown, alike wherever it asks."""

from typing import TYPE_CHECKING, Final

from penstock.kafka.context import RequestContext
from penstock.placement.replicas import Replicas
from penstock.placement.zones import zone_of

if TYPE_CHECKING:
    from penstock.state.read.view import StateView, Topic

_IN_SYNC_CONFIG: Final = "min.insync.replicas"


def replicas_of(context: RequestContext) -> Replicas:
    """Return the replicas of partitions that the client is shown; the first one leads."""
    return context.nodes.replicas(zone_of(context.client_id))


def in_sync_min(topic: "Topic", view: "StateView") -> int:
    """Return the topic's `min.insync.replicas`."""
    value = topic.configs.get(_IN_SYNC_CONFIG) or view.cluster_configs.get(_IN_SYNC_CONFIG)
    return int(value or 1)
