"""LeaveGroup 0 to 5: members leave, many in one request from version 3 on (KIP-345)."""

from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.groups.messages import Leaver, LeaveResult
from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.leave_group import v2, v5


BATCH_FROM: Final = 3
LEAVERS_AT_ONCE: Final = 500
"""Members that leave between two turns of the event loop."""


async def handle(
    context: RequestContext, request: "v2.LeaveGroupRequest | v5.LeaveGroupRequest"
) -> Answer:
    """Let members go; each has its own outcome."""
    types = response_types("leave_group", context.api_version)
    refused = context.access.group(Operation.READ, request.group_id)
    if refused:
        return build(types.LeaveGroupResponse, error_code=refused, members=())
    turns = context.broker.turns
    if hasattr(request, "members"):
        every = turns.each(request.members)
        leavers = [Leaver(one.member_id, one.group_instance_id) async for one in every]
    else:
        leavers = [Leaver(request.member_id, None)]
    error, results = GroupError.NONE, list[LeaveResult]()
    for start in range(0, len(leavers), LEAVERS_AT_ONCE):
        some = leavers[start : start + LEAVERS_AT_ONCE]
        error, left = context.broker.groups.leave(request.group_id, some)
        if error:
            results = []
            break
        results += left
        if turns.spend(len(some)):
            await turns.wait()
    doubt = error or next((result.error for result in results if result.error), GroupError.NONE)
    if doubt:
        settled = await fresh.group_error(context, request.group_id, doubt)
        if settled is not doubt:
            error, results = settled, []
    if context.api_version < BATCH_FROM:
        if error is GroupError.NONE:
            error = results[0].error
        return build(types.LeaveGroupResponse, error_code=error)
    members = ArrayWriter(types.MemberResponse)
    async for result in turns.each(results):
        members.add(
            member_id=result.member_id,
            group_instance_id=result.instance_id,
            error_code=result.error,
        )
    return build(types.LeaveGroupResponse, error_code=error, members=members.encoded())
