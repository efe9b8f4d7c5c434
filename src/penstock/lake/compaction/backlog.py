"""How much waits to be compacted: what agents count for their metric, without planning. Pure."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

SMALL_RUN_BYTES: Final = 64 << 20
"""A shorter run is small: `CompactionSettings.run_bytes_target` by default."""
RESTING_RUNS: Final = 16
"""So many small runs a partition may have when there is nothing to do: each of them is a few times
as long as what follows it, so none is worth joining yet."""


class Backlog(Struct, frozen=True, kw_only=True):
    """Small runs in objects beyond what a compacted partition has, their bytes, and in how many
    partitions they are."""

    runs: int
    size_bytes: int
    partitions: int


def backlog(counts: Iterable[tuple[int, int]]) -> Backlog:
    """Sum up.

    Args:
        counts: per partition how many runs in objects are shorter than SMALL_RUN_BYTES, and their
            bytes. Partitions with RESTING_RUNS or fewer may be left out.
    """
    runs = size_bytes = partitions = 0
    for run_count, run_bytes in counts:
        if run_count > RESTING_RUNS:
            runs += run_count
            size_bytes += run_bytes
            partitions += 1
    return Backlog(runs=runs, size_bytes=size_bytes, partitions=partitions)
