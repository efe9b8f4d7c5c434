"""The interface of a replicated service's state machine: tables, and how an entry changes them."""

import sqlite3
from typing import Protocol, TypeVar

OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


class StateMachine(Protocol[OutcomeT_co]):
    """A deterministic machine over tables of one SQLite database.

    The replica owns the connection and its transactions: the machine executes statements and
    never begins, commits or rolls back. What `apply` does must depend on the tables and its
    arguments alone; no clock, no random, no environment, and no order of dict or set iteration
    that differs between processes.
    """

    application_id: int
    """SQLite's `application_id` of the machine's databases; tells them from other programs'."""
    format_version: int
    """Version of tables and entries; SQLite's `user_version`."""
    oldest_version: int
    """The oldest version that `migrate` brings to this one."""

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the tables, inside a transaction."""
        ...

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        """Bring tables of an older `format_version` to this one, inside a transaction.

        Rows mean what they meant: what applying an entry gives changes by the machine's own
        rules (such as feature levels), never by a migration.
        """
        ...

    def bind(self, connection: sqlite3.Connection) -> None:
        """Use this connection from now on; may read what is kept in memory."""
        ...

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:
        """Journal time at an entry, which `apply` is given next; must not change anything.

        Most machines return `max(previous_ms, stamp_ms)`. Where the journal keeps journal time in
        place of stamps (an embedded one), a replay passes that time as `stamp_ms`, and the same
        time must result.

        Args:
            previous_ms: journal time at the entry before.
            stamp_ms: the journal's clock when it took the entry.
        """
        ...

    def apply(self, position: int, time_ms: int, body: bytes) -> OutcomeT_co:
        """Apply one entry.

        Args:
            position: the entry's place in the journal.
            time_ms: journal time there, as `journal_time` gave it.
        Raises:
            CorruptDataError: the entry is unknown or damaged; the replica stops.
        """
        ...

    def flush(self) -> None:
        """Write what is only in memory to the tables; called before each commit.

        A commit may hold several entries (at a replay): what is written must be the same
        however they are grouped.
        """
        ...

    def drop_caches(self) -> None:
        """Forget everything that is in memory; called after a rollback."""
        ...
