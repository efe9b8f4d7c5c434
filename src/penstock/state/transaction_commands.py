"""The commands about transactions, which the journal orders. Pure.

See docs/transactions.md and docs/formats/journal.md, "Transactions". All are of TRANSACTIONS_LEVEL.
"""

from typing import Final

from penstock.state.command import Command, OffsetWrite

ITEMS_MAX: Final = 1_000
"""Transactions that one AbortTransactions or ExpireTransactions may name."""
NOT_SEEN: Final = -1
"""`seen_position` of protocol V2, whose epochs tell late requests apart."""


class InitTransaction(Command, frozen=True, tag="txn+"):
    """Give a transactional id its producer id and its next epoch; what is open of it is aborted.

    Answer: TransactionSettled, or Refused (PRODUCER_ID_MISMATCH, FENCED_PRODUCER, MALFORMED).
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = -1
    """The producer id and epoch that the producer has (KIP-360); -1: it has none."""
    epoch: int = -1


class AddToTransaction(Command, frozen=True, tag="txn<"):
    """Add partitions and groups to a transaction; begin one where none is ongoing.

    Answer: TransactionSettled, or Refused (PRODUCER_ID_MISMATCH, FENCED_PRODUCER, STALE_CONNECTION,
    UNKNOWN_PARTITION, TRANSACTION_TOO_LARGE): nothing was added.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[int]
    groups: list[str] = []
    seen_position: int = NOT_SEEN
    """The greatest position that the connection is known to have seen (docs/transactions.md, "Late
    requests")."""


class CommitToTransaction(Command, frozen=True, tag="txn@"):
    """Keep offsets of a group until the transaction ends. `adds_group`: begin a transaction, and
    add the group to it, as AddToTransaction does (protocol V2).

    Answer: OffsetsCommitted, or Refused (STALE_SHARD, PRODUCER_ID_MISMATCH, FENCED_PRODUCER,
    STALE_CONNECTION, OTHER_CONNECTION, INVALID_TRANSACTION_STATE, TRANSACTION_TOO_LARGE,
    MALFORMED).
    """

    transactional_id: str
    producer_id: int
    epoch: int
    group_id: str
    offsets: list[OffsetWrite]
    shard_epoch: int = 0
    adds_group: bool = False
    seen_position: int = NOT_SEEN
    connection: int = 0
    """Identifies the connection among those of all agents; 0: nothing does, so that a late one is
    always refused (docs/transactions.md, "Late requests")."""


class EndTransaction(Command, frozen=True, tag="txn-"):
    """End a transaction for all its partitions and group offsets. `bumps`: with a new epoch
    (protocol V2).

    Answer: TransactionSettled, also where the same end is asked for again, or Refused
    (PRODUCER_ID_MISMATCH, FENCED_PRODUCER, STALE_CONNECTION, INVALID_TRANSACTION_STATE).
    """

    transactional_id: str
    producer_id: int
    epoch: int
    commits: bool
    bumps: bool = False
    seen_position: int = NOT_SEEN


class AbortTransactions(Command, frozen=True, tag="txn!"):
    """Abort transactions that have timed out, or that an operator names, with new epochs.

    `items`: transactional id, producer id, epoch, since. One that has changed is passed over.
    Answer: TransactionsAborted, or Refused(MALFORMED) where there are more than ITEMS_MAX.
    """

    items: list[tuple[str, int, int, int]]
    timed_out: bool = False
    """Pass over those whose time-out has not passed at the entry's journal time, whatever the clock
    of the proposer says."""


class ExpireTransactions(Command, frozen=True, tag="txn/"):
    """Forget transactional ids that haven't been used for long. `items`: transactional id, producer
    id, epoch, journal time of its last change. One that has changed, or is ongoing, stays. Answer:
    Done, or Refused(MALFORMED) where there are more than ITEMS_MAX."""

    items: list[tuple[str, int, int, int]]
