"""Transactions as Kafka's tools see them: the names of states, and who lists which.

The state machine here has fewer states: an end is one entry, so that nothing is ever being prepared
(docs/transactions.md).
"""

import logging
from collections.abc import Callable
from typing import Final

from penstock.kafka.nodes import Nodes
from penstock.model.errors import RetryableError
from penstock.placement.rendezvous import owner_of
from penstock.state.transactions import Transaction, TransactionState
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

STATE_NAMES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.COMMITTED: "CompleteCommit",
    TransactionState.ABORTED: "CompleteAbort",
}
KNOWN_NAMES: Final = frozenset(
    {*STATE_NAMES.values(), "PrepareCommit", "PrepareAbort", "PrepareEpochFence", "Dead"}
)
"""The names by which clients may filter."""
NO_TIME: Final = -1


def begun_ms(row: Transaction) -> int:
    """Journal time at which the open transaction began; NO_TIME: none is open."""
    return row.changed_ms if row.state is TransactionState.ONGOING else NO_TIME


def note_away(error: RetryableError) -> None:
    """Take note of a look at transactions that can't be had now; clients ask again."""
    heard(Cause.TRANSACTION, error, logger, "transactions can't be looked at now")


def lister(nodes: Nodes, me: int) -> Callable[[str], bool]:
    """Return what says whether this broker lists a transactional id. Any broker coordinates any;
    tools ask all of them, and each is to be listed once."""
    ids = [node.node_id for node in nodes.all()]
    if len(ids) <= 1:
        return lambda _: True
    return lambda transactional_id: owner_of(transactional_id.encode(), ids) == me
