"""A plan says which WAL runs go into the next segment, and how they lie in it. Pure.

Runs are taken in the order in which they were committed, so that what stays in the WAL of a
partition is always a suffix of its offsets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.ids import PartitionKey
from penstock.state.commands import MovedRun
from penstock.state.read.queries import StoredRun


@dataclass(slots=True, frozen=True, kw_only=True)
class PartitionMove:
    """Runs of one partition, in offset order, that will lie one behind the other."""

    partition_key: PartitionKey
    runs: tuple[StoredRun, ...]
    length: int


def plan_segment(
    runs: Sequence[StoredRun], *, bytes_max: int, sort_key: dict[PartitionKey, tuple[bytes, int]]
) -> list[PartitionMove]:
    """Choose the oldest runs, up to about `bytes_max`, sorted by (topic id, partition).

    Args:
        runs: of the WAL, by generation and position, as the state names them.
        bytes_max: where to stop; at least one run is taken.
        sort_key: per partition its topic id and number; partitions that are missing there
            (their topic is gone) are left out.
    """
    # A run lies behind those of its partition that were committed before it, so that the order of
    # places is, in each partition, that of offsets.
    by_partition: dict[PartitionKey, list[StoredRun]] = {}
    length = 0
    for run in runs:
        key = run.partition_key
        if key not in sort_key:
            continue
        if by_partition and length + run.length > bytes_max:
            break
        by_partition.setdefault(key, []).append(run)
        length += run.length
    return [
        PartitionMove(
            partition_key=key,
            runs=tuple(by_partition[key]),
            length=sum(run.length for run in by_partition[key]),
        )
        for key in sorted(by_partition, key=sort_key.__getitem__)
    ]


def with_markers(
    moves: Sequence[PartitionMove], markers: Sequence[StoredRun]
) -> list[PartitionMove]:
    """Put markers between the runs between which they lie.

    Args:
        markers: of partitions of the moves, at or below the end of the last run of each.
    """
    by_partition: dict[PartitionKey, list[StoredRun]] = {}
    for marker in markers:
        by_partition.setdefault(marker.partition_key, []).append(marker)
    return [
        partition_move([*move.runs, *by_partition[move.partition_key]])
        if move.partition_key in by_partition
        else move
        for move in moves
    ]


def partition_move(runs: Sequence[StoredRun]) -> PartitionMove:
    """Runs of one partition, in any order."""
    return PartitionMove(
        partition_key=runs[0].partition_key,
        runs=tuple(sorted(runs, key=lambda run: run.base_offset)),
        length=sum(run.length for run in runs),
    )


def moved_runs(moves: Sequence[PartitionMove], positions: Sequence[int]) -> list[MovedRun]:
    """Return StoreSegment's items for the moves, given each partition's byte position in the
    segment."""
    return [
        MovedRun(
            partition_key=move.partition_key,
            position=position,
            runs=[
                value
                for run in move.runs
                for value in (run.base_offset, run.generation, run.position, run.length)
            ],
        )
        for move, position in zip(moves, positions, strict=True)
    ]
