"""Questions to the state about transactions.

A part of `Queries`, by inheritance. A file of a version that has no such tables answers as one
where they are empty.
"""

from typing import Any, Final

import msgspec

from penstock.model.ids import PartitionKey
from penstock.state.read.connection import Parameters, StateConnection
from penstock.state.rows import OffsetRow
from penstock.state.transaction_tables import IS_ONGOING, SELECT_TRANSACTIONS, transaction_of_row
from penstock.state.transactions import AbortedRange, Transaction

_ABORTED: Final = (
    "SELECT producer_id, first_offset, marker_offset, last_stable FROM aborted"
    " WHERE partition_key = ? AND marker_offset >= ? ORDER BY marker_offset LIMIT ?"
)
# The first whose last stable offset is past the end is the last that may matter: what began before
# the end, and was aborted later, would have held the last stable offset back.
_ABORTED_BETWEEN: Final = (
    "SELECT producer_id, first_offset, marker_offset, last_stable FROM aborted"
    " WHERE partition_key = :key AND marker_offset BETWEEN :start AND coalesce("
    "(SELECT marker_offset FROM aborted WHERE partition_key = :key AND marker_offset >= :start"
    " AND last_stable >= :end ORDER BY marker_offset LIMIT 1), :newest)"
    " AND first_offset < :end ORDER BY marker_offset"
)
_NEWEST: Final = 2**63 - 1


class TransactionQueries(StateConnection):
    """See the module."""

    def transaction(self, transactional_id: str) -> Transaction | None:
        """One transactional id."""
        rows = self._of_transactions(
            f"{SELECT_TRANSACTIONS} WHERE transactional_id = ?", (transactional_id,)
        )
        return transaction_of_row(rows[0]) if rows else None

    def transaction_of_producer(self, producer_id: int) -> Transaction | None:
        """The transactional id that has a producer id now."""
        rows = self._of_transactions(f"{SELECT_TRANSACTIONS} WHERE producer_id = ?", (producer_id,))
        return transaction_of_row(rows[0]) if rows else None

    def transactions_page(self, after: int, *, limit: int) -> list[Transaction]:
        """A page of all transactional ids by producer id, past `after` (-1 to begin)."""
        rows = self._of_transactions(
            f"{SELECT_TRANSACTIONS} WHERE producer_id > ? ORDER BY producer_id LIMIT ?",
            (after, limit),
        )
        return [transaction_of_row(row) for row in rows]

    def timed_out_transactions(self, time_ms: int, *, limit: int) -> list[Transaction]:
        """Ongoing transactions whose time-out has passed at a journal time, the oldest first."""
        rows = self._of_transactions(
            f"{SELECT_TRANSACTIONS} WHERE {IS_ONGOING} AND changed_ms + timeout_ms <= ?"
            " ORDER BY changed_ms, producer_id LIMIT ?",
            (time_ms, limit),
        )
        return [transaction_of_row(row) for row in rows]

    def transaction_partitions(self, producer_id: int) -> dict[PartitionKey, int]:
        """First offsets of an open transaction by partition; -1: it has no record there."""
        return dict(
            self._of_transactions(
                "SELECT partition_key, first_offset FROM transaction_partitions"
                " WHERE producer_id = ? ORDER BY partition_key",
                (producer_id,),
            )
        )

    def group_configs(self) -> dict[str, dict[str, str]]:
        """Configs of the groups that have some, by group id: a table of the same version."""
        decode = msgspec.json.Decoder(dict[str, str]).decode
        rows = self._of_transactions(
            "SELECT group_id, configs FROM group_configs ORDER BY group_id"
        )
        return {group_id: decode(configs) for group_id, configs in rows}

    def first_open(self) -> dict[PartitionKey, int]:
        """The least first offset of what is open, of each partition where something is."""
        return dict(
            self._of_transactions(
                "SELECT partition_key, min(first_offset) FROM transaction_partitions"
                " WHERE first_offset >= 0 GROUP BY partition_key"
            )
        )

    def open_in_partition(self, key: PartitionKey) -> dict[int, int]:
        """First offsets of the transactions that are open in a partition, by producer id."""
        return dict(
            self._of_transactions(
                "SELECT producer_id, first_offset FROM transaction_partitions"
                " WHERE partition_key = ? AND first_offset >= 0",
                (key,),
            )
        )

    def last_aborted(self) -> dict[PartitionKey, int]:
        """The offset of the last marker of an abort, of each partition that has one."""
        return dict(
            self._of_transactions(
                "SELECT partition_key, max(marker_offset) FROM aborted GROUP BY partition_key"
            )
        )

    def is_abort_known(self, key: PartitionKey, marker_offset: int) -> bool:
        """Whether the state has an abort, by its marker, or is of a later time: the marker's offset
        was cleaned since, and the abort may be forgotten."""
        return bool(
            self._of_transactions(
                "SELECT 1 FROM aborted WHERE partition_key = :key AND marker_offset = :marker"
                " UNION ALL SELECT 1 FROM clean WHERE partition_key = :key AND clean_end > :marker",
                {"key": key, "marker": marker_offset},
            )
        )

    def aborted_between(self, key: PartitionKey, start: int, end: int) -> list[AbortedRange]:
        """Aborted transactions that a reader of committed records in [start, end) needs to know.

        Source: Kafka's TransactionIndex.collectAbortedTxns.
        """
        rows = self._of_transactions(
            _ABORTED_BETWEEN, {"key": key, "start": start, "end": end, "newest": _NEWEST}
        )
        return [AbortedRange(*row) for row in rows]

    def aborted_from(self, key: PartitionKey, offset: int, *, limit: int) -> list[AbortedRange]:
        """Aborted transactions of a partition whose markers lie at or past an offset, in order."""
        rows = self._of_transactions(_ABORTED, (key, offset, limit))
        return [AbortedRange(*row) for row in rows]

    def pending_offsets(self, group_id: str) -> dict[tuple[bytes, int], OffsetRow]:
        """Offsets of a group that open transactions hold, by (topic id, partition)."""
        rows = self._of_transactions(
            "SELECT topic_id, partition, committed_offset, leader_epoch, metadata, commit_ms"
            " FROM pending_offsets WHERE group_id = ? ORDER BY producer_id",
            (group_id,),
        )
        return {(row[0], row[1]): OffsetRow(*row[2:]) for row in rows}

    def pending_page(
        self, group_id: str, after: tuple[bytes, int], *, limit: int
    ) -> list[tuple[bytes, int]]:
        """A page of the partitions of which open transactions hold offsets of a group, past `after`
        ((b"", -1) to begin), in order: topic id and partition."""
        return self._of_transactions(
            "SELECT DISTINCT topic_id, partition FROM pending_offsets WHERE group_id = ?"
            " AND (topic_id, partition) > (?, ?) ORDER BY topic_id, partition LIMIT ?",
            (group_id, *after, limit),
        )

    def _of_transactions(self, statement: str, parameters: Parameters = ()) -> list[Any]:
        return self._execute(statement, parameters) if self._has_transactions else []
