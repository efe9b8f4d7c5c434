"""The state machine of the directory: which environments there are, and whose keys are accepted."""

import sqlite3
from typing import Final

from penstock.authz.state import entries
from penstock.authz.state.entries import (
    AddKey,
    Command,
    CreateEnvironment,
    Done,
    Outcome,
    Refused,
    RevokeKey,
)
from penstock.model.errors import CorruptDataError

APPLICATION_ID: Final = 0x50415A44  # "PAZD"
FORMAT_VERSION: Final = 1
ENVIRONMENTS_MAX: Final = 10_000
KEYS_MAX: Final = 100_000

_SCHEMA: Final = (
    """CREATE TABLE environment (
        name TEXT PRIMARY KEY,
        created_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE key (
        number TEXT PRIMARY KEY,
        environment TEXT NOT NULL,
        hash BLOB NOT NULL UNIQUE,
        scope TEXT NOT NULL,
        name TEXT NOT NULL,
        created_ms INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
)


class DirectoryMachine:
    """Implements `penstock.replica.StateMachine`; an entry's outcome has one answer a command."""

    application_id = APPLICATION_ID
    format_version = FORMAT_VERSION
    oldest_version = 1

    def create(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`."""
        for sql in _SCHEMA:
            connection.execute(sql)

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        """See `StateMachine`."""
        raise AssertionError((connection, from_version))

    def bind(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`."""
        self._execute = connection.execute

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:  # noqa: ARG002
        """See `StateMachine`."""
        return max(previous_ms, stamp_ms)

    def flush(self) -> None:
        """See `StateMachine`."""

    def drop_caches(self) -> None:
        """See `StateMachine`."""

    def apply(self, position: int, time_ms: int, body: bytes) -> list[Outcome]:
        """See `StateMachine`."""
        entry = entries.decode(body)
        return [self.decide(position, time_ms, command) for command in entry.commands]

    def decide(self, position: int, time_ms: int, command: Command) -> Outcome:
        """Apply one command. Raises: CorruptDataError: it is an environment's."""
        match command:
            case CreateEnvironment():
                return self._create(position, time_ms, command)
            case AddKey():
                return self._add_key(position, time_ms, command)
            case RevokeKey():
                sql = "DELETE FROM key WHERE number = ?"
                count = self._execute(sql, (command.number,)).rowcount
                return Done(position, count) if count else Refused(entries.MISSING)
            case _:
                raise CorruptDataError(
                    "apply entry",
                    "directory of environments",
                    f"entry {position} has a command of an environment",
                )

    def _create(self, position: int, time_ms: int, command: CreateEnvironment) -> Outcome:
        (count,) = self._execute("SELECT count(*) FROM environment").fetchone()
        if count >= ENVIRONMENTS_MAX:
            return Refused(entries.TOO_MANY, number=ENVIRONMENTS_MAX)
        sql = "INSERT OR IGNORE INTO environment VALUES (?, ?)"
        if not self._execute(sql, (command.name, time_ms)).rowcount:
            return Refused(entries.EXISTS)
        return Done(position, 1)

    def _add_key(self, position: int, time_ms: int, command: AddKey) -> Outcome:
        found = self._execute(
            "SELECT 1 FROM environment WHERE name = ?", (command.environment,)
        ).fetchone()
        if found is None:
            return Refused(entries.MISSING)
        (count,) = self._execute("SELECT count(*) FROM key").fetchone()
        if count >= KEYS_MAX:
            return Refused(entries.TOO_MANY, number=KEYS_MAX)
        row = (
            command.number,
            command.environment,
            command.hash,
            command.scope,
            command.name,
            time_ms,
        )
        if not self._execute("INSERT OR IGNORE INTO key VALUES (?, ?, ?, ?, ?, ?)", row).rowcount:
            return Refused(entries.EXISTS)
        return Done(position, 1)
