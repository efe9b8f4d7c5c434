"""Leader epochs: which restore a log is of, and from which offset on each epoch counts.

A restored log may grow past where its clients had come, with other records at the same offsets.
Each restore begins an epoch, at the end that it finds of each partition; batches are labelled with
the epoch that they were appended in, and a client asks where the one that it has read last ended
(KIP-320). Pure, save `begin_leader_epoch`, by which a restore begins one.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from penstock.state.meta import LEADER_EPOCH

EpochStart = tuple[int, int]
"""An epoch and the offset of its first record. Those of a partition ascend in both."""
FIRST_EPOCH: Final[tuple[EpochStart, ...]] = ((0, 0),)
"""Epochs of a partition that was never restored."""


def epoch_starts(rows: Sequence[EpochStart]) -> tuple[EpochStart, ...]:
    """A partition's epochs, of its rows in `leader_epochs` by epoch. What lies before the first row
    is of epoch 0, which has none."""
    return (*(FIRST_EPOCH if not rows or rows[0][1] > 0 else ()), *rows)


def epoch_of_offset(starts: Sequence[EpochStart], offset: int) -> int:
    """The epoch that an offset was, or will be, given in."""
    return next((epoch for epoch, start in reversed(starts) if start <= offset), starts[0][0])


def end_of_epoch(
    starts: Sequence[EpochStart], asked: int, *, end_offset: int
) -> tuple[int, int] | None:
    """The last epoch of this log that isn't past `asked`, and the offset after its last record.

    Args:
        starts: the partition's epochs, at least one.
        end_offset: of the partition, where its last epoch ends.

    Returns:
        None: nothing is known of such an epoch. One before the first of `starts` ends where that
        begins.

    Source: Kafka's LeaderEpochFileCache.endOffsetFor.
    """
    if asked < 0 or asked > starts[-1][0]:
        return None
    if asked == starts[-1][0]:
        return asked, end_offset
    floor = asked
    for epoch, start in starts:
        if epoch > asked:
            return floor, start
        floor = epoch
    raise AssertionError("the last epoch is past the one that was asked for")


def begin_leader_epoch(connection: sqlite3.Connection, *, floor: int = 0) -> None:
    """Begin the next epoch in a state that was restored, at the end of each partition. The caller
    commits.

    An epoch in which a partition got no record is forgotten, as Kafka does it: so a partition has
    at most one row a restore.

    Args:
        floor: the least that the epoch may be: of the restore's time, so that two restores of one
            backup, whose records differ at the same offsets, don't share an epoch.
    """
    connection.execute(
        "INSERT INTO meta VALUES (?, max(1, ?)) ON CONFLICT (name)"
        " DO UPDATE SET value = max(value + 1, ?)",
        (LEADER_EPOCH, floor, floor),
    )
    connection.execute(
        "DELETE FROM leader_epochs WHERE start_offset >= (SELECT next_offset FROM partitions AS p"
        " WHERE p.partition_key = leader_epochs.partition_key)"
    )
    connection.execute(
        "INSERT INTO leader_epochs SELECT partition_key,"
        " (SELECT value FROM meta WHERE name = ?), next_offset FROM partitions",
        (LEADER_EPOCH,),
    )
