"""Carries share requests to the owner of a group, for clients that don't go there by themselves.

Java's consumers take the leader that an answer names. librdkafka's ask the same agent again; what
they ask is then asked of the owner, over one connection for each session, and answered as the owner
says. The owner takes it for a session of its own: the client may have another one there.

An agent carries nothing where an authorizer looks at clients, since the owner would see the agent
in the client's place; nor can it where the owner's listener asks for TLS or SASL.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from penstock.groups.share.messages import Place
from penstock.groups.share.sessions import FINAL_EPOCH, Key
from penstock.kafka.context import RequestContext
from penstock.kafka.nodes import Node
from penstock.kafka.share.relays import CLIENT_ID_PREFIX, Relay, relays_of
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build
from penstock.model.errors import PenstockError
from penstock.system.heard import Cause, heard

if TYPE_CHECKING:
    from kio.schema.share_acknowledge.v2.request import ShareAcknowledgeRequest
    from kio.schema.share_fetch.v2.request import ShareFetchRequest

logger = logging.getLogger(__name__)

MILLISECOND: Final = timedelta(milliseconds=1)


def relayed_by(context: RequestContext) -> str:
    """Name the agent that carries this request; empty: its client sends it."""
    client_id = context.client_id or ""
    return client_id if client_id.startswith(CLIENT_ID_PREFIX) else ""


def may_carry(context: RequestContext) -> bool:
    """Whether a request may be carried: it is the client's own, and no authorizer looks at it."""
    return context.access.is_unbounded and not relayed_by(context)


async def carry_fetch(
    context: RequestContext,
    request: "ShareFetchRequest",
    key: Key,
    places: Sequence[Place],
    node: Node | None,
) -> Entity | None:
    """Ask the owner what a client asks of this agent; None: it has no answer.

    Args:
        places: the partitions of the session.
        node: the owner; None: it is not known, and nothing is begun.
    """
    is_final = request.share_session_epoch == FINAL_EPOCH
    relay = relays_of(context).find(key, None if is_final else node)
    if relay is None or (not relay.epoch and (is_final or request.is_renew_ack)):
        return None
    opens = not relay.epoch

    def make(types: ModuleType) -> Any:
        # What is said of records was given by another session than one that is opened now.
        topics = _topics(types, places) if opens else _copied(types, request.topics)
        return build(
            types.ShareFetchRequest,
            group_id=request.group_id,
            member_id=request.member_id,
            share_session_epoch=FINAL_EPOCH if is_final else relay.epoch,
            max_wait=request.max_wait,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            max_records=request.max_records,
            batch_size=request.batch_size,
            share_acquire_mode=request.share_acquire_mode,
            is_renew_ack=request.is_renew_ack,
            topics=topics,
            forgotten_topics_data=()
            if opens
            else tuple(
                types.ForgottenTopic(topic_id=topic.topic_id, partitions=topic.partitions)
                for topic in request.forgotten_topics_data
            ),
        )

    wait_s = max(0, request.max_wait // MILLISECOND) / 1000
    return await _carried(relay, "share_fetch", context.api_version, make, wait_s=wait_s)


async def carry_acknowledgements(
    context: RequestContext, request: "ShareAcknowledgeRequest", key: Key
) -> Entity | None:
    """Tell the owner what a client says to this agent; None: it has no answer."""
    relay = relays_of(context).find(key, None)
    if relay is None or not relay.epoch:
        return None
    is_final = request.share_session_epoch == FINAL_EPOCH

    def make(types: ModuleType) -> Any:
        return build(
            types.ShareAcknowledgeRequest,
            group_id=request.group_id,
            member_id=request.member_id,
            share_session_epoch=FINAL_EPOCH if is_final else relay.epoch,
            is_renew_ack=request.is_renew_ack,
            topics=tuple(
                types.AcknowledgeTopic(
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        types.AcknowledgePartition(
                            partition_index=partition.partition_index,
                            acknowledgement_batches=_batches(types, partition),
                        )
                        for partition in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    return await _carried(relay, "share_acknowledge", context.api_version, make, wait_s=0)


async def _carried(
    relay: Relay, api: str, version: int, make: Callable[[ModuleType], Any], *, wait_s: float
) -> Entity | None:
    """Return the owner's answer; None: there is none, or it refuses the session, which the next
    fetch opens again."""
    try:
        reply: Any = await relay.call(api, version, make, wait_s=wait_s)
    except PenstockError as error:
        heard(Cause.SHARE_RELAY, error, logger, "could not ask the owner of a share group")
        return None
    if reply.error_code:
        relay.close()
        return None
    relay.epoch += 1
    answer: Entity = reply
    return answer


def _topics(types: ModuleType, places: Sequence[Place]) -> tuple[Any, ...]:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, number in places:
        by_topic.setdefault(topic_id, []).append(number)
    return tuple(
        types.FetchTopic(
            topic_id=uuid.UUID(bytes=topic_id),
            partitions=tuple(
                types.FetchPartition(partition_index=number, acknowledgement_batches=())
                for number in numbers
            ),
        )
        for topic_id, numbers in by_topic.items()
    )


def _copied(types: ModuleType, topics: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        types.FetchTopic(
            topic_id=topic.topic_id,
            partitions=tuple(
                types.FetchPartition(
                    partition_index=partition.partition_index,
                    acknowledgement_batches=_batches(types, partition),
                )
                for partition in topic.partitions
            ),
        )
        for topic in topics
    )


def _batches(types: ModuleType, partition: Any) -> tuple[Any, ...]:
    return tuple(
        types.AcknowledgementBatch(
            first_offset=batch.first_offset,
            last_offset=batch.last_offset,
            acknowledge_types=batch.acknowledge_types,
        )
        for batch in partition.acknowledgement_batches
    )
