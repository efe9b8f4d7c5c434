"""ConsumerGroupHeartbeat 0 to 1: a member of a consumer group joins, lives and leaves, and gets its
partitions (KIP-848).

The client makes its member id from version 1 on; version 0 knows no regular expressions, and may
leave the id to the coordinator.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.groups.consumer import partitions
from penstock.groups.consumer.member import JOINING_EPOCH
from penstock.groups.consumer.messages import Heartbeat
from penstock.groups.consumer.partitions import Partitions
from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.group_assignments import answer_bound, assignment
from penstock.kafka.group_permissions import member_refusal
from penstock.kafka.long_answer import Answer
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import InvalidRequestError

if TYPE_CHECKING:
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest

API_KEY: Final = 68
VERSIONS: Final = (0, 1)

CLIENT_MAKES_ID_FROM: Final = 1
MILLISECOND: Final = timedelta(milliseconds=1)
UNCHANGED_MS: Final = -1


OWNED_SPARE: Final = 10_000
"""Topics, and partitions, that a member may own beyond those that there are: of topics that were
deleted just now. Each costs time and memory before its group sees it."""


async def handle(context: RequestContext, request: "ConsumerGroupHeartbeatRequest") -> Answer:
    """Answer with the member's epoch, and with its partitions where they are others."""
    groups = context.broker.groups
    types = response_types("consumer_group_heartbeat", context.api_version)
    refused = await member_refusal(context, request.group_id, request.subscribed_topic_names)
    if refused:
        return build(
            types.ConsumerGroupHeartbeatResponse,
            error_code=refused,
            member_epoch=0,
            heartbeat_interval=timedelta(0),
            assignment=None,
        )
    member_id = request.member_id
    joins_without = not member_id and request.member_epoch == JOINING_EPOCH
    if joins_without and context.api_version < CLIENT_MAKES_ID_FROM:
        member_id = groups.new_member_id(context.client_id or "")
    beat = Heartbeat(
        member_id=member_id,
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack=request.rack_id,
        rebalance_timeout_ms=max(UNCHANGED_MS, request.rebalance_timeout // MILLISECOND),
        topics=request.subscribed_topic_names,
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(context, request),
        client_id=context.client_id or "",
        # As Java prints an address, which is what tools expect.
        client_host=f"/{context.client_host}",
    )
    reply = await groups.consumer_heartbeat(request.group_id, beat)
    error = reply.error
    if error:
        error = await fresh.group_error(context, request.group_id, error)
    await context.wait_for_room(answer_bound(reply.message, reply.member_id, reply.assigned))
    return build(
        types.ConsumerGroupHeartbeatResponse,
        error_code=error,
        error_message=reply.message if error is reply.error else None,
        member_id=reply.member_id,
        member_epoch=reply.epoch,
        heartbeat_interval=(
            timedelta(0) if error else groups.heartbeat_interval_ms(request.group_id) * MILLISECOND
        ),
        assignment=assignment(types, reply.assigned),
    )


def _owned(context: RequestContext, request: "ConsumerGroupHeartbeatRequest") -> Partitions | None:
    """Return what the member has; None: it does not say.

    Raises:
        InvalidRequestError: more than there is.
    """
    if request.topic_partitions is None:
        return None
    view = context.broker.view
    topics = len(request.topic_partitions)
    count = sum(len(topic.partitions) for topic in request.topic_partitions)
    if topics > len(view.topics()) + OWNED_SPARE or count > view.partition_count + OWNED_SPARE:
        raise InvalidRequestError(
            "heartbeat",
            f"group {request.group_id}",
            f"the member has {count} partitions of {topics} topics, there are"
            f" {view.partition_count} of {len(view.topics())}",
        )
    return partitions.of(
        (b"" if topic.topic_id is None else topic.topic_id.bytes, topic.partitions)
        for topic in request.topic_partitions
    )
