"""ListConfigResources 0 to 1: which resources have configs (KIP-1142).

Version 0 is the former ListClientMetricsResources (KIP-714), of which there are none here.
"""

from typing import TYPE_CHECKING, Final

from penstock.kafka.admin.resources import ResourceType
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest

RESOURCE_BYTES: Final = 2
"""Type and tags."""


async def handle(context: RequestContext, request: "ListConfigResourcesRequest") -> Answer:
    """List topics, the broker, and the groups that have configs."""
    types = response_types("list_config_resources", context.api_version)
    refused = context.access.cluster(Operation.DESCRIBE_CONFIGS)
    if refused:
        return build(types.ListConfigResourcesResponse, error_code=refused, config_resources=())
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
    turns = broker.turns
    found: list[tuple[int, str]] = []
    if ResourceType.TOPIC in asked:
        every = turns.each(list(broker.view.topics()))
        found += [(ResourceType.TOPIC, topic.name) async for topic in every]
    if ResourceType.BROKER in asked:
        found.append((ResourceType.BROKER, str(broker.node_id)))
    if ResourceType.GROUP in asked:
        every_group = turns.each(list(broker.view.group_configs))
        found += [(ResourceType.GROUP, group_id) async for group_id in every_group]
    bound = BASE_BYTES
    async for _, name in turns.each(found):
        bound += RESOURCE_BYTES + text_bytes(name)
    waiting = context.reserve_answer(bound)
    if waiting is not None:
        return waiting
    resources = ArrayWriter(types.ConfigResource)
    async for kind, name in turns.in_order(found):
        resources.add(resource_name=name, resource_type=int(kind))
    return build(
        types.ListConfigResourcesResponse,
        error_code=ErrorCode.NONE,
        config_resources=resources.encoded(),
    )
