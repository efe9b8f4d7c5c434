"""ShareFetch 1 to 2: a member gets records for itself for a while, and says what became of others
(KIP-932).

Acknowledgements come first, and are journaled before the answer; then records are acquired. A
request that finds none waits for new ones, and for those that others release. Where the group is
another agent's, the answer names it (`kafka.share.elsewhere`), or is the other's (`relay`).
"""

import asyncio
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from penstock.groups.errors import GroupError
from penstock.groups.share.configs import ShareConfigs
from penstock.groups.share.messages import Place
from penstock.groups.share.partition import AckBatch, AckFault
from penstock.groups.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, Key, ShareSession
from penstock.kafka.access import refusal_text
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.fetch.work import RESPONSE_BYTES_MAX
from penstock.kafka.long_answer import Answer
from penstock.kafka.share.acknowledging import acknowledge
from penstock.kafka.share.batches import in_pieces
from penstock.kafka.share.elsewhere import (
    ELSEWHERE,
    NO_LEADER,
    UNKNOWN_WAIT_S,
    Leader,
    endpoints_of,
    leader_of,
)
from penstock.kafka.share.permissions import unreadable
from penstock.kafka.share.reading import Room, Shared, ShareReading
from penstock.kafka.share.relay import carry_fetch, may_carry, relayed_by
from penstock.kafka.share.relays import relays_of
from penstock.kafka.share.requests import acknowledged, fault_of_request, named
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.system.waiting import wait

if TYPE_CHECKING:
    from kio.schema.share_fetch.v2.request import ShareFetchRequest

MILLISECOND: Final = timedelta(milliseconds=1)
RECORD_LIMIT: Final = 1
"""The acquire mode in which no record beyond `max_records` is given."""


async def handle(context: RequestContext, request: "ShareFetchRequest") -> Answer:
    """Take what the member says, then give it records."""
    group_id, member_id = request.group_id or "", request.member_id or ""
    epoch = request.share_session_epoch
    fault = fault_of_request(group_id, member_id, epoch) or _fault_of(request)
    if fault:
        return _refusal(context, GroupError.INVALID_REQUEST, fault)
    shares = context.broker.groups.shares
    refused = context.access.group(Operation.READ, group_id)
    if refused:
        return _refusal(context, refused, refusal_text(refused))
    group = shares.open(group_id)
    if isinstance(group, GroupError) and group not in ELSEWHERE:
        return _refusal(context, group)
    said = acknowledged(request.topics)
    key = (group_id, member_id, relayed_by(context))
    session = shares.sessions.fetch(
        key,
        epoch,
        owner=context.connection,
        added=() if epoch == FINAL_EPOCH else named(request.topics),
        forgotten=named(request.forgotten_topics_data),
        acknowledges=bool(said),
    )
    if isinstance(session, GroupError):
        return _refusal(context, session)
    context.connection.watch_end("share sessions", shares.left)
    if isinstance(group, GroupError):
        return await _send_away(context, request, said, session, key)
    configs = shares.configs(group_id)
    faults = unreadable(context.access, context.broker.view, said)
    if said:
        renews = request.is_renew_ack and configs.renew_acknowledge
        error, faults = await acknowledge(
            group, member_id, said, faults, renews=renews, epoch=epoch
        )
        if error is not GroupError.NONE:
            return _refusal(context, error)
    found: Mapping[Place, Shared] = {}
    if epoch == FINAL_EPOCH:
        shares.sessions.end(key)
        group.release(member_id, list(group.machine.deliveries.partitions))
    elif not request.is_renew_ack:
        reading = ShareReading(context, group, member_id, configs)
        found = await _fetch(context, request, reading, session, waits=not said)
    return _answer(context, request, configs, said, faults, found)


async def _fetch(
    context: RequestContext,
    request: "ShareFetchRequest",
    reading: ShareReading,
    session: ShareSession,
    *,
    waits: bool,
) -> Mapping[Place, Shared]:
    """
    Args:
        waits: nothing else is to be answered meanwhile.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + max(0, request.max_wait // MILLISECOND) / 1000
    with reading.watching(list(session.places)) as changed:
        while True:
            # Set before the look, it would be missed by one that waits after it.
            changed.clear()
            if context.access.group(Operation.READ, request.group_id or ""):
                return {}  # the permission was taken back while the member waited
            found = await reading.collect(list(session.places), _room(context, request))
            for place in found:
                if place in session.places:
                    session.places.move_to_end(place)
            is_over = deadline_s <= loop.time() or context.connection.is_asked_more
            if found or is_over or not waits or request.max_records <= 0:
                return found
            try:
                async with asyncio.timeout_at(deadline_s):
                    await changed.wait()
            except TimeoutError:
                # The time that the client gave has passed: it gets an empty answer.
                return found


def _room(context: RequestContext, request: "ShareFetchRequest") -> Room:
    room = max(1, context.connection.reply_room_bytes)
    return Room(
        bytes_left=min(max(1, request.max_bytes), RESPONSE_BYTES_MAX, room),
        records_left=request.max_records,
        cuts=request.share_acquire_mode == RECORD_LIMIT,
    )


async def _send_away(
    context: RequestContext,
    request: "ShareFetchRequest",
    said: Mapping[Place, list[AckBatch]],
    session: ShareSession,
    key: Key,
) -> Entity:
    """Name the agent to ask, or ask it for a client that comes back although it was named."""
    broker = context.broker
    leader = leader_of(broker, key[0])
    carried = None
    if request.share_session_epoch != INITIAL_EPOCH and may_carry(context):
        carried = await carry_fetch(context, request, key, list(session.places), leader.node)
    if request.share_session_epoch == FINAL_EPOCH:
        broker.groups.shares.sessions.end(key)
        relays_of(context).end(key)
    if carried is not None:
        return carried
    if leader.node is None or request.share_session_epoch != INITIAL_EPOCH:
        wait_s = max(0, request.max_wait // MILLISECOND) / 1000
        await wait(min(UNKNOWN_WAIT_S, wait_s))
    away = AckFault(GroupError.NOT_LEADER_OR_FOLLOWER, "Another agent owns the share partition.")
    found: dict[Place, Shared] = {}
    if request.share_session_epoch != FINAL_EPOCH:
        found = {place: Shared(ErrorCode.NOT_LEADER_OR_FOLLOWER) for place in session.places}
    faults = dict.fromkeys(said, away)
    return _answer(context, request, ShareConfigs(), said, faults, found, leader)


def _fault_of(request: "ShareFetchRequest") -> str:
    if request.is_renew_ack:
        limits = (request.max_bytes, request.min_bytes, request.max_records)
        if any(limits) or request.max_wait // MILLISECOND:
            return "A request that renews acquisitions fetches no records: its limits must be 0."
    return ""


def _answer(
    context: RequestContext,
    request: "ShareFetchRequest",
    configs: ShareConfigs,
    said: Mapping[Place, list[AckBatch]],
    faults: Mapping[Place, AckFault],
    found: Mapping[Place, Shared],
    leader: Leader = NO_LEADER,
) -> Entity:
    types = response_types("share_fetch", context.api_version)
    by_topic: dict[bytes, list[Entity]] = {}
    for place in dict.fromkeys((*said, *found)):
        fault, shared = faults.get(place), found.get(place) or Shared()
        by_topic.setdefault(place[0], []).append(
            build(
                types.PartitionData,
                partition_index=place[1],
                error_code=shared.error,
                acknowledge_error_code=0 if fault is None else int(fault.error),
                acknowledge_error_message=None if fault is None else fault.message,
                current_leader=types.LeaderIdAndEpoch(
                    leader_id=leader.node_id, leader_epoch=leader.epoch
                ),
                records=shared.records,
                acquired_records=tuple(
                    types.AcquiredRecords(
                        first_offset=one.first, last_offset=one.last, delivery_count=one.deliveries
                    )
                    for one in in_pieces(shared.acquired, request.batch_size)
                ),
            )
        )
    return build(
        types.ShareFetchResponse,
        error_code=GroupError.NONE,
        acquisition_lock_timeout=configs.record_lock_duration_ms * MILLISECOND,
        responses=tuple(
            types.ShareFetchableTopicResponse(
                topic_id=uuid.UUID(bytes=topic_id), partitions=tuple(partitions)
            )
            for topic_id, partitions in by_topic.items()
        ),
        node_endpoints=endpoints_of(types, leader),
    )


def _refusal(
    context: RequestContext, error: GroupError | ErrorCode, message: str | None = None
) -> Entity:
    types = response_types("share_fetch", context.api_version)
    return build(
        types.ShareFetchResponse,
        error_code=error,
        error_message=message,
        acquisition_lock_timeout=timedelta(0),
        responses=(),
        node_endpoints=(),
    )
