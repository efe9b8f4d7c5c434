"""ShareAcknowledge 1 to 2: a member says what became of records that it has (KIP-932); from version
2 on it may ask for more time (KIP-1222).

What is answered without an error is journaled. Where the group is another agent's, the answer names
it (`kafka.share.elsewhere`).
"""

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.groups.share.messages import Place
from penstock.groups.share.partition import AckFault
from penstock.groups.share.sessions import FINAL_EPOCH, Key
from penstock.kafka.access import refusal_text
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.share.acknowledging import acknowledge
from penstock.kafka.share.elsewhere import (
    ELSEWHERE,
    NO_LEADER,
    Leader,
    endpoints_of,
    leader_of,
)
from penstock.kafka.share.permissions import unreadable
from penstock.kafka.share.relay import carry_acknowledgements, may_carry, relayed_by
from penstock.kafka.share.relays import relays_of
from penstock.kafka.share.requests import acknowledged, fault_of_request, named
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest

MILLISECOND: Final = timedelta(milliseconds=1)


async def handle(context: RequestContext, request: "ShareAcknowledgeRequest") -> Answer:
    """Take the member's word, then answer."""
    group_id, member_id = request.group_id or "", request.member_id or ""
    epoch = request.share_session_epoch
    fault = fault_of_request(group_id, member_id, epoch)
    if fault:
        return _refusal(context, GroupError.INVALID_REQUEST, fault)
    refused = context.access.group(Operation.READ, group_id)
    if refused:
        return _refusal(context, refused, refusal_text(refused))
    shares = context.broker.groups.shares
    group = shares.open(group_id)
    if isinstance(group, GroupError) and group not in ELSEWHERE:
        return _refusal(context, group)
    key = (group_id, member_id, relayed_by(context))
    session = shares.sessions.acknowledge(key, epoch)
    if isinstance(session, GroupError):
        return _refusal(context, session)
    if isinstance(group, GroupError):
        return await _send_away(context, request, key)
    said = acknowledged(request.topics)
    configs = shares.configs(group_id)
    renews = request.is_renew_ack and configs.renew_acknowledge
    hidden = unreadable(context.access, context.broker.view, said)
    error, outcomes = await acknowledge(group, member_id, said, hidden, renews=renews, epoch=epoch)
    if epoch == FINAL_EPOCH:
        shares.sessions.end(key)
        group.release(member_id, list(group.machine.deliveries.partitions))
    if error is not GroupError.NONE:
        return _refusal(context, error)
    return _answer(context, named(request.topics), outcomes, configs.record_lock_duration_ms)


async def _send_away(
    context: RequestContext, request: "ShareAcknowledgeRequest", key: Key
) -> Entity:
    """Name the agent to ask, or ask it where it has given the records by way of this one."""
    leader = leader_of(context.broker, key[0])
    carried = None
    if may_carry(context):
        carried = await carry_acknowledgements(context, request, key)
    if request.share_session_epoch == FINAL_EPOCH:
        context.broker.groups.shares.sessions.end(key)
        relays_of(context).end(key)
    if carried is not None:
        return carried
    away = AckFault(GroupError.NOT_LEADER_OR_FOLLOWER, "Another agent owns the share partition.")
    places = named(request.topics)
    return _answer(context, places, dict.fromkeys(places, away), 0, leader)


def _answer(
    context: RequestContext,
    places: list[Place],
    faults: dict[Place, AckFault],
    lock_ms: int,
    leader: Leader = NO_LEADER,
) -> Entity:
    types = response_types("share_acknowledge", context.api_version)
    by_topic: dict[bytes, list[Entity]] = {}
    for topic_id, number in dict.fromkeys(places):
        fault = faults.get((topic_id, number))
        by_topic.setdefault(topic_id, []).append(
            build(
                types.PartitionData,
                partition_index=number,
                error_code=GroupError.NONE if fault is None else fault.error,
                error_message=None if fault is None else fault.message,
                current_leader=types.LeaderIdAndEpoch(
                    leader_id=leader.node_id, leader_epoch=leader.epoch
                ),
            )
        )
    return build(
        types.ShareAcknowledgeResponse,
        error_code=GroupError.NONE,
        acquisition_lock_timeout=lock_ms * MILLISECOND,
        responses=tuple(
            types.ShareAcknowledgeTopicResponse(
                topic_id=uuid.UUID(bytes=topic_id), partitions=tuple(partitions)
            )
            for topic_id, partitions in by_topic.items()
        ),
        node_endpoints=endpoints_of(types, leader),
    )


def _refusal(
    context: RequestContext, error: GroupError | ErrorCode, message: str | None = None
) -> Entity:
    types = response_types("share_acknowledge", context.api_version)
    return build(
        types.ShareAcknowledgeResponse,
        error_code=error,
        error_message=message,
        acquisition_lock_timeout=timedelta(0),
        responses=(),
        node_endpoints=(),
    )
