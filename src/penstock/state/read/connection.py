"""A read-only connection to the state, which the questions of this package share."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from penstock.model.errors import CorruptDataError
from penstock.replica.database import (
    check_versions,
    connect_reader,
    pragma_integer,
    state_position,
    translate,
)
from penstock.state.schema import APPLICATION_ID, FORMAT_VERSION, OLDEST_VERSION

_INTEGRITY_VERSION: Final = 5
"""The format version that brought sums, leftovers, lost histories and digests."""
_TRANSACTIONS_VERSION: Final = 7

Row: TypeAlias = Any
"""A tuple of what SQLite gives for the columns of a statement."""
Parameters: TypeAlias = tuple[object, ...] | dict[str, int]


class StateConnection:
    """Use by one thread, the one that made it.

    Raises (all methods):
        CorruptDataError: the database is damaged.
        FatalStorageError: it can't be read.
    """

    def __init__(self, path: Path, statements_of_version: Callable[[int], dict[str, str]]) -> None:
        """
        Args:
            statements_of_version: gives what to execute in place of statements, in a file of an
                older format version.
        Raises:
            NotFoundError: there is no such file.
            InvalidRequestError: it belongs to another program, or to a release whose files this
                one doesn't open.
        """
        self.path = path
        self.on_damaged: Callable[[CorruptDataError], None] | None = None
        """Called when a statement finds the file damaged, before that is raised."""
        self._connection = connect_reader(path)
        try:
            created = check_versions(
                self._connection,
                path,
                application_id=APPLICATION_ID,
                format_version=FORMAT_VERSION,
                oldest_version=OLDEST_VERSION,
            )
            if not created:
                raise CorruptDataError("open", str(path), "the database has no tables")
            version = pragma_integer(self._connection, "user_version")
            self._has_integrity = version >= _INTEGRITY_VERSION
            self._has_transactions = version >= _TRANSACTIONS_VERSION
            self._old = statements_of_version(version)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.close()
            raise translate(error, "open", str(path)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close; idempotent."""
        self._connection.close()

    def begin(self) -> None:
        """Answers come from one moment until `end`."""
        self._connection.execute("BEGIN")

    @property
    def is_begun(self) -> bool:
        """Whether `begin` was called, and `end` not yet."""
        return self._connection.in_transaction

    def end(self) -> None:
        """See `begin`."""
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def position(self) -> int:
        """The last applied entry's position."""
        return state_position(self._connection)[0]

    def time_ms(self) -> int:
        """Journal time at that position."""
        return state_position(self._connection)[1]

    def has_leftovers(self) -> bool:
        """Whether rows of deleted topics, or below log starts, are still to be cleared."""
        return self._has_integrity and bool(self._execute("SELECT 1 FROM leftovers LIMIT 1"))

    def _execute(self, statement: str, parameters: Parameters = ()) -> list[Row]:
        # `fetchall` ends the read transaction that the statement began.
        try:
            return self._connection.execute(
                self._old.get(statement, statement), parameters
            ).fetchall()
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            translated = translate(error, "query", str(self.path))
            if self.on_damaged is not None and isinstance(translated, CorruptDataError):
                self.on_damaged(translated)
            raise translated from error
