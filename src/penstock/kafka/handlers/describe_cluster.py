"""DescribeCluster 0 to 2: the brokers; any of them is a controller (KIP-700)."""

from typing import TYPE_CHECKING, Final

from penstock.kafka.access import UNKNOWN_OPERATIONS
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.placement.zones import zone_of

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest


BROKERS: Final = 1
CONTROLLERS: Final = 2


async def handle(context: RequestContext, request: "DescribeClusterRequest") -> Answer:
    """Describe the cluster as clients may see it."""
    types = response_types("describe_cluster", context.api_version)
    broker = context.broker
    endpoints = request.endpoint_type
    error, message = ErrorCode.NONE, None
    if endpoints == CONTROLLERS:
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = "this is a broker's address, there are no controllers"
    elif endpoints != BROKERS:
        error = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"endpoint type {endpoints} is unknown"
    brokers: tuple[Entity, ...] = ()
    if error is ErrorCode.NONE:
        brokers = tuple(
            build(
                types.DescribeClusterBroker,
                broker_id=node.node_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=False,
            )
            for node in context.nodes.all()
        )
    operations = UNKNOWN_OPERATIONS
    if request.include_cluster_authorized_operations:
        operations = context.access.cluster_operations()
    return build(
        types.DescribeClusterResponse,
        error_code=error,
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=context.nodes.controller(zone_of(context.client_id)),
        brokers=brokers,
        cluster_authorized_operations=operations,
    )
