"""AlterConfigs 0 to 2: what is given becomes the whole of a resource's configs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.kafka.admin.altering import alter
from penstock.kafka.admin.resources import ResourceType
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import ItemError
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource


async def handle(context: RequestContext, request: "AlterConfigsRequest") -> Answer:
    """Replace configs; an outcome per resource."""
    types = response_types("alter_configs", context.api_version)
    responses = await alter(
        context,
        request.resources,
        _new_configs,
        types.AlterConfigsResourceResponse,
        validate_only=request.validate_only,
    )
    return build(types.AlterConfigsResponse, responses=responses)


def _new_configs(
    resource: "AlterConfigsResource",
    current: Mapping[str, str],  # noqa: ARG001 - replaced, whatever it is
    *,
    kind: ResourceType,  # noqa: ARG001
) -> dict[str, str]:
    configs = {}
    for config in resource.configs:
        if config.value is None:
            raise ItemError(ErrorCode.INVALID_REQUEST, f"the config {config.name} has no value")
        configs[config.name] = config.value
    return configs
