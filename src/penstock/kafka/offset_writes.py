"""The offsets of a request become writes of the journal: OffsetCommit's and TxnOffsetCommit's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, refusal_code
from penstock.security.acl import Operation
from penstock.state.command import OffsetWrite

if TYPE_CHECKING:
    from kio.schema.offset_commit.v9 import request as v9
    from kio.schema.offset_commit.v10 import request as v10
    from kio.schema.txn_offset_commit.v5 import request as txn

    from penstock.state.read.view import Topic

    _Topic = (
        v9.OffsetCommitRequestTopic | v10.OffsetCommitRequestTopic | txn.TxnOffsetCommitRequestTopic
    )
    _Partition = (
        v9.OffsetCommitRequestPartition
        | v10.OffsetCommitRequestPartition
        | txn.TxnOffsetCommitRequestPartition
    )


async def planned_writes(
    context: RequestContext, topics: "Sequence[_Topic]", certainty: fresh.Certainty
) -> tuple[list[OffsetWrite], list[int | None]]:
    """Return the writes, and an error per partition in the request's order; None: the partition is
    written, and the journal gives its result."""
    away = ErrorCode.COORDINATOR_NOT_AVAILABLE
    metadata_length_max = context.broker.groups.settings.offset_metadata_length_max
    writes: list[OffsetWrite] = []
    errors: list[int | None] = []
    turns = context.broker.turns
    async for topic in turns.each(topics):
        known, unknown_topic = _find_topic(context, topic)
        refused = ErrorCode.NONE
        if known is not None:
            refused = context.access.topic(Operation.READ, known.name)
        elif not hasattr(topic, "topic_id"):
            refused = context.access.topic(Operation.READ, topic.name)
        partitions: Sequence[_Partition] = topic.partitions
        async for partition in turns.each(partitions):
            metadata = partition.committed_metadata or ""
            if refused:
                errors.append(refused)
            elif known is None:
                errors.append(certainty.no(unknown_topic, away))
            elif not 0 <= partition.partition_index < known.partitions:
                errors.append(certainty.no(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, away))
            elif len(metadata) > metadata_length_max:
                errors.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            else:
                errors.append(None)
                writes.append(
                    OffsetWrite(
                        topic_id=known.topic_id,
                        partition=partition.partition_index,
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=metadata,
                    )
                )
    return writes, errors


def stored_code(code: int) -> ErrorCode:
    """The error of one offset, as the journal answers it: 0, or a Refusal."""
    return refusal_code(code) if code else ErrorCode.NONE


def _find_topic(context: RequestContext, topic: "_Topic") -> "tuple[Topic | None, ErrorCode]":
    """A topic, and the error of one that there isn't."""
    view = context.broker.view
    if hasattr(topic, "topic_id"):
        found = None if topic.topic_id is None else view.topic_by_id(topic.topic_id.bytes)
        return found, ErrorCode.UNKNOWN_TOPIC_ID
    return view.topic(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
