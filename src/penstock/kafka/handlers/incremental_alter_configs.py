"""IncrementalAlterConfigs 0 to 1: set, delete, append to and subtract from configs (KIP-339)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.kafka.admin.altering import alter
from penstock.kafka.admin.resources import ResourceType, increment
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )


async def handle(context: RequestContext, request: "IncrementalAlterConfigsRequest") -> Answer:
    """Alter configs; an outcome per resource."""
    types = response_types("incremental_alter_configs", context.api_version)

    def new_configs(
        resource: "AlterConfigsResource", current: Mapping[str, str], *, kind: ResourceType
    ) -> dict[str, str]:
        operations = [
            (config.name, config.config_operation, config.value) for config in resource.configs
        ]
        return increment(
            current,
            operations,
            kind=kind,
            cluster_configs=context.broker.view.cluster_configs,
        )

    responses = await alter(
        context,
        request.resources,
        new_configs,
        types.AlterConfigsResourceResponse,
        validate_only=request.validate_only,
    )
    return build(types.IncrementalAlterConfigsResponse, responses=responses)
