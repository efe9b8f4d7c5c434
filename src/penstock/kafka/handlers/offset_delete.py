"""OffsetDelete 0: forget a group's offsets of topics that it does not read any more (KIP-496)."""

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from penstock.groups.errors import GroupError
from penstock.groups.offsets import PartitionId
from penstock.kafka import confirmed as fresh
from penstock.kafka.admin.lines import SHOWN_MAX, note_changes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest


async def handle(context: RequestContext, request: "OffsetDeleteRequest") -> Answer:
    """Delete offsets; an error for the group, or one for each partition."""
    types = response_types("offset_delete", context.api_version)
    turns = context.broker.turns
    refused = context.access.group(Operation.DELETE, request.group_id)
    if refused:
        return build(types.OffsetDeleteResponse, error_code=refused, topics=())
    items: list[tuple[str, PartitionId]] = []
    missing: dict[tuple[str, int], int] = {}
    for name, number, place in await fresh.settled(context, partial(_places, context, request)):
        if isinstance(place, ErrorCode):
            missing[name, number] = place
        else:
            items.append((name, place))
    error, outcomes = GroupError.NONE, list[GroupError]()
    if items or not missing:
        # As in Kafka, nothing is said of the group where there is nothing to delete.
        error, outcomes = await context.broker.groups.delete_offsets(request.group_id, items)
    if error is not GroupError.NONE:
        error = await fresh.group_error(context, request.group_id, error)
        return build(types.OffsetDeleteResponse, error_code=error, topics=())
    found: dict[tuple[str, int], int] = {
        (name, key[1]): outcome for (name, key), outcome in zip(items, outcomes, strict=True)
    }
    found |= missing
    gone = (f"{name}-{number}" for (name, number), outcome in found.items() if not outcome)
    some = list(islice(gone, SHOWN_MAX))
    if some:
        count = len(found) - sum(map(bool, found.values()))
        shown = f"deleted {count} offsets of group {request.group_id!r}: {', '.join(some)}"
        note_changes(context, [shown])
    topics = ArrayWriter(types.OffsetDeleteResponseTopic)
    async for topic in turns.each(request.topics):
        partitions = ArrayWriter(types.OffsetDeleteResponsePartition)
        async for partition in turns.each(topic.partitions):
            number = partition.partition_index
            partitions.add(partition_index=number, error_code=found[topic.name, number])
        topics.add(name=topic.name, partitions=partitions.encoded())
    return build(types.OffsetDeleteResponse, error_code=GroupError.NONE, topics=topics.encoded())


async def _places(
    context: RequestContext, request: "OffsetDeleteRequest", certainty: fresh.Certainty
) -> list[tuple[str, int, PartitionId | ErrorCode]]:
    """Topic name and number of each partition, with what it is to the journal."""
    places: list[tuple[str, int, PartitionId | ErrorCode]] = []
    turns = context.broker.turns
    async for topic in turns.each(request.topics):
        known = context.broker.view.topic(topic.name)
        refused = context.access.topic(Operation.READ, topic.name)
        async for partition in turns.each(topic.partitions):
            number = partition.partition_index
            if refused:
                places.append((topic.name, number, refused))
            elif known is not None and 0 <= number < known.partitions:
                places.append((topic.name, number, (known.topic_id, number)))
            else:
                unknown = certainty.no(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE
                )
                places.append((topic.name, number, unknown))
    return places
