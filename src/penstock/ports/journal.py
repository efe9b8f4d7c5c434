"""A shared journal as a port: rows in the order of their positions, durable once appended.

Rows may become visible out of order, so that a reader can find a gap which is filled a moment
later, or never (an append that failed after it took its position). `seal` settles which. Errors:
`RetryableError` when the journal can't be reached or an append's outcome is unknown (the caller
sends it again: entries carry their own number), `FatalStorageError` never.
Implementations: `penstock.replica.postgres.PostgresJournal`; our tests simulate one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One row: its position, the journal's clock when it was appended (ms since the epoch), and
    the entry; an empty body is a seal, which changes nothing."""

    position: int
    stamp_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class JournalHead:
    """The greatest visible position (0: none), the first that is still there, and the journal's
    clock in ms since the epoch, all read at one moment."""

    position: int
    first: int
    stamp_ms: int


class Journal(Protocol):
    """One connection to the journal of one cluster. Event loop only; calls may overlap.

    It reconnects by itself, but never unnoticed: between two calls of `read`, `row` or `head` that
    were answered by different connections there is one that raised `RetryableError`, so that
    follower looks whether it is still the same journal.
    """

    async def append(self, body: bytes) -> int:
        """Append an entry durably; its position. Calls are carried out in the order in which they
        are made, each as one statement.

        Raises:
            RetryableError: not reached, or unknown whether it was appended. Calls made after this
                one fail as well, so that none overtakes it.
        """
        ...

    async def read(self, after: int, limit: int) -> list[JournalRow]:
        """Visible rows past `after`, by position, at most `limit`. There may be gaps.

        Raises:
            RetryableError: not reached.
            NotFoundError: rows past `after` have been trimmed, or were never there, since a
                restored journal begins later: bootstrap from a snapshot.
        """
        ...

    async def row(self, position: int) -> JournalRow | None:
        """The row at a position; None: there is none (any more)."""
        ...

    async def head(self) -> JournalHead:
        """Return what is visible now; read again at each call."""
        ...

    async def seal(self, positions: Sequence[int]) -> None:
        """Fill gaps with empty rows. Waits for appends that hold such a position; whatever they
        leave there stays."""
        ...

    async def wait(self, after: int, timeout_s: float) -> None:
        """Return when there may be rows past `after`, at the latest after `timeout_s`. A hint."""
        ...

    def share_among(self, readers: int) -> None:
        """So many agents read the journal now: `wait` returns as much later, where nothing hints
        at rows, that all of them together don't read too often."""
        ...

    async def trim(self, up_to: int) -> int:
        """Delete rows up to and including a position, a bounded number, but never the last row,
        which says how far the journal is; how many were deleted."""
        ...

    async def close(self) -> None:
        """Close; idempotent."""
        ...
