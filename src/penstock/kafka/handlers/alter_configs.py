"""AlterConfigs 0 to 2: what is given becomes the whole of a resource's configs."""

from collections.abc import Mapping
from typing import Any, Final

from penstock.kafka.altering import alter
from penstock.kafka.arrays import ArrayWriter
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.outcomes import ItemError
from penstock.kafka.schema import build, response_types

API_KEY: Final = 33
VERSIONS: Final = range(3)


async def handle(context: RequestContext, request: Any) -> Any:
    """Replace configs; an outcome per resource."""
    types = response_types("alter_configs", context.api_version)
    outcomes = await alter(
        context, request.resources, _new_configs, apply=not request.validate_only
    )
    responses = ArrayWriter(types.AlterConfigsResourceResponse)
    async for resource, outcome in context.broker.turns.each(
        zip(request.resources, outcomes, strict=True)
    ):
        responses.add(
            error_code=outcome.error,
            error_message=outcome.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
    return build(types.AlterConfigsResponse, responses=responses.encoded())


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
