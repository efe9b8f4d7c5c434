"""AlterConfigs 0 to 2: what is given becomes the whole of a resource's configs."""

from collections.abc import Mapping
from typing import Any, Final

from penstock.kafka.admin.altering import alter
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.kafka.wire.schema import build, response_types

API_KEY: Final = 33
VERSIONS: Final = range(3)


async def handle(context: RequestContext, request: Any) -> Any:
    """Replace configs; an outcome per resource."""
    types = response_types("alter_configs", context.api_version)
    responses = await alter(context, request, _new_configs, types.AlterConfigsResourceResponse)
    return build(types.AlterConfigsResponse, responses=responses)


def _new_configs(
    resource: Any,
    current: Mapping[str, str],  # noqa: ARG001 - replaced, whatever it is
    *,
    of_topic: bool,  # noqa: ARG001
) -> dict[str, str]:
    for config in resource.configs:
        if config.value is None:
            raise ItemError(ErrorCode.INVALID_REQUEST, f"the config {config.name} has no value")
    return {config.name: config.value for config in resource.configs}
