"""ShareGroupHeartbeat 1: a member of a share group joins, lives and leaves, and gets its partitions
(KIP-932)."""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.groups.share.messages import ShareHeartbeat
from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.group_assignments import answer_bound, assignment
from penstock.kafka.group_permissions import member_refusal
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types

if TYPE_CHECKING:
    from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest

MILLISECOND: Final = timedelta(milliseconds=1)


async def handle(context: RequestContext, request: "ShareGroupHeartbeatRequest") -> Answer:
    """Answer with the member's epoch, and with its partitions where they are others."""
    types = response_types("share_group_heartbeat", context.api_version)
    refused = await member_refusal(context, request.group_id, request.subscribed_topic_names)
    if refused:
        return build(
            types.ShareGroupHeartbeatResponse,
            error_code=refused,
            member_epoch=0,
            heartbeat_interval=timedelta(0),
            assignment=None,
        )
    shares = context.broker.groups.shares
    beat = ShareHeartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        rack=request.rack_id,
        topics=request.subscribed_topic_names,
        client_id=context.client_id or "",
        # As Java prints an address, which is what tools expect.
        client_host=f"/{context.client_host}",
    )
    reply = await shares.heartbeat(request.group_id, beat)
    error = reply.error
    if error:
        error = await fresh.group_error(context, request.group_id, error)
    await context.wait_for_room(answer_bound(reply.message, reply.member_id, reply.assigned))
    interval_ms = 0 if error else shares.configs(request.group_id).heartbeat_interval_ms
    return build(
        types.ShareGroupHeartbeatResponse,
        error_code=error,
        error_message=reply.message if error is reply.error else None,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval=interval_ms * MILLISECOND,
        assignment=assignment(types, reply.assigned),
    )
