"""OffsetDelete 0: forget a group's offsets of topics that it does not read any more (KIP-496)."""

from functools import partial
from typing import Any, Final

from penstock.groups.errors import GroupError
from penstock.groups.offsets import PartitionId
from penstock.kafka import fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.schema import build, response_types

API_KEY: Final = 47
VERSIONS: Final = (0, 0)


async def handle(context: RequestContext, request: Any) -> Any:
    """Delete offsets; an error for the group, or one for each partition."""
    types = response_types("offset_delete", context.api_version)
    items: list[tuple[str, PartitionId]] = []
    missing: dict[tuple[str, int], int] = {}
    for name, number, place in await fresh.settled(context, partial(_places, context, request)):
        if isinstance(place, ErrorCode):
            missing[name, number] = place
        else:
            items.append((name, place))
    error, outcomes = await context.broker.groups.delete_offsets(request.group_id, items)
    if error is not GroupError.NONE:
        error = await fresh.group_error(context, request.group_id, error)
        return build(types.OffsetDeleteResponse, error_code=error, topics=())
    found: dict[tuple[str, int], int] = {
        (name, key[1]): outcome for (name, key), outcome in zip(items, outcomes, strict=True)
    }
    found |= missing
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
                        error_code=found[topic.name, partition.partition_index],
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _places(
    context: RequestContext, request: Any, certainty: fresh.Certainty
) -> list[tuple[str, int, PartitionId | ErrorCode]]:
    """Topic name and number of each partition, with what it is to the journal."""
    places: list[tuple[str, int, PartitionId | ErrorCode]] = []
    for topic in request.topics:
        known = context.broker.view.topic(topic.name)
        for partition in topic.partitions:
            number = partition.partition_index
            if known is not None and 0 <= number < known.partitions:
                places.append((topic.name, number, (known.topic_id, number)))
            else:
                unknown = certainty.no(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE
                )
                places.append((topic.name, number, unknown))
    return places
