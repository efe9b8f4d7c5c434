"""ShareGroupDescribe 1: state, members and assignments of share groups (KIP-932). A group of
another kind, and one that is not there, is GROUP_ID_NOT_FOUND."""

from typing import TYPE_CHECKING, Final

from penstock.groups.consumer import partitions
from penstock.groups.share.machine import ShareGroup
from penstock.groups.share.member import ShareMember
from penstock.kafka.answer_bounds import text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.group_descriptions import AssignedDescriber
from penstock.kafka.long_answer import Answer
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


class _Describer(AssignedDescriber[ShareGroup]):
    group_bytes = GROUP_BYTES
    kind = "share"

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
        return self.whole(
            group.group_id,
            state=group.state.value,
            epoch=roster.epoch,
            assignment_epoch=roster.target_epoch,
            assignor=ASSIGNOR,
            members=members,
            topic_ids=(topic_id for member in members for topic_id in member.assigned),
            make=self._member,
        )

    def _member(self, member: ShareMember) -> Entity:
        return build(
            self.types.Member,
            member_id=member.member_id,
            rack_id=member.rack or None,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topics,
            assignment=self.assignment(member.assigned),
        )
