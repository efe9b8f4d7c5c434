"""ConsumerGroupDescribe 0 to 1: state, members and assignments of consumer groups (KIP-848).

A classic group, and one that is not there, is GROUP_ID_NOT_FOUND: tools then ask DescribeGroups.
Version 1 says of each member which protocol it speaks.
"""

import uuid
from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.groups.consumer import partitions
from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember
from penstock.groups.consumer.partitions import Partitions
from penstock.groups.errors import GroupError
from penstock.groups.ownership import told
from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import MadeItems
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError
from penstock.model.topic_names import NAME_LENGTH_MAX

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

API_KEY: Final = 69
VERSIONS: Final = (0, 1)

OPERATIONS_UNKNOWN: Final = -(1 << 31)
CONSUMER_MEMBER: Final = 1
GROUP_BYTES: Final = 120
MEMBER_BYTES: Final = 40
TOPIC_BYTES: Final = 30 + NAME_LENGTH_MAX
PARTITION_BYTES: Final = 4


async def handle(context: RequestContext, request: "ConsumerGroupDescribeRequest") -> Answer:
    """Describe each group by itself."""
    types = response_types("consumer_group_describe", context.api_version)
    turns = context.broker.turns
    # Named twice, a group is described once: its members cost far more than its name.
    group_ids = dict.fromkeys(request.group_ids)
    is_known = await fresh.confirm(context)
    waiting = context.reserve_answer(await _bound(context, group_ids))
    if waiting is not None:
        return waiting
    described = []
    async for group_id in turns.each(group_ids):
        if not is_known:
            away = GroupError.COORDINATOR_NOT_AVAILABLE
            described.append(_absent(types, group_id, away, None))
            continue
        group, member_count = _described(context, types, group_id)
        described.append(group)
        if turns.spend(member_count, rows=1):
            await turns.wait()
    return build(types.ConsumerGroupDescribeResponse, groups=tuple(described))


def _described(context: RequestContext, types: ModuleType, group_id: str) -> tuple[Entity, int]:
    """Describe a group, and count its members."""
    try:
        group = context.broker.groups.describe_consumers(group_id)
    except PenstockError as failure:
        return _absent(types, group_id, told(failure), None), 0
    if group is None:
        message = f"Group {group_id} is not a consumer group."
        return _absent(types, group_id, GroupError.GROUP_ID_NOT_FOUND, message), 0
    members = tuple(group.members[member_id] for member_id in sorted(group.members))
    described = build(
        types.DescribedGroup,
        error_code=GroupError.NONE,
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=MadeItems(members, partial(_member, context, types)),
        authorized_operations=OPERATIONS_UNKNOWN,
    )
    return described, len(members)


def _member(context: RequestContext, types: ModuleType, member: ConsumerMember) -> Entity:
    subscription = member.subscription
    return build(
        types.Member,
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack or None,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex=subscription.regex or None,
        assignment=_assignment(context, types, member.assigned),
        target_assignment=_assignment(context, types, member.target),
        member_type=CONSUMER_MEMBER,
    )


def _assignment(context: RequestContext, types: ModuleType, assigned: Partitions) -> Entity:
    topics = []
    for topic_id, numbers in sorted(assigned.items()):
        topic = context.broker.view.topic_by_id(topic_id)
        # A topic that was deleted leaves the assignment with the members' next heartbeats.
        if topic is not None:
            topics.append(
                types.TopicPartitions(
                    topic_id=uuid.UUID(bytes=topic_id),
                    topic_name=topic.name,
                    partitions=tuple(sorted(numbers)),
                )
            )
    made: Entity = types.Assignment(topic_partitions=tuple(topics))
    return made


async def _bound(context: RequestContext, group_ids: Iterable[str]) -> int:
    """The most bytes of the answer."""
    turns = context.broker.turns
    found = BASE_BYTES
    async for group_id in turns.each(group_ids):
        found += GROUP_BYTES + 2 * text_bytes(group_id)
        try:
            group = context.broker.groups.describe_consumers(group_id)
        except PenstockError:
            continue
        if group is None:
            continue
        found += _members_bound(group)
        if turns.spend(len(group.members), rows=1):
            await turns.wait()
    return found


def _members_bound(group: ConsumerGroup) -> int:
    found = 0
    for member in group.members.values():
        subscription = member.subscription
        texts = (member.member_id, member.client_id, member.client_host, *subscription.topics)
        found += MEMBER_BYTES + sum(map(text_bytes, texts))
        found += text_bytes(member.instance_id) + text_bytes(subscription.regex)
        found += text_bytes(subscription.rack)
        for numbers in (member.assigned, member.target):
            found += TOPIC_BYTES * len(numbers) + PARTITION_BYTES * partitions.count(numbers)
    return found


def _absent(types: ModuleType, group_id: str, error: GroupError, message: str | None) -> Entity:
    return build(
        types.DescribedGroup,
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
        authorized_operations=OPERATIONS_UNKNOWN,
    )
