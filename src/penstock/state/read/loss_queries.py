"""Questions to the state about offsets that a repair has noted: lost ones, and those that were
encoded again from a table.

A part of `Queries`, by inheritance. A file of a version that has no such tables answers as one
where they are empty.
"""

from typing import Literal, NamedTuple

from penstock.model.ids import PartitionKey
from penstock.state.read.connection import StateConnection

NotedKind = Literal["lost_ranges", "rebuilt_ranges"]
"""`lost_ranges`: an operator accepted their loss. `rebuilt_ranges`: their records were encoded
again from a table. Both are names of tables."""

NotedRange = tuple[PartitionKey, int, int, int]
"""Partition key, start, end (exclusive), and journal time in ms."""


class NotedTotal(NamedTuple):
    """All ranges of one kind in one partition. `first_end`, `last_end`: where the first and the
    last of them end."""

    ranges: int
    first_end: int
    last_end: int


class LossQueries(StateConnection):
    """The part of `Queries` that this module is."""

    def noted_ranges(
        self, kind: NotedKind, limit: int, *, after: tuple[int, int] = (-1, -1)
    ) -> list[NotedRange]:
        """A page of ranges of offsets by partition and start, past (key, start) `after`."""
        if not self._has_integrity:
            return []
        return self._execute(
            f"SELECT * FROM {kind} WHERE (partition_key, start_offset) > (?, ?)"  # noqa: S608
            " ORDER BY partition_key, start_offset LIMIT ?",
            (*after, limit),
        )

    def noted_totals(self, kind: NotedKind) -> dict[PartitionKey, NotedTotal]:
        """Count the ranges of each partition that has any. Reads all: 0.08 s of CPU per million."""
        if not self._has_integrity:
            return {}
        rows = self._execute(
            "SELECT partition_key, count(*), min(end_offset), max(end_offset)"  # noqa: S608
            f" FROM {kind} GROUP BY partition_key"
        )
        return {key: NotedTotal(*total) for key, *total in rows}

    def lost_ranges_of(self, key: PartitionKey) -> list[tuple[int, int]]:
        """(start, end) of a partition's lost ranges, ascending."""
        if not self._has_integrity:
            return []
        return self._execute(
            "SELECT start_offset, end_offset FROM lost_ranges WHERE partition_key = ?"
            " ORDER BY start_offset",
            (key,),
        )

    def lost_range_before(self, key: PartitionKey, offset: int) -> tuple[int, int] | None:
        """(start, end) of the last lost range of a partition that begins at or before an offset."""
        if not self._has_integrity:
            return None
        found: list[tuple[int, int]] = self._execute(
            "SELECT start_offset, end_offset FROM lost_ranges WHERE partition_key = ?"
            " AND start_offset <= ? ORDER BY start_offset DESC LIMIT 1",
            (key, offset),
        )
        return found[0] if found else None
