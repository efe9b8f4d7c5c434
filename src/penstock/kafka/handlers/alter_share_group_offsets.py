"""AlterShareGroupOffsets 0: begin partitions of a share group elsewhere. The group must have no
members (KIP-932)."""

import uuid
from typing import TYPE_CHECKING

from penstock.groups.errors import GroupError
from penstock.groups.share.messages import Place
from penstock.kafka.admin.lines import note_changes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.share.places import head_of
from penstock.kafka.share.without_members import Refusal, open_without_members
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.alter_share_group_offsets.v0.request import AlterShareGroupOffsetsRequest


async def handle(context: RequestContext, request: "AlterShareGroupOffsetsRequest") -> Answer:
    """Alter all that is there, in one save."""
    types = response_types("alter_share_group_offsets", context.api_version)
    group = await open_without_members(context, Operation.READ, request.group_id)
    if isinstance(group, Refusal):
        return _refusal(context, group.error, group.message)
    view = context.broker.view
    starts: dict[Place, int] = {}
    topics = []
    for topic in request.topics:
        hidden = context.access.topic(Operation.READ, topic.topic_name)
        known = None if hidden else view.topic(topic.topic_name)
        topic_id = bytes(16) if known is None else bytes(known.topic_id)
        partitions = []
        for partition in topic.partitions:
            place = (topic_id, partition.partition_index)
            error = hidden or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if head_of(view, place) is not None:
                error = ErrorCode.NONE
                starts[place] = max(0, partition.start_offset)
            partitions.append(
                build(
                    types.AlterShareGroupOffsetsResponsePartition,
                    partition_index=partition.partition_index,
                    error_code=error,
                )
            )
        topics.append(
            build(
                types.AlterShareGroupOffsetsResponseTopic,
                topic_name=topic.topic_name,
                topic_id=uuid.UUID(bytes=topic_id),
                partitions=tuple(partitions),
            )
        )
    journaled = await group.alter(starts)
    if journaled is not GroupError.NONE:
        return _refusal(context, journaled)
    line = f"altered {len(starts)} offsets of share group {request.group_id!r}"
    note_changes(context, [line], count=1)
    return build(
        types.AlterShareGroupOffsetsResponse, error_code=ErrorCode.NONE, responses=tuple(topics)
    )


def _refusal(
    context: RequestContext, error: GroupError | ErrorCode, message: str | None = None
) -> Entity:
    types = response_types("alter_share_group_offsets", context.api_version)
    return build(
        types.AlterShareGroupOffsetsResponse,
        error_code=error,
        error_message=message,
        responses=(),
    )
