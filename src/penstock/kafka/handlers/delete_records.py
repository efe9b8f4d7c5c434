"""DeleteRecords 0 to 2: raise log start offsets; -1 means the high watermark (KIP-107)."""

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.admin.commit import TIMEOUT_MAX_S, TIMEOUT_MIN_S
from penstock.kafka.admin.lines import LINES_MAX, note_changes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code, refusal_code
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import duplicates
from penstock.kafka.partitions import find_partition
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import PenstockError
from penstock.model.ids import PartitionKey
from penstock.model.topic_configs import topic_settings
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest


HIGH_WATERMARK: Final = -1
NO_WATERMARK: Final = -1


async def handle(context: RequestContext, request: "DeleteRecordsRequest") -> Answer:
    """Delete records below the given offsets; the new log start offset per partition."""
    types = response_types("delete_records", context.api_version)
    turns = context.broker.turns
    twice = await turns.run(
        duplicates(
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        )
    )
    refused, wanted = await fresh.settled(context, partial(_plan, context, request, twice))
    before = _log_starts(context, wanted)
    starts = await _delete(context, list(wanted.values()), request.timeout.total_seconds())
    results = dict(zip(wanted, starts, strict=True))
    changes = [
        f"deleted records of {name}-{partition}: log start offset {start} -> {now}"
        for (name, partition), start in before.items()
        if not isinstance(now := results[name, partition], ErrorCode) and now != start
    ]
    more = sum(not isinstance(start, ErrorCode) for start in starts[LINES_MAX:])
    note_changes(context, changes, count=len(changes) + more)
    topics = ArrayWriter(types.DeleteRecordsTopicResult)
    async for topic in turns.each(request.topics):
        partitions = ArrayWriter(types.DeleteRecordsPartitionResult)
        async for partition in turns.each(topic.partitions):
            place = (topic.name, partition.partition_index)
            answer = results.get(place)
            error = refused.get(place) or (answer if isinstance(answer, ErrorCode) else None)
            partitions.add(
                partition_index=partition.partition_index,
                low_watermark=NO_WATERMARK if error else answer,
                error_code=error or ErrorCode.NONE,
            )
        topics.add(name=topic.name, partitions=partitions.encoded())
    return build(types.DeleteRecordsResponse, topics=topics.encoded())


_Place = tuple[str, int]


async def _plan(
    context: RequestContext,
    request: "DeleteRecordsRequest",
    twice: AbstractSet[_Place],
    certainty: fresh.Certainty,
) -> tuple[dict[_Place, ErrorCode], dict[_Place, tuple[PartitionKey, int]]]:
    """Return two mappings by topic name and partition: the errors, and the offsets to delete
    below."""
    refused: dict[_Place, ErrorCode] = dict.fromkeys(twice, ErrorCode.INVALID_REQUEST)
    wanted: dict[_Place, tuple[PartitionKey, int]] = {}
    turns = context.broker.turns
    async for topic in turns.each(request.topics):
        async for partition in turns.each(topic.partitions):
            place = (topic.name, partition.partition_index)
            if place in refused:
                continue
            checked = _check(context, topic.name, partition, certainty)
            if isinstance(checked, ErrorCode):
                refused[place] = checked
            else:
                wanted[place] = (checked, partition.offset)
    return refused, wanted


def _check(
    context: RequestContext,
    topic_name: str,
    partition: "DeleteRecordsPartition",
    certainty: fresh.Certainty,
) -> PartitionKey | ErrorCode:
    view = context.broker.view
    denied = context.access.topic(Operation.DELETE, topic_name)
    if denied:
        return denied
    key = find_partition(view, topic_name, partition.partition_index)
    if key is None:
        return certainty.no(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
    topic = view.topic(topic_name)
    assert topic is not None
    # As Kafka: what a topic keeps for ever by policy is not deleted by hand either.
    if not topic_settings(topic.configs, view.cluster_configs).deletes:
        return ErrorCode.POLICY_VIOLATION
    if partition.offset < HIGH_WATERMARK:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return key


def _log_starts(
    context: RequestContext, wanted: Mapping[_Place, tuple[PartitionKey, int]]
) -> dict[_Place, int]:
    """Return the present log starts of the partitions in the first mapping."""
    starts = {}
    for place, (key, _) in islice(wanted.items(), LINES_MAX):
        head = context.broker.view.head(key)
        starts[place] = 0 if head is None else head.log_start
    return starts


async def _delete(
    context: RequestContext, items: list[tuple[PartitionKey, int]], timeout_s: float
) -> list[int | ErrorCode]:
    if not items:
        return []
    try:
        async with asyncio.timeout(min(max(timeout_s, TIMEOUT_MIN_S), TIMEOUT_MAX_S)):
            answers = await context.broker.log.delete_records(items)
    except TimeoutError:
        return [ErrorCode.REQUEST_TIMED_OUT] * len(items)
    except PenstockError as error:
        return [error_code(error)] * len(items)
    return [answer if answer >= 0 else refusal_code(-answer) for answer in answers]
