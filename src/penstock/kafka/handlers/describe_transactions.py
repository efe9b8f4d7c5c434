"""DescribeTransactions 0 (KIP-664): state, time-out, producer and partitions of transactional ids.

Any broker answers for any id. An end is one entry of the journal, so that no state but Empty,
Ongoing, CompleteCommit and CompleteAbort is ever seen, and a start time only of what is ongoing. An
id that is named more than once is answered once. Answers are of the present.
"""

from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Final

from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.outcomes import CHEAP
from penstock.kafka.transaction_states import NO_TIME, STATE_NAMES, begun_ms, note_away
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.encode import EncodedParts
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey, partition_of, topic_key_of
from penstock.model.topic_names import NAME_LENGTH_MAX
from penstock.security.acl import Operation
from penstock.state.transactions import Transaction

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest

STATE_BYTES: Final = 60
PARTITION_BYTES: Final = 4
IDS_AT_ONCE: Final = 250
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NOTHING: Final = {
    "transaction_state": "",
    "transaction_timeout": timedelta(0),
    "transaction_start_time": _EPOCH,
    "producer_id": 0,
    "producer_epoch": 0,
    "topics": (),
}
"""The fields of an id with an error, as Kafka leaves them."""


async def handle(context: RequestContext, request: "DescribeTransactionsRequest") -> Answer:
    """Look all ids up."""
    types = response_types("describe_transactions", context.api_version)
    ids: list[str] = list(dict.fromkeys(request.transactional_ids))
    access, refused = context.access, dict[str, ErrorCode]()
    async for name in context.broker.turns.each(ids):
        error = access.transaction(Operation.DESCRIBE, name)
        if error:
            refused[name] = error
    known = await _known(context, [name for name in ids if name not in refused])
    waiting = context.reserve_answer(await _bound(context, ids, known))
    if waiting is not None:
        return waiting
    states = ArrayWriter(types.TransactionState)
    async for name in context.broker.turns.each(ids):
        state = (
            NOTHING | {"error_code": refused[name]}
            if name in refused
            else await _state(context, types, name, known)
        )
        states.add(transactional_id=name, **state)
    return build(types.DescribeTransactionsResponse, transaction_states=states.encoded())


async def _known(context: RequestContext, ids: list[str]) -> dict[str, Transaction | None] | None:
    """The transactions by id; None: nothing can be known now."""
    if not await fresh.confirm(context):
        return None
    reads = context.broker.log.transaction_reads
    found: dict[str, Transaction | None] = {}
    try:
        for start in range(0, len(ids), IDS_AT_ONCE):
            some = ids[start : start + IDS_AT_ONCE]
            found.update(zip(some, await reads.find(some), strict=True))
    except RetryableError as error:
        note_away(error)
        return None
    return found


async def _bound(
    context: RequestContext, ids: list[str], known: dict[str, Transaction | None] | None
) -> int:
    """The most bytes of the answer."""
    found = BASE_BYTES
    async for name in context.broker.turns.each(ids):
        found += STATE_BYTES + text_bytes(name)
        row = known.get(name) if known else None
        if row is not None:
            # At most as many topics as partitions.
            found += row.added * (PARTITION_BYTES + 5 + NAME_LENGTH_MAX)
    return found


async def _state(
    context: RequestContext,
    types: ModuleType,
    name: str,
    known: dict[str, Transaction | None] | None,
) -> dict[str, object]:
    if not name:
        return NOTHING | {"error_code": ErrorCode.INVALID_REQUEST}
    if known is None:
        return NOTHING | {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    row = known[name]
    if row is None:
        return NOTHING | {"error_code": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
    start_ms = begun_ms(row)
    partitions: list[PartitionKey] = []
    if row.added:
        try:
            _, first_offsets = await context.broker.log.transaction_reads.of_producer(
                row.producer_id
            )
        except RetryableError as error:
            note_away(error)
            return NOTHING | {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        # What was added since its bytes were reserved is left out.
        partitions = list(first_offsets)[: row.added]
    return {
        "error_code": ErrorCode.NONE,
        "transaction_state": STATE_NAMES[row.state],
        "transaction_timeout": timedelta(milliseconds=row.timeout_ms),
        "transaction_start_time": None
        if start_ms == NO_TIME
        else _EPOCH + timedelta(milliseconds=start_ms),
        "producer_id": row.producer_id,
        "producer_epoch": row.epoch,
        "topics": await _topics(context, types, partitions),
    }


async def _topics(
    context: RequestContext, types: ModuleType, partitions: list[PartitionKey]
) -> EncodedParts:
    """Partitions by topic, in order; those whose topic was deleted, or that the client may not
    describe, are left out."""
    view, turns = context.broker.view, context.broker.turns
    by_topic: dict[str, list[int]] = {}
    for key in partitions:
        topic = view.topic_by_key(topic_key_of(key))
        if topic is not None and not context.access.topic(Operation.DESCRIBE, topic.name):
            by_topic.setdefault(topic.name, []).append(partition_of(key))
    if turns.spend(len(partitions) // CHEAP):
        await turns.wait()
    topics = ArrayWriter(types.TopicData)
    async for name in turns.in_order(list(by_topic)):
        topics.add(topic=name, partitions=tuple(by_topic[name]))
    return topics.encoded()
