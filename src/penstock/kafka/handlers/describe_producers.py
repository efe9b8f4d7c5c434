"""DescribeProducers 0 (KIP-664): the producers that a partition knows, and what is open of them.

The coordinator's epoch is -1: here a transaction has no coordinator whose epoch could rise. After a
marker the epoch is the marker's, which has no last sequence (-1) where it is a new epoch. A
partition that is named more than once is answered once.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.access import refusal_text
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import CHEAP
from penstock.kafka.partitions import find_partition
from penstock.kafka.transaction_states import note_away
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import EncodedParts
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey
from penstock.model.topic_names import name_problem
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest

PARTITION_BYTES: Final = 16
PRODUCER_BYTES: Final = 40
PAGE_ROWS: Final = 500
NO_COORDINATOR_EPOCH: Final = -1
NOT_HOSTED: Final = "This server does not host this topic-partition."

_Asked = dict[str, list[int]]
_Counts = dict[PartitionKey, int]
"""Producers by partition; a partition that isn't there can't be read now."""


async def handle(context: RequestContext, request: "DescribeProducersRequest") -> Answer:
    """List the producers of all partitions."""
    types = response_types("describe_producers", context.api_version)
    turns = context.broker.turns
    asked: _Asked = {}
    async for topic in turns.each(request.topics):
        numbers = asked.setdefault(topic.name, [])
        numbers += dict.fromkeys(topic.partition_indexes)
        if turns.spend(len(topic.partition_indexes) // CHEAP):
            await turns.wait()
    counts = await _counts(context, asked)
    waiting = context.reserve_answer(await _bound(context, asked, counts))
    if waiting is not None:
        return waiting
    topics = ArrayWriter(types.TopicResponse)
    async for name, numbers in turns.each(asked.items()):
        partitions = ArrayWriter(types.PartitionResponse)
        async for number in turns.each(list(dict.fromkeys(numbers))):
            found = await _partition(context, types, name, number, counts)
            partitions.add(partition_index=number, **found)
        topics.add(name=name, partitions=partitions.encoded())
    return build(types.DescribeProducersResponse, topics=topics.encoded())


async def _counts(context: RequestContext, asked: _Asked) -> _Counts:
    found: _Counts = {}
    if not await fresh.confirm(context):
        return found
    async for name, numbers in context.broker.turns.each(asked.items()):
        if context.access.topic(Operation.READ, name):
            continue
        for number in dict.fromkeys(numbers):
            key = find_partition(context.broker.view, name, number)
            if key is not None:
                try:
                    found[key] = await context.broker.log.transaction_reads.producer_count(key)
                except RetryableError as error:
                    note_away(error)
                    return found
    return found


async def _bound(context: RequestContext, asked: _Asked, counts: _Counts) -> int:
    """The most bytes of the answer."""
    turns = context.broker.turns
    found = BASE_BYTES
    async for name, numbers in turns.each(asked.items()):
        each = PARTITION_BYTES + text_bytes(name_problem(name) or NOT_HOSTED)
        found += text_bytes(name) + each * len(numbers)
        if turns.spend(len(numbers) // CHEAP):
            await turns.wait()
    return found + PRODUCER_BYTES * sum(counts.values())


async def _partition(
    context: RequestContext, types: ModuleType, name: str, number: int, counts: _Counts
) -> dict[str, object]:
    view = context.broker.view
    error, message = ErrorCode.NONE, None
    producers: EncodedParts | tuple[()] = ()
    key = find_partition(view, name, number)
    refused = context.access.topic(Operation.READ, name)
    if refused and name_problem(name) is None:
        error, message = refused, refusal_text(refused)
    elif key is not None and key in counts:
        try:
            producers = await _producers(context, types, key, counts[key])
        except RetryableError as failure:
            note_away(failure)
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif key is not None:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif (problem := name_problem(name)) is not None:
        error, message = ErrorCode.INVALID_TOPIC_EXCEPTION, problem
    else:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        message = NOT_HOSTED if view.topic(name) is None else None
    return {"error_code": error, "error_message": message, "active_producers": producers}


async def _producers(
    context: RequestContext, types: ModuleType, key: PartitionKey, count: int
) -> EncodedParts:
    """The first producers of a partition, as many as bytes were reserved for."""
    turns, after = context.broker.turns, -1
    producers = ArrayWriter(types.ProducerState)
    while count > 0:
        page = await context.broker.log.transaction_reads.producers(
            key, after, limit=min(PAGE_ROWS, count)
        )
        if not page:
            break
        async for row in turns.each(page):
            producer = row.producer
            producers.add(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=NO_COORDINATOR_EPOCH,
                current_txn_start_offset=row.first_offset,
            )
        after = page[-1].producer.producer_id
        count -= len(page)
    return producers.encoded()
