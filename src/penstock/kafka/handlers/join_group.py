"""JoinGroup 0 to 9: become a member of a group's next generation.

The answer waits until the generation begins, and a long one, a leader's, until the reserve of group
calls has room for it: before that its length is not known. Version 0 has one timeout for both
purposes; from version 4 on a new member gets its id first and joins with it (KIP-394); 5 knows
static members (KIP-345); 9 may skip the assignment (KIP-814).
"""

from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.groups.messages import JoinedMember, JoinReply, JoinRequest, Protocol
from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.arrays import MadeItems
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import InvalidRequestError
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.join_group.v9.request import JoinGroupRequest


ID_REQUIRED_FROM: Final = 4
NULLABLE_PROTOCOL_FROM: Final = 7
SKIPS_ASSIGNMENT_FROM: Final = 9
PROTOCOLS_MAX: Final = 100
"""The greatest number of protocols that a member may offer. Each is kept, and compared with those
of all other members at each rebalance; clients offer one or two."""
MEMBER_BYTES: Final = 8
"""Length of metadata, and tags."""
MILLISECOND: Final = timedelta(milliseconds=1)


async def handle(context: RequestContext, request: "JoinGroupRequest") -> Answer:
    """Join, and wait for the others."""
    version, groups = context.api_version, context.broker.groups
    refused = context.access.group(Operation.READ, request.group_id)
    if refused:
        return _refusal(version, request.member_id, refused)
    if len(request.protocols) > PROTOCOLS_MAX:
        raise InvalidRequestError(
            "join",
            f"group {request.group_id}",
            f"{len(request.protocols)} protocols are offered, {PROTOCOLS_MAX} are allowed",
        )
    instance_id = request.group_instance_id
    client_id = context.client_id or ""
    session_timeout_ms = request.session_timeout // MILLISECOND
    # Version 0 has no time of its own for rebalancing.
    rebalance_timeout_ms = (
        request.rebalance_timeout // MILLISECOND if version >= 1 else session_timeout_ms
    )
    join = JoinRequest(
        member_id=request.member_id,
        new_member_id="" if request.member_id else groups.new_member_id(instance_id or client_id),
        instance_id=instance_id,
        client_id=client_id,
        # As Java prints an address, which is what tools expect.
        client_host=f"/{context.client_host}",
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(one.name, bytes(one.metadata)) for one in request.protocols),
        id_required=version >= ID_REQUIRED_FROM,
        may_skip_assignment=version >= SKIPS_ASSIGNMENT_FROM,
    )
    reply = await groups.join(request.group_id, join)
    # The permission may have been taken back while the member waited.
    refused = context.access.group(Operation.READ, request.group_id)
    if refused:
        return _refusal(version, request.member_id, refused)
    error = reply.error
    if error:
        error = await fresh.group_error(context, request.group_id, error)
    await context.wait_for_room(await _bound(context, reply))
    types = response_types("join_group", version)
    no_name = None if version >= NULLABLE_PROTOCOL_FROM else ""
    return build(
        types.JoinGroupResponse,
        error_code=error,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=no_name if reply.protocol_name is None else reply.protocol_name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=MadeItems(reply.members, partial(_member, types)),
    )


def _refusal(version: int, member_id: str, error: ErrorCode) -> Answer:
    return build(
        response_types("join_group", version).JoinGroupResponse,
        error_code=error,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None if version >= NULLABLE_PROTOCOL_FROM else "",
        leader="",
        skip_assignment=False,
        member_id=member_id,
        members=(),
    )


def _member(types: ModuleType, member: JoinedMember) -> Entity:
    return build(
        types.JoinGroupResponseMember,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        metadata=member.metadata,
    )


async def _bound(context: RequestContext, reply: JoinReply) -> int:
    """The most bytes of the answer: a leader's has the metadata of all members."""
    found = BASE_BYTES + text_bytes(reply.protocol_type) + text_bytes(reply.protocol_name)
    found += text_bytes(reply.leader) + text_bytes(reply.member_id)
    async for member in context.broker.turns.each(reply.members):
        found += MEMBER_BYTES + text_bytes(member.member_id) + text_bytes(member.instance_id)
        found += len(member.metadata)
    return found
