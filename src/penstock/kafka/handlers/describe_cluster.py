"""DescribeCluster 0 to 2: the one broker, which is the controller too (KIP-700)."""

from typing import Any, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.schema import build, response_types

API_KEY: Final = 60
VERSIONS: Final = range(3)

BROKERS: Final = 1
CONTROLLERS: Final = 2


async def handle(context: RequestContext, request: Any) -> Any:
    """Describe the cluster as clients may see it."""
    types = response_types("describe_cluster", context.api_version)
    broker = context.broker
    endpoints = getattr(request, "endpoint_type", BROKERS)
    error, message = ErrorCode.NONE, None
    if endpoints == CONTROLLERS:
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = "this is a broker's address, there are no controllers"
    elif endpoints != BROKERS:
        error = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"endpoint type {endpoints} is unknown"
    brokers: tuple[Any, ...] = ()
    if error is ErrorCode.NONE:
        brokers = (
            build(
                types.DescribeClusterBroker,
                broker_id=broker.node_id,
                host=broker.advertised_host,
                port=broker.advertised_port,
                rack=None,
                is_fenced=False,
            ),
        )
    return build(
        types.DescribeClusterResponse,
        error_code=error,
        error_message=message,
        endpoint_type=BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=brokers,
    )
