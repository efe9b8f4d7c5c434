"""SyncGroup 0 to 5: a member's share of the work; the leader brings everybody's.

The answer waits until the assignment is journaled, and a long one until the reserve of group calls
has room for it. From version 5 on the member says which
protocol it believes in (KIP-559).
"""

from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.groups.messages import SyncRequest
from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequest


NAMES_FROM: Final = 5
"""The version from which on a request has to name its protocol (KIP-559)."""
_REFUSED: Final = {"protocol_type": None, "protocol_name": None, "assignment": b""}


async def handle(context: RequestContext, request: "SyncGroupRequest") -> Answer:
    """Wait for the assignment."""
    types = response_types("sync_group", context.api_version)
    if context.api_version >= NAMES_FROM and None in (request.protocol_type, request.protocol_name):
        # Before the permission, as Kafka does: the request can't be meant for any group.
        error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        return build(types.SyncGroupResponse, **_REFUSED, error_code=error)
    refused = context.access.group(Operation.READ, request.group_id)
    if refused:
        return build(types.SyncGroupResponse, **_REFUSED, error_code=refused)
    reply = await context.broker.groups.sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={
                one.member_id: bytes(one.assignment)
                async for one in context.broker.turns.each(request.assignments)
            },
        ),
    )
    # The permission may have been taken back while the member waited.
    refused = context.access.group(Operation.READ, request.group_id)
    if refused:
        return build(types.SyncGroupResponse, **_REFUSED, error_code=refused)
    error = reply.error
    if error:
        error = await fresh.group_error(context, request.group_id, error)
    named = text_bytes(reply.protocol_type) + text_bytes(reply.protocol_name)
    await context.wait_for_room(BASE_BYTES + named + len(reply.assignment))
    return build(
        types.SyncGroupResponse,
        error_code=error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )
