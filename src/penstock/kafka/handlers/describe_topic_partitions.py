"""DescribeTopicPartitions 0: topics and partitions in pages (KIP-966).

Topics come in the order of their names; an empty list asks for all. A page ends after a number of
partitions, and its cursor says where the next one begins.
"""

import uuid
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.access import UNKNOWN_OPERATIONS
from penstock.kafka.admin.resources import unknown_topic
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.shown_replicas import in_sync_min, replicas_of
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.model.topic_names import NAME_LENGTH_MAX
from penstock.placement.replicas import REPLICAS_MAX, in_sync
from penstock.security.acl import Operation, ResourceType
from penstock.state.read.view import Topic

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest


TOPIC_BYTES: Final = 40
PARTITION_BYTES: Final = 40
"""Besides the ids of replicas."""
PAGE_PARTITIONS_MAX: Final = 2000
"""Kafka's max.request.partition.size.limit."""


async def handle(context: RequestContext, request: "DescribeTopicPartitionsRequest") -> Answer:
    """One page."""
    waiting = context.reserve_answer(await _bound(context, request))
    if waiting is not None:
        return waiting
    return await fresh.settled(context, partial(_page, context, request))


async def _bound(context: RequestContext, request: "DescribeTopicPartitionsRequest") -> int:
    """The most bytes of the answer."""
    partitions = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    named = 0
    async for topic in context.broker.turns.each(request.topics):
        named += TOPIC_BYTES + text_bytes(topic.name)
    # Of topics that are there, each has a partition on the page at least.
    shown = partitions if not request.topics else 0
    shown = min(shown, len(context.broker.view.topics()))
    ids = max(REPLICAS_MAX, len(context.nodes.all()))
    row_bytes = PARTITION_BYTES + 2 * 4 * ids
    found = named + shown * (TOPIC_BYTES + 5 + NAME_LENGTH_MAX) + partitions * row_bytes
    return BASE_BYTES + NAME_LENGTH_MAX + found


async def _page(
    context: RequestContext, request: "DescribeTopicPartitionsRequest", certainty: fresh.Certainty
) -> Entity:
    types = response_types("describe_topic_partitions", context.api_version)
    view = context.broker.view
    turns = context.broker.turns
    named = (topic.name for topic in request.topics or list(view.topics()))
    names: set[str] = {name async for name in turns.each(named)}
    first_partition = 0
    cursor = request.cursor
    if cursor is not None:
        names = {name async for name in turns.each(names) if name >= cursor.topic_name}
        first_partition = max(0, cursor.partition_index)
    left = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    topics = ArrayWriter(types.DescribeTopicPartitionsResponseTopic)
    next_cursor = None
    access = context.access
    hidden: dict[str, ErrorCode] = {}
    if not access.is_unbounded:
        errors = {name: access.topic(Operation.DESCRIBE, name) async for name in turns.each(names)}
        names = {name for name, error in errors.items() if not error}
        # An answer about all topics leaves the others out.
        hidden = {name: error for name, error in errors.items() if error and request.topics}
    async for name in turns.in_order(list(names)):
        start = first_partition if cursor is not None and name == cursor.topic_name else 0
        topic = view.topic(name)
        if topic is None:
            # A topic deleted since the page before is not an error of this one.
            if cursor is None or name != cursor.topic_name:
                topics.add(**_unknown(name, certainty))
            continue
        if left == 0:
            next_cursor = build(types.Cursor, topic_name=name, partition_index=start)
            break
        end = min(topic.partitions, start + left)
        topics.add(**_topic(context, types, topic, start, end))
        left -= max(0, end - start)
        if turns.spend(end - start):
            await turns.wait()
        if end < topic.partitions:
            next_cursor = build(types.Cursor, topic_name=name, partition_index=end)
            break
    async for name in turns.in_order(list(hidden)):
        topics.add(**_refused(name, hidden[name]))
    return build(
        types.DescribeTopicPartitionsResponse, topics=topics.encoded(), next_cursor=next_cursor
    )


def _unknown(name: str, certainty: fresh.Certainty) -> dict[str, object]:
    error = unknown_topic(name).outcome.error
    return _refused(name, certainty.no(error, ErrorCode.LEADER_NOT_AVAILABLE))


def _refused(name: str, error: ErrorCode) -> dict[str, object]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": None,
        "partitions": (),
        "topic_authorized_operations": UNKNOWN_OPERATIONS,
    }


def _topic(
    context: RequestContext, types: ModuleType, topic: Topic, start: int, end: int
) -> dict[str, object]:
    broker = context.broker
    replicas = replicas_of(context)
    count, least = replicas.count(topic.replication_factor), in_sync_min(topic, broker.view)
    rows = replicas.of_topic(topic.topic_id, start, end, count)
    partitions = ArrayWriter(types.DescribeTopicPartitionsResponsePartition)
    for index, shown in enumerate(rows, start):
        partitions.add(
            error_code=ErrorCode.NONE,
            partition_index=index,
            leader_id=shown[0],
            leader_epoch=broker.epoch,
            replica_nodes=shown,
            isr_nodes=in_sync(shown, least),
            # Not null: an empty list says that eligible leader replicas are known, none.
            eligible_leader_replicas=(),
            last_known_elr=(),
        )
    return {
        "error_code": ErrorCode.NONE,
        "name": topic.name,
        "topic_id": uuid.UUID(bytes=topic.topic_id),
        "partitions": partitions.encoded(),
        "topic_authorized_operations": context.access.operations(ResourceType.TOPIC, topic.name),
    }
