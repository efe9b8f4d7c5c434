"""The APIs of transactions have this in common: whether they are served, their commands, and
Kafka's errors by version.

docs/transactions.md has the table of refusals that this module puts into practice.
"""

import logging
from typing import Final, NamedTuple

from penstock.kafka.context import RequestContext
from penstock.kafka.errors import ErrorCode, error_code, refusal_code
from penstock.model.errors import FencedError, PenstockError, RetryableError
from penstock.records.batch import BatchError, BatchFault
from penstock.state.answers import Refusal, Refused, TransactionSettled
from penstock.state.commands import ADDS_ITSELF, TRANSACTIONAL, AnyCommand
from penstock.state.read.view import StateView
from penstock.state.schema import TRANSACTIONS_LEVEL
from penstock.state.transaction_commands import NOT_SEEN
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

PRODUCE_ADDS_FROM: Final = 12
"""The version of Produce from which on a batch adds its partition to the transaction (KIP-890)."""
PRODUCE_ABORTABLE_FROM: Final = 11
NO_TRANSACTIONAL_ID: Final = -1


class ErrorVersions(NamedTuple):
    """From which version on an API's clients know an error; before it they get an older one."""

    fenced: int
    """PRODUCER_FENCED rather than INVALID_PRODUCER_EPOCH (KIP-588)."""
    abortable: int
    """TRANSACTION_ABORTABLE rather than INVALID_TXN_STATE (KIP-890)."""


class LateRequestError(RetryableError):
    """A request by a connection that is older than the transaction it is about: it gets no answer,
    and its connection is closed. A living client sends it again by another one."""


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


def seen_position(context: RequestContext, *, raises_epochs: bool = False) -> int:
    """Return the `seen_position` of a command. `raises_epochs`: the request is of protocol V2."""
    return NOT_SEEN if raises_epochs else context.connection.seen_position


async def settle(
    context: RequestContext, command: AnyCommand, versions: ErrorVersions
) -> TransactionSettled | ErrorCode:
    """Commit a command about a transactional id; its answer, or the error for the client. The
    connection has seen what is answered.

    Raises:
        LateRequestError: the connection is to be closed.
    """
    try:
        (answer,) = await context.broker.committer.commit([command])
    except PenstockError as error:
        heard(Cause.TRANSACTION, error, logger, "a transaction's request was not served")
        if isinstance(error, FencedError):
            return ErrorCode.NOT_COORDINATOR
        # Any agent is a coordinator: clients look for one, and ask again.
        is_retried = isinstance(error, RetryableError)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_retried else error_code(error)
    if isinstance(answer, TransactionSettled):
        context.connection.saw(answer.since)
        return answer
    assert isinstance(answer, Refused), answer
    return refusal_error(answer, context.api_version, versions)


def refusal_error(refused: Refused, version: int, versions: ErrorVersions) -> ErrorCode:
    """The error of a refused command about a transactional id, by the request's version.

    Raises:
        LateRequestError: the connection is to be closed.
    """
    reason = refused.reason
    if reason is Refusal.STALE_CONNECTION:
        raise LateRequestError("serve", "a transaction's request", refused.detail)
    if reason is Refusal.FENCED_PRODUCER and version >= versions.fenced:
        return ErrorCode.PRODUCER_FENCED
    if reason is Refusal.TRANSACTION_TOO_LARGE and version >= versions.abortable:
        return ErrorCode.TRANSACTION_ABORTABLE
    if reason is Refusal.MALFORMED:
        return ErrorCode.INVALID_REQUEST
    return refusal_code(reason)
