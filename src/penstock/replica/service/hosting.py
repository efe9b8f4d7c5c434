"""A user's machine as a state machine of `penstock.replica`: clients' numbers, and what is kept of
their answers, in tables next to the user's own. docs/formats/replica-service.md has them.

Statements of the user's `apply` may read and change rows of the user's tables. What would differ
among instances (SQLite's clock and its random numbers), transactions and other files are refused.
"""

import logging
import sqlite3
from typing import Final

from crc32c import crc32c

from penstock.model.errors import FatalStorageError, InvalidRequestError
from penstock.replica.database import REPLICA_TABLES
from penstock.replica.service import entries
from penstock.replica.service.entries import Item, Kind, Outcome
from penstock.replica.service.machine import Entry, Machine, RefusedError, name_of
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x50525356  # "PRSV"
ANSWERS_KEPT: Final = 64
"""Answers that are kept of each client: of its last numbers."""
CLIENTS_MAX: Final = 10_000
"""Clients whose answers are kept, those that wrote last."""
RESERVED: Final = "penstock_"
_SCHEMA: Final = (
    """CREATE TABLE penstock_service (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        name TEXT NOT NULL,
        history BLOB NOT NULL,
        since_ms INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE penstock_client (
        client TEXT PRIMARY KEY,
        highest INTEGER NOT NULL,
        position INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX penstock_client_position ON penstock_client (position)",
    """CREATE TABLE penstock_answer (
        client TEXT NOT NULL,
        number INTEGER NOT NULL,
        position INTEGER NOT NULL,
        crc INTEGER NOT NULL,
        kind INTEGER NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (client, number)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE penstock_claim (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        instance INTEGER NOT NULL,
        until_ms INTEGER NOT NULL
    ) STRICT""",
)
_READS: Final = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE))
_WRITES: Final = frozenset((sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE))
_DIFFERING: Final = frozenset(
    [
        "random",
        "randomblob",
        "date",
        "time",
        "datetime",
        "julianday",
        "unixepoch",
        "strftime",
        "timediff",
        "current_date",
        "current_time",
        "current_timestamp",
        "changes",
        "total_changes",
        "last_insert_rowid",
        "sqlite_version",
        "sqlite_source_id",
        "load_extension",
    ]
)
"""Functions whose values depend on more than their arguments."""
_OWN_FAULT_CODES: Final = frozenset((1, 18, 19, 20, 21, 23, 25))
"""SQLite's results that a statement's own text and values cause: ERROR, TOOBIG, CONSTRAINT,
MISMATCH, MISUSE, AUTH, RANGE. After others (a full disk, a damaged page) this copy alone has
failed."""


class HostedMachine:
    """Implements `penstock.replica.StateMachine`; an entry's outcome has one for each item."""

    application_id = APPLICATION_ID

    def __init__(self, machine: Machine) -> None:
        """Raises: InvalidRequestError: its name isn't one."""
        self._machine = machine
        self.name = name_of(machine)
        self.format_version = machine.version
        self.oldest_version = machine.oldest_version
        self._is_users = False
        """The statement that is prepared now is the user's."""

    def again(self) -> "HostedMachine":
        """Give the same for another database."""
        return HostedMachine(self._machine)

    # -- the machine's life ----------------------------------------------------------------------

    def create(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`. Raises: InvalidRequestError: the schema can't be replicated."""
        for sql in _statements(self._machine.schema):
            connection.execute(sql)
        _check_schema(connection)
        for sql in _SCHEMA:
            connection.execute(sql)
        connection.execute("INSERT INTO penstock_service VALUES (1, ?, x'', 0)", (self.name,))

    def migrate(self, connection: sqlite3.Connection, from_version: int) -> None:
        """See `StateMachine`. Raises: InvalidRequestError: the schema can't be replicated."""
        self._machine.migrate(connection, from_version)
        _check_schema(connection)

    def bind(self, connection: sqlite3.Connection) -> None:
        """See `StateMachine`. Raises: InvalidRequestError: the tables are another service's."""
        self._connection = connection
        self._execute = connection.execute
        (name,) = self._execute("SELECT name FROM penstock_service").fetchone()
        if name != self.name:
            raise InvalidRequestError(
                "open", "service", f"the folder is of {name}, this is {self.name}", "use another"
            )
        connection.set_authorizer(self._permit)

    def journal_time(self, previous_ms: int, stamp_ms: int, body: bytes) -> int:  # noqa: ARG002
        """See `StateMachine`."""
        return max(previous_ms, stamp_ms)

    def flush(self) -> None:
        """See `StateMachine`."""

    def drop_caches(self) -> None:
        """See `StateMachine`."""

    # -- applying --------------------------------------------------------------------------------

    def apply(self, position: int, time_ms: int, body: bytes) -> list[Outcome]:
        """See `StateMachine`."""
        if not body:
            return []  # a seal
        return [self._apply_item(position, time_ms, item) for item in entries.decode(body)]

    def _apply_item(self, position: int, time_ms: int, item: Item) -> Outcome:
        if item.client.startswith(entries.RESERVED):
            return self._apply_own(position, time_ms, item)
        crc = crc32c(item.value)
        row = self._execute(
            "SELECT highest FROM penstock_client WHERE client = ?", (item.client,)
        ).fetchone()
        if row is not None and item.number <= row[0]:
            known = self._known(position, item, crc, row[0])
            if known is not None:
                return known
        kind, value = self._ask(position, time_ms, item)
        self._keep(position, item, crc, kind, value, is_new=row is None)
        return Outcome(item.client, item.number, position, kind, value, item.seed)

    def _known(self, position: int, item: Item, crc: int, highest: int) -> Outcome | None:
        """Give the outcome of a number that isn't a new one; None: it is."""
        found = self._execute(
            "SELECT position, crc, kind, value FROM penstock_answer"
            " WHERE client = ? AND number = ?",
            (item.client, item.number),
        ).fetchone()
        if found is not None:
            at, stored_crc, kind, value = found
            if stored_crc != crc:
                return Outcome(item.client, item.number, at, Kind.OTHER_VALUE, b"", item.seed)
            return Outcome(
                item.client, item.number, at, Kind(kind), value, item.seed, is_repeat=True
            )
        if item.number <= highest - ANSWERS_KEPT:
            return Outcome(item.client, item.number, position, Kind.FORGOTTEN, b"", item.seed)
        return None

    def _ask(self, position: int, time_ms: int, item: Item) -> tuple[Kind, bytes]:
        """Have the user's machine apply an item, as a whole or not at all."""
        connection = self._connection
        self._execute("SAVEPOINT item")
        self._is_users = True
        try:
            entry = Entry(
                entries.unpack(item.value), position, time_ms, item.client, item.number, item.seed
            )
            value = entries.pack(self._machine.apply(connection, entry))
        except Exception as error:
            self._is_users = False
            _raise_if_this_copy(error, position)
            if not connection.in_transaction:
                raise _ended(position) from error
            self._execute("ROLLBACK TO item")
            self._execute("RELEASE item")
            if isinstance(error, RefusedError):
                return Kind.REFUSED, entries.pack(error.detail)
            saying = f"the machine {self.name} failed on entry {position}, which changes nothing"
            heard(Cause.REPLICA_MACHINE, error, logger, saying, logging.ERROR)
            return Kind.FAILED, entries.pack(type(error).__name__)
        self._is_users = False
        if not connection.in_transaction:
            raise _ended(position)
        self._execute("RELEASE item")
        return Kind.DONE, value

    def _keep(
        self, position: int, item: Item, crc: int, kind: Kind, value: bytes, *, is_new: bool
    ) -> None:
        execute = self._execute
        execute(
            "INSERT INTO penstock_client VALUES (?, ?, ?) ON CONFLICT (client) DO UPDATE"
            " SET highest = max(highest, excluded.highest), position = excluded.position",
            (item.client, item.number, position),
        )
        execute(
            "INSERT INTO penstock_answer VALUES (?, ?, ?, ?, ?, ?)",
            (item.client, item.number, position, crc, kind, value),
        )
        execute(
            "DELETE FROM penstock_answer WHERE client = ?1 AND number <="
            " (SELECT highest FROM penstock_client WHERE client = ?1) - ?2",
            (item.client, ANSWERS_KEPT),
        )
        if is_new:
            forgotten = execute(
                "SELECT client FROM penstock_client ORDER BY position DESC, client"
                " LIMIT -1 OFFSET ?",
                (CLIENTS_MAX,),
            ).fetchall()
            for row in forgotten:
                execute("DELETE FROM penstock_client WHERE client = ?", row)
                execute("DELETE FROM penstock_answer WHERE client = ?", row)

    # -- the library's own items -----------------------------------------------------------------

    def _apply_own(self, position: int, time_ms: int, item: Item) -> Outcome:
        kind, value = Kind.DONE, bytes(item.value)
        if item.client == entries.HISTORY:
            new = entries.history_of(item)
            # One that began later was begun for this loss, too.
            self._execute(
                "UPDATE penstock_service SET history = ?, since_ms = ? WHERE since_ms <= ?",
                (new.history, time_ms, new.lost_ms),
            )
            (history,) = self._execute("SELECT history FROM penstock_service").fetchone()
            value = bytes(history)
        elif item.client == entries.CLAIM:
            claim = entries.claim_of(item)
            held = self._execute(
                "SELECT 1 FROM penstock_claim WHERE instance <> ? AND until_ms > ?",
                (claim.instance, time_ms),
            ).fetchone()
            if held is not None:
                kind = Kind.REFUSED
            else:
                self._execute(
                    "INSERT OR REPLACE INTO penstock_claim VALUES (1, ?, ?)",
                    (claim.instance, time_ms + claim.hold_ms),
                )
        # Others change nothing: instances compare what they hold of them in memory.
        return Outcome(item.client, item.number, position, kind, value, item.seed)

    # -- what the user's statements may do ---------------------------------------------------------

    def _permit(
        self,
        action: int,
        first: str | None,
        second: str | None,
        _database: str | None,
        _trigger: str | None,
    ) -> int:
        if not self._is_users or action in _READS:
            return sqlite3.SQLITE_OK
        if action in _WRITES and first is not None and not _is_reserved(first):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _DIFFERING:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY


def _is_reserved(table: str) -> bool:
    return table.startswith((RESERVED, "sqlite_")) or table in REPLICA_TABLES


def _statements(schema: str) -> list[str]:
    """Split a script into statements. `executescript` would commit first."""
    found, begun = [], ""
    for part in schema.split(";"):
        begun += part + ";"
        if sqlite3.complete_statement(begun):
            if begun.strip(" \n\t;"):
                found.append(begun)
            begun = ""
    if begun.strip(" \n\t;"):
        found.append(begun)
    return found


def _check_schema(connection: sqlite3.Connection) -> None:
    """See that tables can be copied and compared row by row. Raises: InvalidRequestError."""
    for kind, name, sql in connection.execute(
        "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    ).fetchall():
        if name in REPLICA_TABLES or name.startswith(RESERVED):
            continue
        if kind not in ("table", "index") or (sql or "").upper().startswith("CREATE VIRTUAL"):
            raise _unfit(name, f"it is a {kind}, and snapshots have plain tables and indexes")
        if name == "sqlite_sequence":
            raise _unfit(name, "AUTOINCREMENT counts outside of the tables", "leave it out")
        if kind == "table" and not any(
            row[5] for row in connection.execute(f'PRAGMA table_info("{name}")')
        ):
            raise _unfit(name, "it has no primary key", "give it one: rows are compared by it")


def _unfit(name: str, detail: str, hint: str = "") -> InvalidRequestError:
    return InvalidRequestError("create", f"table {name}", detail, hint)


def _raise_if_this_copy(error: Exception, position: int) -> None:
    """Raise an error that says nothing of the entry: others may apply it."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 1) & 0xFF
        if code not in _OWN_FAULT_CODES:
            raise error
    elif isinstance(error, MemoryError | RecursionError | OSError):
        raise FatalStorageError(
            "apply", f"entry {position}", f"{type(error).__name__}: {error}"
        ) from error


def _ended(position: int) -> FatalStorageError:
    return FatalStorageError(
        "apply",
        f"entry {position}",
        "the machine has ended the transaction that it was given",
        "leave COMMIT and ROLLBACK out of apply",
    )
