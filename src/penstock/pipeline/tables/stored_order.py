"""The order in which a stream reads the files of a table's snapshot. Pure.

It hangs on what the snapshot's manifests say alone, which never changes: so a position in it can be
kept (docs/formats/stream-offsets.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The facts that order a snapshot's file, and that a batch counts.

    Args:
        least_timestamp: of its rows, as the statistics say; None: they don't.
        rows: how many it has.
    """

    path: str
    least_timestamp: int | None
    rows: int


def in_order(files: Sequence[StoredFile]) -> list[int]:
    """Return the places of the files in the order in which a stream reads them: the oldest
    first, so that watermarks of event time rise."""

    def rank(place: int) -> tuple[bool, int, str]:
        file = files[place]
        return file.least_timestamp is not None, file.least_timestamp or 0, file.path

    return sorted(range(len(files)), key=rank)


def sum_of(files: Sequence[StoredFile]) -> int:
    """Return the checksum by which an order of files is known again."""
    found = 0
    for file in files:
        found = crc32c(f"{file.path}\n".encode(), found)
    return found
