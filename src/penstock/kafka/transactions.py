"""The APIs of transactions have this in common: whether they are served, their commands, and
Kafka's errors by version.

docs/transactions.md has the table of refusals that this module puts into practice.
"""

from typing import Final

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, refusal_code
from penstock.records.batch import BatchError, BatchFault
from penstock.state.answers import Refusal
from penstock.state.commands import ADDS_ITSELF, TRANSACTIONAL
from penstock.state.read.view import StateView
from penstock.state.schema import TRANSACTIONS_LEVEL

PRODUCE_ADDS_FROM: Final = 12
"""The version of Produce from which on a batch adds its partition to the transaction (KIP-890)."""
PRODUCE_ABORTABLE_FROM: Final = 11
NO_TRANSACTIONAL_ID: Final = -1


def serves_transactions(view: StateView) -> bool:
    """Whether the feature level of transactions is on."""
    return view.feature_level >= TRANSACTIONS_LEVEL


def produce_bits(context: RequestContext, transactional_id: str | None) -> int:
    """Return what the journal has above the epoch of a transactional batch; NO_TRANSACTIONAL_ID:
    the request is refused.

    Raises:
        BatchError: TRANSACTION: the feature level is not on.
    """
    view = context.broker.view
    if not serves_transactions(view):
        raise BatchError(
            BatchFault.TRANSACTION,
            f"transactions need feature level {TRANSACTIONS_LEVEL}, {view.feature_level} is on: "
            "upgrade the agents that know less",
        )
    if not transactional_id:
        return NO_TRANSACTIONAL_ID
    return (
        TRANSACTIONAL | ADDS_ITSELF if context.api_version >= PRODUCE_ADDS_FROM else TRANSACTIONAL
    )


def produce_error(refusal: Refusal, version: int) -> ErrorCode:
    """The error of a refused batch, as a partition's leader answers it."""
    if refusal is Refusal.PRODUCER_ID_MISMATCH:
        return ErrorCode.INVALID_TXN_STATE
    if version >= PRODUCE_ABORTABLE_FROM and refusal in (
        Refusal.INVALID_TRANSACTION_STATE,
        Refusal.TRANSACTION_TOO_LARGE,
    ):
        return ErrorCode.TRANSACTION_ABORTABLE
    return refusal_code(refusal)
