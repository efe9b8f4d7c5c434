"""TxnOffsetCommit 0 to 5: offsets of a group, which it has once the transaction is committed.

From version 3 on the producer names the member whose offsets they are, and the group's coordinator
checks it (KIP-447); from version 5 on (protocol V2, KIP-890) it adds the group to the transaction.
"""

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.groups.committing import CommitResult, OffsetsTransaction
from penstock.groups.errors import GroupError
from penstock.kafka import confirmed as fresh
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.offset_writes import planned_writes, stored_code
from penstock.kafka.transactions import ErrorVersions, refusal_error, seen_position
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import Entity
from penstock.kafka.wire.schema import build, response_types
from penstock.security.acl import Operation

if TYPE_CHECKING:
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

ADDS_GROUP_FROM: Final = 5
LOADING_FROM: Final = 2
"""Clients of earlier versions don't know COORDINATOR_LOAD_IN_PROGRESS."""
VERSIONS: Final = ErrorVersions(fenced=3, abortable=4)


async def handle(context: RequestContext, request: "TxnOffsetCommitRequest") -> Answer:
    """Have a transaction hold what can be committed; each partition has its own outcome."""
    version, access = context.api_version, context.access
    refused = access.transaction(Operation.WRITE, request.transactional_id) or access.group(
        Operation.READ, request.group_id
    )
    if refused:
        count = sum(len(topic.partitions) for topic in request.topics)
        return await _response(context, request, [refused] * count)
    adds_group = version >= ADDS_GROUP_FROM
    writes, errors = await fresh.settled(context, partial(planned_writes, context, request.topics))
    result = await context.broker.groups.commit_offsets(
        request.group_id,
        writes,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
        transaction=OffsetsTransaction(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            epoch=request.producer_epoch,
            adds_group=adds_group,
            seen_position=seen_position(context, raises_epochs=adds_group),
            connection=0 if adds_group else _connection(context),
        ),
    )
    failure = await _failure(context, request.group_id, result)
    if failure is None:
        codes = iter(result.codes)
        outcomes = [stored_code(next(codes)) if error is None else error for error in errors]
    else:
        outcomes = [failure if error is None else error for error in errors]
    return await _response(context, request, outcomes)


def _connection(context: RequestContext) -> int:
    """Return a number that no other connection of this agent or of another one has."""
    return 1 + (context.broker.node_id << 32 | context.connection.id & 0xFFFFFFFF)


async def _failure(context: RequestContext, group_id: str, result: CommitResult) -> int | None:
    """The error of all offsets; None: each has its own."""
    if result.refused is not None:
        return refusal_error(result.refused, context.api_version, VERSIONS)
    if result.error is GroupError.NONE:
        return None
    error = await fresh.group_error(context, group_id, result.error)
    if error is GroupError.GROUP_ID_NOT_FOUND:
        return ErrorCode.ILLEGAL_GENERATION
    if error is GroupError.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < LOADING_FROM:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error


async def _response(
    context: RequestContext, request: "TxnOffsetCommitRequest", outcomes: list[int]
) -> Entity:
    types, turns = response_types("txn_offset_commit", context.api_version), context.broker.turns
    errors = iter(outcomes)
    topics = ArrayWriter(types.TxnOffsetCommitResponseTopic)
    async for topic in turns.each(request.topics):
        answers = ArrayWriter(types.TxnOffsetCommitResponsePartition)
        async for partition in turns.each(topic.partitions):
            answers.add(partition_index=partition.partition_index, error_code=next(errors))
        topics.add(name=topic.name, partitions=answers.encoded())
    return build(types.TxnOffsetCommitResponse, topics=topics.encoded())
