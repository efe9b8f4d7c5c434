"""DescribeGroups 0 to 6: state and members of classic groups. A consumer group is one that is not
there: ConsumerGroupDescribe has it.

A group that is not there is "Dead"; from version 6 on it is GROUP_ID_NOT_FOUND as well (KIP-1043).
"""

from typing import TYPE_CHECKING, Final

from penstock.groups.administration import GroupDescription, MemberDescription
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.kafka.access import UNKNOWN_OPERATIONS
from penstock.kafka.answer_bounds import text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.group_descriptions import GroupDescriber
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import MadeItems
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest


NOT_FOUND_FROM: Final = 6
GROUP_BYTES: Final = 80
"""Errors, state and lengths."""
MEMBER_BYTES: Final = 12
"""Lengths of metadata and assignment, and tags."""


async def handle(context: RequestContext, request: "DescribeGroupsRequest") -> Answer:
    """Describe each group by itself."""
    types = response_types("describe_groups", context.api_version)
    describer = _Describer(context, types, shows_operations=request.include_authorized_operations)
    return await describer.answer(
        request.groups, lambda groups: build(types.DescribeGroupsResponse, groups=groups)
    )


class _Describer(GroupDescriber[GroupDescription]):
    group_bytes = GROUP_BYTES
    kind = "classic"

    def find(self, group_id: str) -> GroupDescription | None:
        return self.context.broker.groups.describe(group_id)

    async def members_bound(self, group: GroupDescription) -> int:
        found = text_bytes(group.protocol_type) + text_bytes(group.protocol_name)
        async for member in self.context.broker.turns.each(group.members):
            found += MEMBER_BYTES + len(member.metadata) + len(member.assignment)
            found += text_bytes(member.member_id) + text_bytes(member.instance_id)
            found += text_bytes(member.client_id) + text_bytes(member.client_host)
        return found

    def described(self, group: GroupDescription) -> tuple[Entity, int]:
        described = build(
            self.types.DescribedGroup,
            error_code=GroupError.NONE,
            error_message=None,
            group_id=group.group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type,
            protocol_data=group.protocol_name,
            members=MadeItems(group.members, self._member),
            authorized_operations=self.operations(group.group_id),
        )
        return described, len(group.members)

    def missing(self, group_id: str) -> Entity:
        is_error = self.context.api_version >= NOT_FOUND_FROM
        return self.absent(
            group_id,
            GroupError.GROUP_ID_NOT_FOUND if is_error else GroupError.NONE,
            self.lack(group_id) if is_error else None,
            state=GroupState.DEAD.value,
        )

    def absent(
        self,
        group_id: str,
        error: GroupError | ErrorCode,
        message: str | None = None,
        *,
        state: str = "",
    ) -> Entity:
        return build(
            self.types.DescribedGroup,
            error_code=error,
            error_message=message,
            group_id=group_id,
            group_state=state,
            protocol_type="",
            protocol_data="",
            members=(),
            authorized_operations=UNKNOWN_OPERATIONS if error else self.operations(group_id),
        )

    def _member(self, member: MemberDescription) -> Entity:
        return build(
            self.types.DescribedGroupMember,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
