"""DescribeGroups 0 to 6: state and members of classic groups. A consumer group is one that is not
there: ConsumerGroupDescribe has it.

A group that is not there is "Dead"; from version 6 on it is GROUP_ID_NOT_FOUND as well (KIP-1043).
"""

from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.groups.administration import MemberDescription
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.ownership import told
from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import MadeItems
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest


NOT_FOUND_FROM: Final = 6
OPERATIONS_UNKNOWN: Final = -(1 << 31)
GROUP_BYTES: Final = 80
"""Errors, state and lengths; a message says the group's name once more."""
MEMBER_BYTES: Final = 12
"""Lengths of metadata and assignment, and tags."""


async def handle(context: RequestContext, request: "DescribeGroupsRequest") -> Answer:
    """Describe each group by itself."""
    types = response_types("describe_groups", context.api_version)
    turns = context.broker.turns
    # Named twice, a group is described once: its members cost far more than its name.
    group_ids = dict.fromkeys(request.groups)
    is_known = await fresh.confirm(context)
    waiting = context.reserve_answer(await _bound(context, group_ids))
    if waiting is not None:
        return waiting
    described = []
    async for group_id in turns.each(group_ids):
        if not is_known:
            away = GroupError.COORDINATOR_NOT_AVAILABLE
            described.append(_absent(types, group_id, away, None, state=""))
            continue
        group, member_count = _described(context, types, group_id)
        described.append(group)
        if turns.spend(member_count, rows=1):
            await turns.wait()
    return build(types.DescribeGroupsResponse, groups=tuple(described))


def _member(types: ModuleType, member: MemberDescription) -> Entity:
    return build(
        types.DescribedGroupMember,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata,
        member_assignment=member.assignment,
    )


async def _bound(context: RequestContext, group_ids: Iterable[str]) -> int:
    """The most bytes of the answer."""
    turns = context.broker.turns
    found = BASE_BYTES
    async for group_id in turns.each(group_ids):
        found += GROUP_BYTES + 2 * text_bytes(group_id)
        try:
            group = context.broker.groups.describe(group_id)
        except PenstockError:
            continue
        if group is None:
            continue
        found += text_bytes(group.protocol_type) + text_bytes(group.protocol_name)
        async for member in turns.each(group.members):
            found += MEMBER_BYTES + len(member.metadata) + len(member.assignment)
            found += text_bytes(member.member_id) + text_bytes(member.instance_id)
            found += text_bytes(member.client_id) + text_bytes(member.client_host)
        if turns.spend(rows=1):
            await turns.wait()
    return found


def _described(context: RequestContext, types: ModuleType, group_id: str) -> tuple[Entity, int]:
    """Describe a group, and count its members."""
    try:
        group = context.broker.groups.describe(group_id)
    except PenstockError as failure:
        return _absent(types, group_id, told(failure), None, state=""), 0
    if group is None:
        missing = context.api_version >= NOT_FOUND_FROM
        error = GroupError.GROUP_ID_NOT_FOUND if missing else GroupError.NONE
        message = f"Group {group_id} not found." if missing else None
        return _absent(types, group_id, error, message, state=GroupState.DEAD.value), 0
    described = build(
        types.DescribedGroup,
        error_code=GroupError.NONE,
        error_message=None,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=MadeItems(group.members, partial(_member, types)),
        authorized_operations=OPERATIONS_UNKNOWN,
    )
    return described, len(group.members)


def _absent(
    types: ModuleType, group_id: str, error: GroupError, message: str | None, *, state: str
) -> Entity:
    return build(
        types.DescribedGroup,
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
        authorized_operations=OPERATIONS_UNKNOWN,
    )
