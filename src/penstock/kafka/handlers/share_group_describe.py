"""ShareGroupDescribe 1: state, members and assignments of share groups (KIP-932). A group of
another kind, and one that is not there, is GROUP_ID_NOT_FOUND."""

import uuid
from typing import TYPE_CHECKING, Final

from penstock.groups.consumer import partitions
from penstock.groups.errors import GroupError
from penstock.groups.share.machine import ShareGroup
from penstock.groups.share.member import ShareMember
from penstock.kafka.access import UNKNOWN_OPERATIONS
from penstock.kafka.answer_bounds import text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.group_descriptions import HIDDEN_TOPICS, GroupDescriber
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import MadeItems
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.model.topic_names import NAME_LENGTH_MAX

if TYPE_CHECKING:
    from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest

ASSIGNOR: Final = "simple"
GROUP_BYTES: Final = 120
MEMBER_BYTES: Final = 40
TOPIC_BYTES: Final = 30 + NAME_LENGTH_MAX
PARTITION_BYTES: Final = 4


async def handle(context: RequestContext, request: "ShareGroupDescribeRequest") -> Answer:
    """Describe each group by itself."""
    types = response_types("share_group_describe", context.api_version)
    describer = _Describer(context, types, shows_operations=request.include_authorized_operations)
    return await describer.answer(
        request.group_ids, lambda groups: build(types.ShareGroupDescribeResponse, groups=groups)
    )


class _Describer(GroupDescriber[ShareGroup]):
    group_bytes = GROUP_BYTES

    def find(self, group_id: str) -> ShareGroup | None:
        return self.context.broker.groups.shares.describe(group_id)

    async def members_bound(self, group: ShareGroup) -> int:
        found = 0
        members = group.roster.members
        # All in one turn of the loop, since the group may change in the next.
        for member in members.values():
            texts = (member.member_id, member.client_id, member.client_host, *member.topics)
            found += MEMBER_BYTES + sum(map(text_bytes, texts)) + text_bytes(member.rack)
            found += TOPIC_BYTES * len(member.assigned)
            found += PARTITION_BYTES * partitions.count(member.assigned)
        self.context.broker.turns.spend(len(members))
        return found

    def described(self, group: ShareGroup) -> tuple[Entity, int]:
        roster = group.roster
        members = tuple(roster.members[member_id] for member_id in sorted(roster.members))
        error: GroupError | ErrorCode = GroupError.NONE
        if not self.may_see(topic_id for member in members for topic_id in member.assigned):
            error, members = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ()
        described = build(
            self.types.DescribedGroup,
            error_code=error,
            error_message=HIDDEN_TOPICS if error else None,
            group_id=group.group_id,
            group_state=group.state.value,
            group_epoch=roster.epoch,
            assignment_epoch=roster.target_epoch,
            assignor_name=ASSIGNOR,
            members=MadeItems(members, self._member),
            authorized_operations=self.operations(group.group_id),
        )
        return described, len(members)

    def missing(self, group_id: str) -> Entity:
        message = f"Group {group_id} is not a share group."
        return self.absent(group_id, GroupError.GROUP_ID_NOT_FOUND, message)

    def absent(
        self, group_id: str, error: GroupError | ErrorCode, message: str | None = None
    ) -> Entity:
        return build(
            self.types.DescribedGroup,
            error_code=error,
            error_message=message,
            group_id=group_id,
            group_state="",
            group_epoch=0,
            assignment_epoch=0,
            assignor_name="",
            members=(),
            authorized_operations=UNKNOWN_OPERATIONS,
        )

    def _member(self, member: ShareMember) -> Entity:
        topics = []
        for topic_id, numbers in sorted(member.assigned.items()):
            topic = self.context.broker.view.topic_by_id(topic_id)
            # A topic that was deleted leaves the assignment with the members' next heartbeats.
            if topic is not None:
                topics.append(
                    self.types.TopicPartitions(
                        topic_id=uuid.UUID(bytes=topic_id),
                        topic_name=topic.name,
                        partitions=tuple(sorted(numbers)),
                    )
                )
        return build(
            self.types.Member,
            member_id=member.member_id,
            rack_id=member.rack or None,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topics,
            assignment=self.types.Assignment(topic_partitions=tuple(topics)),
        )
