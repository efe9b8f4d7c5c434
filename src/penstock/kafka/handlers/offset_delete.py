"""OffsetDelete 0: forget a group's offsets of topics that it does not read any more (KIP-496)."""

from typing import Any, Final

from penstock.groups.errors import GroupError
from penstock.groups.offsets import PartitionId
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.schema import build, response_types

API_KEY: Final = 47
VERSIONS: Final = (0, 0)


async def handle(context: RequestContext, request: Any) -> Any:
    """Delete offsets; an error for the group, or one for each partition."""
    types = response_types("offset_delete", context.api_version)
    view = context.broker.view
    items: list[tuple[str, PartitionId]] = []
    for topic in request.topics:
        known = view.topic(topic.name)
        if known is not None:
            items += [
                (topic.name, (known.topic_id, partition.partition_index))
                for partition in topic.partitions
                if 0 <= partition.partition_index < known.partitions
            ]
    error, outcomes = await context.broker.groups.delete_offsets(request.group_id, items)
    if error is not GroupError.NONE:
        return build(types.OffsetDeleteResponse, error_code=error, topics=())
    found = {(name, key[1]): outcome for (name, key), outcome in zip(items, outcomes, strict=True)}
    return build(
        types.OffsetDeleteResponse,
        error_code=GroupError.NONE,
        topics=tuple(
            build(
                types.OffsetDeleteResponseTopic,
                name=topic.name,
                partitions=tuple(
                    build(
                        types.OffsetDeleteResponsePartition,
                        partition_index=partition.partition_index,
                        error_code=found.get(
                            (topic.name, partition.partition_index),
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        ),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
