"""DeleteShareGroupOffsets 0: forget what a share group has of topics; read again they begin where
the group's reset policy says. The group must have no members (KIP-932)."""

import uuid
from typing import TYPE_CHECKING

from penstock.groups.errors import GroupError
from penstock.groups.share.messages import Place
from penstock.kafka.admin.lines import note_changes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.share.without_members import Refusal, open_without_members
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest


async def handle(context: RequestContext, request: "DeleteShareGroupOffsetsRequest") -> Answer:
    """Forget all partitions of the topics, in one save."""
    types = response_types("delete_share_group_offsets", context.api_version)
    group = await open_without_members(context, Operation.DELETE, request.group_id)
    if isinstance(group, Refusal):
        return _refusal(context, group.error, group.message)
    gone: list[Place] = []
    topics = []
    for topic in request.topics:
        hidden = context.access.topic(Operation.READ, topic.topic_name)
        known = None if hidden else context.broker.view.topic(topic.topic_name)
        topic_id = bytes(16) if known is None else bytes(known.topic_id)
        gone += [place for place in group.machine.deliveries.partitions if place[0] == topic_id]
        error = hidden or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else ErrorCode.NONE
        topics.append(
            build(
                types.DeleteShareGroupOffsetsResponseTopic,
                topic_name=topic.topic_name,
                topic_id=uuid.UUID(bytes=topic_id),
                error_code=error,
            )
        )
    journaled = await group.forget(gone)
    if journaled is not GroupError.NONE:
        return _refusal(context, journaled)
    line = f"deleted {len(gone)} offsets of share group {request.group_id!r}"
    note_changes(context, [line], count=1)
    return build(
        types.DeleteShareGroupOffsetsResponse, error_code=ErrorCode.NONE, responses=tuple(topics)
    )


def _refusal(
    context: RequestContext, error: GroupError | ErrorCode, message: str | None = None
) -> Entity:
    types = response_types("delete_share_group_offsets", context.api_version)
    return build(
        types.DeleteShareGroupOffsetsResponse,
        error_code=error,
        error_message=message,
        responses=(),
    )
