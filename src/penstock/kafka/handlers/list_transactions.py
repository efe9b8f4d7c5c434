"""ListTransactions 0 to 2 (KIP-664): transactional ids; filtered by state and producer id, by
duration from version 1 on (KIP-994), by a regular expression from version 2 on (KIP-1152).

Any broker coordinates any id, and tools ask all brokers: each lists those that rendezvous hashing
gives it among the live ones. As in Kafka an id that has had no transaction yet passes any duration,
since it has no start time. Where the last transaction has ended, its end counts as its start.
"""

from typing import TYPE_CHECKING, Final

from penstock.groups.consumer.catalog import compiled_regex
from penstock.kafka import confirmed as fresh
from penstock.kafka.answer_bounds import BASE_BYTES, text_bytes
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode
from penstock.kafka.long_answer import Answer
from penstock.kafka.transaction_states import KNOWN_NAMES, STATE_NAMES, lister, note_away
from penstock.kafka.wire.arrays import ArrayWriter
from penstock.kafka.wire.schema import build, response_types
from penstock.model.errors import RetryableError
from penstock.security.acl import Operation
from penstock.state.transactions import Transaction, TransactionState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kio.schema.list_transactions.v2.request import ListTransactionsRequest

ROW_BYTES: Final = 32
PAGE_ROWS: Final = 500
MATCH_COST: Final = 2
"""The cost of a match of a short id, in items."""


async def handle(context: RequestContext, request: "ListTransactionsRequest") -> Answer:
    """List what passes all filters; no filter passes all."""
    types = response_types("list_transactions", context.api_version)
    pattern = request.transactional_id_pattern
    if pattern and compiled_regex(pattern) is None:
        return build(
            types.ListTransactionsResponse,
            error_code=ErrorCode.INVALID_REGULAR_EXPRESSION,
            unknown_state_filters=(),
            transaction_states=(),
        )
    named = dict.fromkeys(request.state_filters)
    unknown = tuple(name for name in named if name not in KNOWN_NAMES)
    error = ErrorCode.NONE
    listed = ArrayWriter(types.TransactionState)
    if not await fresh.confirm(context):
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    else:
        passes = _filter(context, request)
        try:
            bound = BASE_BYTES + sum(map(text_bytes, unknown))
            async for row in _rows(context, passes):
                bound += ROW_BYTES + text_bytes(row.transactional_id)
            waiting = context.reserve_answer(bound)
            if waiting is not None:
                return waiting
            async for row in _rows(context, passes):
                bound -= ROW_BYTES + text_bytes(row.transactional_id)
                if bound < BASE_BYTES:
                    break  # ids that are new since: as if they had come a moment later
                listed.add(
                    transactional_id=row.transactional_id,
                    producer_id=row.producer_id,
                    transaction_state=STATE_NAMES[row.state],
                )
        except RetryableError as failure:
            note_away(failure)
            error, listed = (
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                ArrayWriter(types.TransactionState),
            )
    return build(
        types.ListTransactionsResponse,
        error_code=error,
        unknown_state_filters=unknown,
        transaction_states=listed.encoded(),
    )


def _filter(
    context: RequestContext, request: "ListTransactionsRequest"
) -> "Callable[[Transaction], bool]":
    states = frozenset(request.state_filters)
    producers = frozenset(request.producer_id_filters)
    longer_ms = request.duration_filter
    pattern = compiled_regex(text) if (text := request.transactional_id_pattern) else None
    is_mine = lister(context.broker.nodes, context.broker.node_id)
    now_ms = context.broker.clock.now_ms()
    access = context.access

    def passes(row: Transaction) -> bool:
        return (
            (not states or STATE_NAMES[row.state] in states)
            and (not producers or row.producer_id in producers)
            and (
                longer_ms < 0
                or row.state is TransactionState.EMPTY
                or now_ms - row.changed_ms > longer_ms
            )
            and is_mine(row.transactional_id)
            and (pattern is None or pattern.fullmatch(row.transactional_id) is not None)
            and not access.transaction(Operation.DESCRIBE, row.transactional_id)
        )

    return passes


async def _rows(
    context: RequestContext, passes: "Callable[[Transaction], bool]"
) -> "AsyncIterator[Transaction]":
    turns, after = context.broker.turns, -1
    while page := await context.broker.log.transaction_reads.page(after, limit=PAGE_ROWS):
        async for row in turns.each(page, cost=MATCH_COST):
            if passes(row):
                yield row
        after = page[-1].producer_id
