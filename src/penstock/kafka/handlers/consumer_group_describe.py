"""ConsumerGroupDescribe 0 to 1: state, members and assignments of consumer groups (KIP-848).

A classic group, and one that is not there, is GROUP_ID_NOT_FOUND: tools then ask DescribeGroups.
Version 1 says of each member which protocol it speaks.
"""

from typing import TYPE_CHECKING, Final

from penstock.groups.consumer import partitions
from penstock.groups.consumer.machine import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember
from penstock.kafka.answer_bounds import text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.group_descriptions import AssignedDescriber
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.model.topic_names import NAME_LENGTH_MAX

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

API_KEY: Final = 69
VERSIONS: Final = (0, 1)

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
GROUP_BYTES: Final = 120
MEMBER_BYTES: Final = 40
TOPIC_BYTES: Final = 30 + NAME_LENGTH_MAX
PARTITION_BYTES: Final = 4


async def handle(context: RequestContext, request: "ConsumerGroupDescribeRequest") -> Answer:
    """Describe each group by itself."""
    types = response_types("consumer_group_describe", context.api_version)
    describer = _Describer(context, types, shows_operations=request.include_authorized_operations)
    return await describer.answer(
        request.group_ids, lambda groups: build(types.ConsumerGroupDescribeResponse, groups=groups)
    )


class _Describer(AssignedDescriber[ConsumerGroup]):
    group_bytes = GROUP_BYTES
    kind = "consumer"

    def find(self, group_id: str) -> ConsumerGroup | None:
        return self.context.broker.groups.describe_consumers(group_id)

    async def members_bound(self, group: ConsumerGroup) -> int:
        found = 0
        # All in one turn of the loop, since the group may change in the next.
        for member in group.members.values():
            subscription = member.subscription
            texts = (member.member_id, member.client_id, member.client_host, *subscription.topics)
            found += MEMBER_BYTES + sum(map(text_bytes, texts))
            found += text_bytes(member.instance_id) + text_bytes(subscription.regex)
            found += text_bytes(subscription.rack)
            for numbers in (member.owned, member.target):
                found += TOPIC_BYTES * len(numbers) + PARTITION_BYTES * partitions.count(numbers)
        self.context.broker.turns.spend(len(group.members))
        return found

    def described(self, group: ConsumerGroup) -> tuple[Entity, int]:
        members = tuple(group.members[member_id] for member_id in sorted(group.members))
        named = (each for member in members for each in (member.owned, member.target))
        return self.whole(
            group.group_id,
            state=group.state.value,
            epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor=group.assignor,
            members=members,
            topic_ids=(topic_id for topic_ids in named for topic_id in topic_ids),
            make=self._member,
        )

    def _member(self, member: ConsumerMember) -> Entity:
        subscription = member.subscription
        return build(
            self.types.Member,
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=subscription.rack or None,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=subscription.topics,
            subscribed_topic_regex=subscription.regex or None,
            assignment=self.assignment(member.owned),
            target_assignment=self.assignment(member.target),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )
