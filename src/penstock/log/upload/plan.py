"""Which WAL runs go into the next segment, and how they lie in it. Pure.

Runs are taken in the order in which they were committed, so that what stays in the WAL of a
partition is always a suffix of its offsets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from penstock.metadata.commands import MovedRun
from penstock.metadata.queries import StoredRun
from penstock.model.ids import PartitionKey


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
    taken: list[StoredRun] = []
    length = 0
    for run in runs:
        if run.partition_key not in sort_key:
            continue
        if taken and length + run.length > bytes_max:
            break
        taken.append(run)
        length += run.length

    def place(run: StoredRun) -> tuple[tuple[bytes, int], int]:
        return sort_key[run.partition_key], run.base_offset

    moves = []
    for key, group in groupby(sorted(taken, key=place), key=lambda run: run.partition_key):
        members = tuple(group)
        moves.append(
            PartitionMove(
                partition_key=key, runs=members, length=sum(run.length for run in members)
            )
        )
    return moves


def moved_runs(moves: Sequence[PartitionMove], positions: Sequence[int]) -> list[MovedRun]:
    """What StoreSegment says of them, given each partition's byte position in the segment."""
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
