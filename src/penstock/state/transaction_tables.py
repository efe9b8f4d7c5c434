"""The tables of transactions, written through, with a cache of what is read for each batch.

Everything here is written by SQL at once, so the tables are always true. What is read again and
again is kept: a transactional id's row, and the partitions of an open transaction.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.state.command import OffsetWrite
from penstock.state.transactions import NO_OPEN, Transaction, TransactionState

TRANSACTIONS_CACHED_MAX: Final = 10_000

SELECT_TRANSACTIONS: Final = (
    "SELECT producer_id, transactional_id, epoch, last_epoch, last_producer_id, state, timeout_ms,"
    " changed_position, changed_ms, added, offsets FROM transactions"
)
IS_ONGOING: Final = f"state = {TransactionState.ONGOING.value}"
"""No parameter, since the index of what is ongoing is partial."""
_STATE: Final = 5
_SAVE: Final = (
    "INSERT INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (producer_id) DO UPDATE SET epoch = excluded.epoch,"
    " last_epoch = excluded.last_epoch, last_producer_id = excluded.last_producer_id,"
    " state = excluded.state, timeout_ms = excluded.timeout_ms,"
    " changed_position = excluded.changed_position, changed_ms = excluded.changed_ms,"
    " added = excluded.added, offsets = excluded.offsets"
)
# By the index, its least entry: a partition may have many open transactions.
_LEAST_OPEN: Final = (
    "(SELECT first_offset FROM transaction_partitions AS other"
    " WHERE other.partition_key = {key} AND other.first_offset >= 0 {others}"
    " ORDER BY first_offset LIMIT 1)"
)
_FIRST_OPEN: Final = "SELECT " + _LEAST_OPEN.format(key="?", others="")
_LEAST_OTHER: Final = _LEAST_OPEN.format(
    key="mine.partition_key", others="AND other.producer_id <> mine.producer_id"
)
_WRITTEN: Final = (
    f"SELECT partition_key, first_offset, {_LEAST_OTHER} FROM transaction_partitions AS mine"  # noqa: S608
    " WHERE producer_id = ? AND first_offset >= 0 ORDER BY partition_key"
)
# The WHERE keeps the parser from taking ON CONFLICT for a join's condition.
_SETTLE_OFFSETS: Final = (
    "INSERT INTO group_offsets SELECT p.group_id, p.topic_id, p.partition, p.committed_offset,"
    " p.leader_epoch, p.metadata, p.commit_ms FROM pending_offsets AS p"
    " JOIN topics USING (topic_id) WHERE p.producer_id = ?"
    " ON CONFLICT (group_id, topic_id, partition) DO UPDATE SET"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_ms = excluded.commit_ms"
    " WHERE excluded.commit_ms >= group_offsets.commit_ms"
)
_NEW_PENDING: Final = (
    "INSERT INTO pending_offsets VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (producer_id, group_id, topic_id, partition) DO UPDATE SET"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_ms = excluded.commit_ms"
)


class TransactionTables:
    """Rows of transactions over one connection, inside the replica's transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._execute = connection.execute
        self._executemany = connection.executemany
        self.forget()

    def forget(self) -> None:
        """Drop all that is in memory."""
        self._rows: dict[int, Transaction] = {}
        self._partitions: dict[int, dict[int, int]] = {}
        """First offsets by partition key, by producer id, of open transactions."""

    def bound(self) -> None:
        """Keep memory bounded."""
        if len(self._rows) > TRANSACTIONS_CACHED_MAX:
            self.forget()
        elif sum(map(len, self._partitions.values())) > TRANSACTIONS_CACHED_MAX:
            self._partitions.clear()

    # -- transactional ids ---------------------------------------------------------------------

    def of_producer(self, producer_id: int) -> Transaction | None:
        """The row of a producer id."""
        known = self._rows.get(producer_id)
        if known is None:
            known = self._load(f"{SELECT_TRANSACTIONS} WHERE producer_id = ?", producer_id)
        return known

    def of_id(self, transactional_id: str) -> Transaction | None:
        """The row of a transactional id."""
        return self._load(f"{SELECT_TRANSACTIONS} WHERE transactional_id = ?", transactional_id)

    def save(self, row: Transaction) -> None:
        """Insert or update."""
        self._rows[row.producer_id] = row
        self._execute(
            _SAVE,
            (
                row.producer_id,
                row.transactional_id,
                row.epoch,
                row.last_epoch,
                row.last_producer_id,
                row.state,
                row.timeout_ms,
                row.since,
                row.changed_ms,
                row.added,
                row.offsets,
            ),
        )

    def remove(self, row: Transaction) -> None:
        """Delete a row; nothing may be open of it."""
        self._rows.pop(row.producer_id, None)
        self._execute("DELETE FROM transactions WHERE producer_id = ?", (row.producer_id,))

    def ongoing(self) -> list[Transaction]:
        """All that are ongoing, by producer id."""
        return [
            transaction_of_row(found)
            for found in self._execute(
                f"{SELECT_TRANSACTIONS} WHERE {IS_ONGOING} ORDER BY producer_id"
            ).fetchall()
        ]

    def _load(self, statement: str, value: int | str) -> Transaction | None:
        found = self._execute(statement, (value,)).fetchone()
        if found is None:
            return None
        row = self._rows[found[0]] = transaction_of_row(found)
        return row

    # -- what is in one ------------------------------------------------------------------------

    def partitions(self, producer_id: int) -> dict[int, int]:
        """First offsets of a transaction by partition key; NO_OPEN: it has no record there."""
        known = self._partitions.get(producer_id)
        if known is None:
            known = self._partitions[producer_id] = dict(
                self._execute(
                    "SELECT partition_key, first_offset FROM transaction_partitions"
                    " WHERE producer_id = ?",
                    (producer_id,),
                )
            )
        return known

    def set_first_offsets(self, producer_id: int, keys: Iterable[int], first_offset: int) -> None:
        """Add partitions, or note where the transaction's first record in them is."""
        known = self.partitions(producer_id)
        rows = [(producer_id, key, first_offset) for key in keys]
        known.update((key, first_offset) for _, key, _ in rows)
        self._executemany("INSERT OR REPLACE INTO transaction_partitions VALUES (?, ?, ?)", rows)

    def is_written(self, producer_id: int, key: int) -> bool:
        """Whether a producer has an open transaction with records in a partition."""
        return (
            self._execute(
                "SELECT 1 FROM transaction_partitions"
                " WHERE producer_id = ? AND partition_key = ? AND first_offset >= 0",
                (producer_id, key),
            ).fetchone()
            is not None
        )

    def first_open(self, key: int) -> int:
        """The least first offset of what is open in a partition; NO_OPEN: nothing is."""
        (first,) = self._execute(_FIRST_OPEN, (key,)).fetchone()
        return NO_OPEN if first is None else first

    def written(self, producer_id: int) -> list[tuple[int, int, int | None]]:
        """The partitions that have records of a transaction, by key: key, first offset, and the
        least first offset of other transactions that are open there."""
        return self._execute(_WRITTEN, (producer_id,)).fetchall()

    def groups_missing(self, producer_id: int, groups: Sequence[str]) -> list[str]:
        """Return those of some groups that are not in a transaction."""
        return [
            group_id
            for group_id in dict.fromkeys(groups)
            if self._execute(
                "SELECT 1 FROM transaction_groups WHERE producer_id = ? AND group_id = ?",
                (producer_id, group_id),
            ).fetchone()
            is None
        ]

    def add_groups(self, producer_id: int, groups: Sequence[str]) -> None:
        """Add groups that are not in it."""
        self._executemany(
            "INSERT INTO transaction_groups VALUES (?, ?, 0)",
            [(producer_id, group_id) for group_id in groups],
        )

    def group_connection(self, producer_id: int, group_id: str) -> int:
        """Return the connection by which offsets of a group came, that was older than the
        transaction; 0: none came; `YOUNGER`: they came by younger ones alone."""
        (found,) = self._execute(
            "SELECT connection FROM transaction_groups WHERE producer_id = ? AND group_id = ?",
            (producer_id, group_id),
        ).fetchone()
        return int(found)

    def set_group_connection(self, producer_id: int, group_id: str, connection: int) -> None:
        """Note by which connection offsets of a group have come."""
        self._execute(
            "UPDATE transaction_groups SET connection = ? WHERE producer_id = ? AND group_id = ?",
            (connection, producer_id, group_id),
        )

    def new_offset_count(
        self, producer_id: int, group_id: str, offsets: Sequence[OffsetWrite]
    ) -> int:
        """Count the offsets that are of partitions for which none is pending."""
        return sum(
            self._execute(
                "SELECT 1 FROM pending_offsets WHERE producer_id = ? AND group_id = ?"
                " AND topic_id = ? AND partition = ?",
                (producer_id, group_id, *place),
            ).fetchone()
            is None
            for place in {(write.topic_id, write.partition) for write in offsets}
        )

    def add_offsets(
        self, producer_id: int, group_id: str, offsets: Sequence[OffsetWrite], commit_ms: int
    ) -> None:
        """Keep offsets until the end."""
        self._executemany(
            _NEW_PENDING,
            [
                (
                    producer_id,
                    group_id,
                    write.topic_id,
                    write.partition,
                    write.offset,
                    write.leader_epoch,
                    write.metadata,
                    commit_ms,
                )
                for write in offsets
            ],
        )

    def pending_groups(self, producer_id: int) -> list[str]:
        """Groups that offsets are pending for."""
        return [
            group_id
            for (group_id,) in self._execute(
                "SELECT DISTINCT group_id FROM pending_offsets WHERE producer_id = ?"
                " ORDER BY group_id",
                (producer_id,),
            )
        ]

    def has_pending(self, group_id: str) -> bool:
        """Whether an open transaction has offsets of a group."""
        return (
            self._execute(
                "SELECT 1 FROM pending_offsets WHERE group_id = ? LIMIT 1", (group_id,)
            ).fetchone()
            is not None
        )

    def drop_pending(self, group_id: str, items: Iterable[tuple[bytes, int]] | None = None) -> None:
        """Forget what is pending for a group, or for some partitions (topic id, partition) of it:
        the group's offsets were deleted."""
        if not self.has_pending(group_id):
            return
        dropped: Counter[int] = Counter()
        if items is None:
            for producer_id, count in self._execute(
                "SELECT producer_id, count(*) FROM pending_offsets WHERE group_id = ?"
                " GROUP BY producer_id",
                (group_id,),
            ):
                dropped[producer_id] = count
            self._execute("DELETE FROM pending_offsets WHERE group_id = ?", (group_id,))
        else:
            place = "group_id = ? AND topic_id = ? AND partition = ?"
            for item in items:
                dropped.update(
                    found[0]
                    for found in self._execute(
                        f"SELECT producer_id FROM pending_offsets WHERE {place}",  # noqa: S608
                        (group_id, *item),
                    )
                )
                self._execute(
                    f"DELETE FROM pending_offsets WHERE {place}",  # noqa: S608
                    (group_id, *item),
                )
        for producer_id, count in sorted(dropped.items()):
            row = self.of_producer(producer_id)
            assert row is not None, producer_id
            self.save(replace(row, offsets=row.offsets - count))

    def settle_offsets(self, producer_id: int) -> None:
        """Make pending offsets the groups' own; what `Tables` has in memory was flushed."""
        self._execute(_SETTLE_OFFSETS, (producer_id,))

    def add_aborted(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Rows of `aborted`."""
        self._executemany("INSERT INTO aborted VALUES (?, ?, ?, ?, ?)", rows)

    def forget_aborted(self, key: int, markers: Sequence[int]) -> None:
        """Delete rows of `aborted` of a partition by their markers."""
        self._executemany(
            "DELETE FROM aborted WHERE partition_key = ? AND marker_offset = ?",
            [(key, marker) for marker in markers],
        )

    def clear(self, row: Transaction) -> None:
        """Delete what is in a transaction."""
        self._partitions.pop(row.producer_id, None)
        for table in ("transaction_partitions", "transaction_groups", "pending_offsets"):
            self._execute(
                f"DELETE FROM {table} WHERE producer_id = ?",  # noqa: S608
                (row.producer_id,),
            )


def transaction_of_row(found: Sequence[Any]) -> Transaction:
    """Read a row of SELECT_TRANSACTIONS."""
    values = list(found)
    values[_STATE] = TransactionState(values[_STATE])
    return Transaction(*values)
