"""ListConfigResources 0 to 1: which resources have configs (KIP-1142).

Version 0 is the former ListClientMetricsResources (KIP-714), of which there are none here.
"""

from typing import Any, Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.resources import ResourceType
from penstock.kafka.schema import build, response_types

API_KEY: Final = 74
VERSIONS: Final = range(2)


async def handle(context: RequestContext, request: Any) -> Any:
    """List topics and the broker."""
    types = response_types("list_config_resources", context.api_version)
    broker = context.broker
    known = {int(one) for one in ResourceType}
    # Nothing named asks for every kind; version 0 knows client metrics alone.
    if context.api_version == 0:
        asked = {int(ResourceType.CLIENT_METRICS)}
    else:
        asked = set(request.resource_types) or known
    if not asked <= known:
        return build(
            types.ListConfigResourcesResponse,
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            config_resources=(),
        )
    found: list[tuple[str, int]] = []
    if ResourceType.TOPIC in asked:
        found.extend((topic.name, ResourceType.TOPIC) for topic in broker.view.topics())
    if ResourceType.BROKER in asked:
        found.append((str(broker.node_id), ResourceType.BROKER))
    return build(
        types.ListConfigResourcesResponse,
        error_code=ErrorCode.NONE,
        config_resources=tuple(
            build(types.ConfigResource, resource_name=name, resource_type=int(kind))
            for name, kind in sorted(found, key=lambda one: (one[1], one[0]))
        ),
    )
