"""DescribeShareGroupOffsets 0 to 1: where share groups begin to read partitions, and from version 1
on how much is left to do there (KIP-932, KIP-1226)."""

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.groups.sharing import OpenShare
from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.share.places import head_of, lag_of
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.describe_share_group_offsets.v1.request import (
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsRequestGroup,
    )

PARTITION_BYTES: Final = 40
NO_OFFSET: Final = -1


async def handle(context: RequestContext, request: "DescribeShareGroupOffsetsRequest") -> Answer:
    """Describe each group by itself."""
    types = response_types("describe_share_group_offsets", context.api_version)
    await fresh.confirm(context)
    await context.wait_for_room(await _bound(context, request))
    turns = context.broker.turns
    groups = []
    async for wanted in turns.each(request.groups):
        described, partition_count = _described(context, wanted)
        groups.append(described)
        if turns.spend(partition_count, rows=1):
            await turns.wait()
    return build(types.DescribeShareGroupOffsetsResponse, groups=tuple(groups))


def _described(
    context: RequestContext, wanted: "DescribeShareGroupOffsetsRequestGroup"
) -> tuple[Entity, int]:
    """Describe a group, and count its partitions in the answer."""
    types = response_types("describe_share_group_offsets", context.api_version)
    group: OpenShare | GroupError | ErrorCode
    group = context.access.group(Operation.DESCRIBE, wanted.group_id)
    if not group:
        group = context.broker.groups.shares.open(wanted.group_id)
    if isinstance(group, (GroupError, ErrorCode)):
        message = None
        if group is GroupError.GROUP_ID_NOT_FOUND:
            message = f"Group {wanted.group_id} is not a share group."
        missing = build(
            types.DescribeShareGroupOffsetsResponseGroup,
            group_id=wanted.group_id,
            topics=(),
            error_code=group,
            error_message=message,
        )
        return missing, 0
    named = _wanted(context, group, wanted)
    topics = [_topic(context, group, name, numbers) for name, numbers in named.items()]
    described = build(
        types.DescribeShareGroupOffsetsResponseGroup,
        group_id=wanted.group_id,
        topics=tuple(topics),
        error_code=ErrorCode.NONE,
    )
    return described, sum(map(len, named.values()))


def _wanted(
    context: RequestContext, group: OpenShare, wanted: "DescribeShareGroupOffsetsRequestGroup"
) -> Mapping[str, Sequence[int]]:
    """The partitions that are asked for; without names all that the group has."""
    if wanted.topics is not None:
        return {topic.topic_name: topic.partitions for topic in wanted.topics}
    found: dict[str, list[int]] = {}
    for topic_id, number in sorted(group.machine.deliveries.partitions):
        topic = context.broker.view.topic_by_id(topic_id)
        if topic is not None and not context.access.topic(Operation.DESCRIBE, topic.name):
            found.setdefault(topic.name, []).append(number)
    return found


def _topic(context: RequestContext, group: OpenShare, name: str, numbers: Sequence[int]) -> Entity:
    types = response_types("describe_share_group_offsets", context.api_version)
    view = context.broker.view
    hidden = context.access.topic(Operation.DESCRIBE, name)
    topic = None if hidden else view.topic(name)
    topic_id = bytes(16) if topic is None else bytes(topic.topic_id)
    partitions = []
    for number in numbers:
        place = (topic_id, number)
        head = head_of(view, place)
        partitions.append(
            build(
                types.DescribeShareGroupOffsetsResponsePartition,
                partition_index=number,
                start_offset=group.machine.deliveries.start(place) if head else NO_OFFSET,
                leader_epoch=view.leader_epoch,
                lag=lag_of(group, place, head) if head else NO_OFFSET,
                error_code=(
                    ErrorCode.NONE if head else hidden or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                ),
            )
        )
    return build(
        types.DescribeShareGroupOffsetsResponseTopic,
        topic_name=name,
        topic_id=uuid.UUID(bytes=topic_id),
        partitions=tuple(partitions),
    )


async def _bound(context: RequestContext, request: "DescribeShareGroupOffsetsRequest") -> int:
    """The most bytes of the answer."""
    found = BASE_BYTES
    turns = context.broker.turns
    async for wanted in turns.each(request.groups):
        if turns.spend(rows=1):
            await turns.wait()
        found += 2 * text_bytes(wanted.group_id) + BASE_BYTES
        group = context.broker.groups.shares.open(wanted.group_id)
        if not isinstance(group, GroupError):
            for name, numbers in _wanted(context, group, wanted).items():
                found += text_bytes(name) + PARTITION_BYTES * (1 + len(numbers))
    return found
