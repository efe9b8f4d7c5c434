"""Heartbeat 0 to 4: a member lives, and hears whether it has to join again."""

from typing import TYPE_CHECKING

from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest


async def handle(context: RequestContext, request: "HeartbeatRequest") -> Answer:
    """Begin the member's session again."""
    types = response_types("heartbeat", context.api_version)
    refused = context.access.group(Operation.READ, request.group_id)
    if refused:
        return build(types.HeartbeatResponse, error_code=refused)
    error = context.broker.groups.heartbeat(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
    )
    if error:
        error = await fresh.group_error(context, request.group_id, error)
    return build(types.HeartbeatResponse, error_code=error)
