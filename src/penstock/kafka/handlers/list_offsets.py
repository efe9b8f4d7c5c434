"""ListOffsets 1 to 11: earliest, latest, by timestamp, of the maximum timestamp.

| timestamp | means | since version |
| --- | --- | --- |
| -1 | latest: high watermark, or last stable offset when reading committed records | |
| -2 | earliest: log start offset | |
| -3 | the record with the greatest timestamp (KIP-734) | 7 |
| -4 | earliest on local disk (KIP-405): the log start offset without tiers | 8 |
| -5 | latest in the remote tier (KIP-1005): -1 without tiers | 9 |
| -6 | earliest that waits for upload (KIP-1023): -1 without tiers | 11 |
| 0 and more | first record at or after that time, in ms; -1 when there is none | |

Answers are of the present: a client that comes from another agent must not see the end of a
partition go back. While the journal is away they are LEADER_NOT_AVAILABLE, which every client
tries again.
"""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import duplicates
from penstock.kafka.partitions import find_partition, leader_epoch_error
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.ids import PartitionKey
from penstock.security.acl import Operation
from penstock.state.leader_epochs import epoch_of_offset

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest


LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_SINCE: Final = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
READ_COMMITTED: Final = 1
LOOKUPS_AT_ONCE: Final = 16
"""Look-ups by time read blocks of segments; more at once would only queue in the storage pool."""


class _Found(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


async def handle(context: RequestContext, request: "ListOffsetsRequest") -> Answer:
    """Look all partitions up."""
    types = response_types("list_offsets", context.api_version)
    committed = request.isolation_level == READ_COMMITTED
    known = await fresh.confirm(context)
    turns = context.broker.turns
    twice = await turns.run(
        duplicates(
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        )
    )
    found: list[_Found | None] = []
    lookups: list[_Lookup] = []
    async for topic in turns.each(request.topics):
        refused = context.access.topic(Operation.DESCRIBE, topic.name)
        async for partition in turns.each(topic.partitions):
            if refused:
                found.append(_Found(refused))
                continue
            if (topic.name, partition.partition_index) in twice:
                found.append(_Found(ErrorCode.INVALID_REQUEST))
                continue
            if not known:
                found.append(_Found(ErrorCode.LEADER_NOT_AVAILABLE))
                continue
            one = _find(context, topic.name, partition, committed=committed)
            # What is known at once takes no task: clients ask for thousands of partitions.
            if isinstance(one, _Lookup):
                lookups.append(one)
                found.append(None)
            else:
                found.append(one)
    looked_up = iter(await _look_all_up(context, lookups))
    answers = (next(looked_up) if one is None else one for one in found)
    topics = ArrayWriter(types.ListOffsetsTopicResponse)
    async for topic in turns.each(request.topics):
        partitions = ArrayWriter(types.ListOffsetsPartitionResponse)
        async for partition in turns.each(topic.partitions):
            one = next(answers)
            partitions.add(
                partition_index=partition.partition_index,
                error_code=one.error,
                timestamp=one.timestamp,
                offset=one.offset,
                leader_epoch=one.leader_epoch,
            )
        topics.add(name=topic.name, partitions=partitions.encoded())
    return build(types.ListOffsetsResponse, topics=topics.encoded())


class _Lookup(NamedTuple):
    """A look-up that reads records. `end`: where this reader's offsets end."""

    key: PartitionKey
    timestamp: int
    end: int


def _find(
    context: RequestContext, topic_name: str, partition: "ListOffsetsPartition", *, committed: bool
) -> _Found | _Lookup:
    """Answer from what is in memory, or say what must be looked up."""
    broker, log = context.broker, context.broker.log
    key = find_partition(broker.view, topic_name, partition.partition_index)
    if key is None:
        return _Found(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    stale = leader_epoch_error(partition.current_leader_epoch, broker.epoch)
    if stale is not ErrorCode.NONE:
        return _Found(stale)
    wanted = partition.timestamp
    if wanted < 0 and context.api_version < _SINCE.get(wanted, 1 << 15):
        return _Found(ErrorCode.UNSUPPORTED_VERSION)
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        return _found(context, key, log.log_start(key))
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _Found()
    end = log.last_stable_offset(key) if committed else log.high_watermark(key)
    if wanted == LATEST:
        return _Found(offset=end, leader_epoch=broker.epoch)
    return _Lookup(key, wanted, end)


async def _look_all_up(context: RequestContext, lookups: list[_Lookup]) -> list[_Found]:
    if len(lookups) <= 1:
        return [await _look_up(context, lookup) for lookup in lookups]
    found = [_Found()] * len(lookups)
    left = iter(enumerate(lookups))
    turns = context.broker.turns

    async def work() -> None:
        async for place, lookup in turns.each(left):
            found[place] = await _look_up(context, lookup)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(LOOKUPS_AT_ONCE, len(lookups))):
            group.create_task(work())
    return found


async def _look_up(context: RequestContext, lookup: _Lookup) -> _Found:
    log = context.broker.log
    try:
        if lookup.timestamp == MAX_TIMESTAMP:
            place = await log.offset_of_max_timestamp(lookup.key)
        else:
            place = await log.offset_for_time(lookup.key, lookup.timestamp)
    except PenstockError as error:
        log.read_failed(lookup.key, error)
        if isinstance(error, CorruptDataError):
            return _Found(ErrorCode.CORRUPT_MESSAGE)
        return _Found(error_code(error))
    # Behind the last offset that this reader may fetch there is nothing, for it.
    if place is None or place[0] >= lookup.end:
        return _Found()
    offset, timestamp = place
    return _found(context, lookup.key, offset, timestamp)


def _found(context: RequestContext, key: PartitionKey, offset: int, timestamp: int = -1) -> _Found:
    epoch = epoch_of_offset(context.broker.view.epoch_starts(key), offset)
    return _Found(timestamp=timestamp, offset=offset, leader_epoch=epoch)
