"""Transactions as values: their states, and markers as rows of runs. Pure.

See docs/transactions.md.
"""

import enum
from dataclasses import dataclass
from typing import Final

from penstock.records.markers import marker_batch, marker_crc
from penstock.state.rows import StoredRun

NO_OPEN: Final = -1
"""First open offset of a partition without an open transaction; first offset of a transaction in a
partition where it has no record."""
YOUNGER: Final = -1
"""`connection` of a group whose offsets came by connections that are younger than the transaction,
or have carried something of it."""
EPOCH_EXHAUSTED: Final = (1 << 15) - 2
"""From this epoch on a producer gets a new id instead of the next epoch: the one above is of the
markers that end what is still open."""


class TransactionState(enum.IntEnum):
    """The states of a transactional id. The numbers are state."""

    EMPTY = 0
    ONGOING = 1
    COMMITTED = 2
    ABORTED = 3


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id. `last_epoch` and `last_producer_id`: what the producer had before, for
    calls that are sent again; -1: they matter no more. `since`: position of the entry that last
    changed the state; `changed_ms`: journal time there; `added`: partitions and groups of the open
    transaction, `offsets`: pending ones."""

    producer_id: int
    transactional_id: str
    epoch: int
    last_epoch: int
    last_producer_id: int
    state: TransactionState
    timeout_ms: int
    since: int
    changed_ms: int
    added: int
    offsets: int


@dataclass(frozen=True, slots=True)
class AbortedRange:
    """A transaction that was aborted in a partition: its records lie in [first_offset,
    marker_offset)."""

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable: int
    """Last stable offset after the marker."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction in a partition, as a row of `wal_runs` names it."""

    producer_id: int
    producer_epoch: int
    commits: bool
    time_ms: int

    @property
    def generation(self) -> int:
        """The row has this number, below 0, in place of a WAL's generation."""
        return -1 - (self.producer_epoch << 1 | self.commits)

    @property
    def crc(self) -> int:
        """The CRC-32C in the batch's header, whatever the offset."""
        return marker_crc(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            commits=self.commits,
            time_ms=self.time_ms,
        )

    def batch(self, *, base_offset: int, leader_epoch: int) -> bytes:
        """The marker's record batch, final."""
        return marker_batch(
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            commits=self.commits,
            time_ms=self.time_ms,
        )


def is_marker(generation: int) -> bool:
    """Whether a run's row is that of a marker, which lies in no WAL and no object."""
    return generation < 0


def marker_of_run(run: StoredRun) -> Marker:
    """Read the marker that a row of `wal_runs` stands for."""
    packed = -1 - run.generation
    return Marker(run.position, packed >> 1, bool(packed & 1), run.max_timestamp)


def marker_bytes(run: StoredRun) -> memoryview:
    """Make the batch that a marker's row stands for, final."""
    marker = marker_of_run(run)
    return memoryview(marker.batch(base_offset=run.base_offset, leader_epoch=run.leader_epoch))
