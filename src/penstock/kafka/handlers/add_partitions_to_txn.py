"""AddPartitionsToTxn 0 to 5: put partitions into a transaction, before its records (KIP-98).

Versions 0 to 3 are clients'. From version 4 on a request is of Kafka's brokers among themselves,
about several transactions (KIP-890): they ask whether partitions are in one, or add them. They
need CLUSTER_ACTION on the cluster, and no permission for what they name, as in Kafka.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.access import OPEN, Access
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.transactions import ErrorVersions, refusal_error, seen_position, settle
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import EncodedParts
from penstock.kafka.wire.schema import build, response_types
from penstock.model.ids import PartitionKey, partition_key
from penstock.security.acl import Operation
from penstock.state.answers import Refusal, Refused
from penstock.state.transaction_commands import AddToTransaction

if TYPE_CHECKING:
    from types import ModuleType

    from kio.schema.add_partitions_to_txn.v3 import request as v3
    from kio.schema.add_partitions_to_txn.v5 import request as v5

    _Topics = Sequence[v3.AddPartitionsToTxnTopic | v5.AddPartitionsToTxnTopic]

VERSIONS: Final = ErrorVersions(fenced=2, abortable=5)


async def handle(
    context: RequestContext,
    request: "v3.AddPartitionsToTxnRequest | v5.AddPartitionsToTxnRequest",
) -> Answer:
    """Add partitions, those of a transaction all together; begin it where it isn't ongoing."""
    types = response_types("add_partitions_to_txn", context.api_version)
    if not hasattr(request, "transactions"):
        topics = await _answer(
            context,
            types,
            request.v3_and_below_topics,
            transactional_id=request.v3_and_below_transactional_id,
            producer=(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            verifies=False,
            access=context.access,
        )
        return build(types.AddPartitionsToTxnResponse, results_by_topic_v3_and_below=topics)
    results = ArrayWriter(types.AddPartitionsToTxnResult)
    refused = context.access.cluster(Operation.CLUSTER_ACTION)
    if refused:
        return build(
            types.AddPartitionsToTxnResponse,
            error_code=refused,
            results_by_transaction=results.encoded(),
        )
    async for one in context.broker.turns.each(request.transactions):
        topics = await _answer(
            context,
            types,
            one.topics,
            transactional_id=one.transactional_id,
            producer=(one.producer_id, one.producer_epoch),
            verifies=one.verify_only,
            access=OPEN,
        )
        results.add(transactional_id=one.transactional_id, topic_results=topics)
    return build(
        types.AddPartitionsToTxnResponse,
        error_code=ErrorCode.NONE,
        results_by_transaction=results.encoded(),
    )


async def _answer(
    context: RequestContext,
    types: "ModuleType",
    topics: "_Topics",
    *,
    transactional_id: str,
    producer: tuple[int, int],
    verifies: bool,
    access: Access,
) -> EncodedParts:
    """The results of one transaction's topics.

    Args:
        access: must allow what is named.
    """

    async def look(certainty: fresh.Certainty) -> list[PartitionKey | ErrorCode]:
        return await _find(context, topics, certainty, access)

    refused = access.transaction(Operation.WRITE, transactional_id)
    errors: list[ErrorCode]
    if refused:
        errors = [refused] * sum(len(topic.partitions) for topic in topics)
        return await _results(context, types, topics, errors)
    found = await fresh.settled(context, look)
    if verifies:
        errors = await _verify(context, found, transactional_id, producer)
    else:
        errors = await _add(context, found, transactional_id, producer)
    return await _results(context, types, topics, errors)


async def _results(
    context: RequestContext, types: "ModuleType", topics: "_Topics", errors: list[ErrorCode]
) -> EncodedParts:
    left = iter(errors)
    turns = context.broker.turns
    results = ArrayWriter(types.AddPartitionsToTxnTopicResult)
    async for topic in turns.each(topics):
        partitions = ArrayWriter(types.AddPartitionsToTxnPartitionResult)
        async for number in turns.each(topic.partitions):
            partitions.add(partition_index=number, partition_error_code=next(left))
        results.add(name=topic.name, results_by_partition=partitions.encoded())
    return results.encoded()


async def _find(
    context: RequestContext, topics: "_Topics", certainty: fresh.Certainty, access: Access
) -> list[PartitionKey | ErrorCode]:
    """The partitions' keys, in the request's order, or errors of those that don't exist or aren't
    the client's to write to."""
    view, turns = context.broker.view, context.broker.turns
    found: list[PartitionKey | ErrorCode] = []
    async for topic in turns.each(topics):
        refused = access.topic(Operation.WRITE, topic.name)
        known = view.topic(topic.name)
        async for number in turns.each(topic.partitions):
            if refused:
                found.append(refused)
            elif known is None or not 0 <= number < known.partitions:
                # Clients ask again at either.
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                found.append(certainty.no(code, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            else:
                found.append(partition_key(known.topic_key, number))
    return found


async def _add(
    context: RequestContext,
    found: list[PartitionKey | ErrorCode],
    transactional_id: str,
    producer: tuple[int, int],
) -> list[ErrorCode]:
    if any(isinstance(one, ErrorCode) for one in found):
        return [
            one if isinstance(one, ErrorCode) else ErrorCode.OPERATION_NOT_ATTEMPTED
            for one in found
        ]
    command = AddToTransaction(
        transactional_id=transactional_id,
        producer_id=producer[0],
        epoch=producer[1],
        partitions=[key for key in found if not isinstance(key, ErrorCode)],
        seen_position=seen_position(context),
    )
    settled = await settle(context, command, VERSIONS)
    return [settled if isinstance(settled, ErrorCode) else ErrorCode.NONE] * len(found)


async def _verify(
    context: RequestContext,
    found: list[PartitionKey | ErrorCode],
    transactional_id: str,
    producer: tuple[int, int],
) -> list[ErrorCode]:
    """Say which partitions are in a transaction that is ongoing, without a change."""
    if not await fresh.confirm(context):
        return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(found)
    await context.broker.log.let_queries_find()
    state = context.broker.log.queries()
    row = state.transaction(transactional_id)
    refused: Refused | None = None
    if row is None or row.producer_id != producer[0]:
        refused = Refused(Refusal.PRODUCER_ID_MISMATCH)
    elif row.epoch != producer[1]:
        refused = Refused(Refusal.FENCED_PRODUCER)
    if refused is not None:
        return [refusal_error(refused, context.api_version, VERSIONS)] * len(found)
    added = state.transaction_partitions(producer[0])
    missing = (
        ErrorCode.TRANSACTION_ABORTABLE
        if context.api_version >= VERSIONS.abortable
        else ErrorCode.INVALID_TXN_STATE
    )
    return [
        one if isinstance(one, ErrorCode) else ErrorCode.NONE if one in added else missing
        for one in found
    ]
