"""OffsetForLeaderEpoch 2 to 4: where an epoch ended, so that consumers notice truncation.

A log here is never truncated while it is served: an acknowledged record stays at its offset. The
leader epoch is that of the log's last restore (`penstock.state.leader_epochs`) and is otherwise
constant: the current one ends at the high watermark, an earlier one where the restored log went on,
and a later one is unknown (KIP-320). Answers are of the present, as those of ListOffsets.
"""

from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.partitions import find_partition, leader_epoch_error
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.state.leader_epochs import end_of_epoch

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4.request import (
        OffsetForLeaderEpochRequest,
        OffsetForLeaderPartition,
    )


UNDEFINED: Final = -1


async def handle(context: RequestContext, request: "OffsetForLeaderEpochRequest") -> Answer:
    """The end of the asked epoch, per partition."""
    types = response_types("offset_for_leader_epoch", context.api_version)
    turns = context.broker.turns
    access = context.access
    # As a replica of Kafka's asks it, or else as a consumer.
    is_consumers = bool(access.cluster(Operation.CLUSTER_ACTION))
    known = await fresh.confirm(context)
    topics = ArrayWriter(types.OffsetForLeaderTopicResult)
    async for topic in turns.each(request.topics):
        partitions = ArrayWriter(types.EpochEndOffset)
        refused = is_consumers and access.topic(Operation.DESCRIBE, topic.topic)
        async for partition in turns.each(topic.partitions):
            if refused:
                partitions.add(
                    error_code=refused,
                    partition=partition.partition,
                    leader_epoch=UNDEFINED,
                    end_offset=UNDEFINED,
                )
            else:
                partitions.add(**_end(context, topic.topic, partition, known=known))
        topics.add(topic=topic.topic, partitions=partitions.encoded())
    return build(types.OffsetForLeaderEpochResponse, topics=topics.encoded())


def _end(
    context: RequestContext, topic_name: str, asked: "OffsetForLeaderPartition", *, known: bool
) -> dict[str, object]:
    broker = context.broker
    epoch, end = UNDEFINED, UNDEFINED
    key = find_partition(broker.view, topic_name, asked.partition)
    if not known:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif key is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        error = leader_epoch_error(asked.current_leader_epoch, broker.epoch)
        if error is ErrorCode.NONE:
            found = end_of_epoch(
                broker.view.epoch_starts(key),
                asked.leader_epoch,
                end_offset=broker.log.high_watermark(key),
            )
            epoch, end = found or (UNDEFINED, UNDEFINED)
    return {
        "error_code": error,
        "partition": asked.partition,
        "leader_epoch": epoch,
        "end_offset": end,
    }
