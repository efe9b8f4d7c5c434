"""OffsetCommit 2 to 10: store how far a group has read. Topics go by id from version 10 on.

Answered once the offsets are journaled. `retention_time` (versions 2 to 4) is ignored: one
retention, a setting, holds for all.
"""

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.groups.committing import CommitResult
from penstock.groups.errors import GroupError
from penstock.kafka import confirmed as fresh
from penstock.kafka.admin.lines import SHOWN_MAX, note_changes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.offset_writes import planned_writes, stored_code
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation
from penstock.state.command import OffsetWrite

if TYPE_CHECKING:
    from kio.schema.offset_commit.v9 import request as v9
    from kio.schema.offset_commit.v10 import request as v10

    _Request = v9.OffsetCommitRequest | v10.OffsetCommitRequest
    _Partition = v9.OffsetCommitRequestPartition | v10.OffsetCommitRequestPartition
    _Topic = v9.OffsetCommitRequestTopic | v10.OffsetCommitRequestTopic


MISSING_GROUP_FROM: Final = 9


async def handle(context: RequestContext, request: "_Request") -> Answer:
    """Commit what can be committed; each partition has its own outcome."""
    version, broker = context.api_version, context.broker
    refused = context.access.group(Operation.READ, request.group_id)
    if refused:
        topics: Sequence[_Topic] = request.topics
        return await _response(
            context, request, [refused] * sum(len(one.partitions) for one in topics)
        )
    writes, errors = await fresh.settled(context, partial(planned_writes, context, request.topics))
    result = await broker.groups.commit_offsets(
        request.group_id,
        writes,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        # kio's classes of all versions name the field for both protocols.
        generation=request.generation_id_or_member_epoch,
    )
    if result.error is GroupError.NONE:
        if result.altered_from is not None:
            _note_altered(context, request.group_id, writes, result)
        codes = iter(result.codes)
        outcomes = [stored_code(next(codes)) if error is None else error for error in errors]
    else:
        failure = await fresh.group_error(context, request.group_id, result.error)
        if failure is GroupError.GROUP_ID_NOT_FOUND and version < MISSING_GROUP_FROM:
            # What these versions' clients know it as.
            failure = GroupError.ILLEGAL_GENERATION
        # A topic that is not there stays the answer of its own: Kafka looks at topics first.
        outcomes = [
            failure if error in {None, ErrorCode.OFFSET_METADATA_TOO_LARGE} else error
            for error in errors
        ]
    return await _response(context, request, outcomes)


def _note_altered(
    context: RequestContext, group_id: str, writes: list[OffsetWrite], result: CommitResult
) -> None:
    """Say which offsets an administrator has set: those of groups that have had members."""
    broker = context.broker
    if not broker.seldom.due(f"altered offsets {context.client_id} {group_id}"):
        return
    assert result.altered_from is not None
    changes = []
    for write, before in islice(zip(writes, result.altered_from, strict=True), SHOWN_MAX):
        topic = broker.view.topic_by_id(write.topic_id)
        name = write.topic_id.hex() if topic is None else topic.name
        old = "?" if before is None else before
        changes.append(f"{name}-{write.partition}: {old} -> {write.offset}")
    text = f"altered {len(writes)} offsets of group {group_id!r}: {', '.join(changes)}"
    note_changes(context, [text])


async def _response(
    context: RequestContext,
    request: "_Request",
    outcomes: list[int],
) -> Entity:
    types, turns = response_types("offset_commit", context.api_version), context.broker.turns
    errors = iter(outcomes)
    topics = ArrayWriter(types.OffsetCommitResponseTopic)
    asked: Sequence[_Topic] = request.topics
    async for topic in turns.each(asked):
        answers = ArrayWriter(types.OffsetCommitResponsePartition)
        partitions: Sequence[_Partition] = topic.partitions
        async for partition in turns.each(partitions):
            answers.add(partition_index=partition.partition_index, error_code=next(errors))
        name, topic_id = (
            (None, topic.topic_id) if hasattr(topic, "topic_id") else (topic.name, None)
        )
        topics.add(name=name, topic_id=topic_id, partitions=answers.encoded())
    return build(types.OffsetCommitResponse, topics=topics.encoded())
