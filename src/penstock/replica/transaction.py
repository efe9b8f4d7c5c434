"""The open transaction of a replica: what is applied in it, and how it ends.

Not thread-safe: callers hold the replica's lock.
"""

import logging
import sqlite3
from pathlib import Path
from typing import Final, Generic, TypeVar

from crc32c import crc32c

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    PenstockError,
    StorageFullError,
)
from penstock.replica.applied import Applied
from penstock.replica.database import translate
from penstock.replica.journal_files import JournalFiles
from penstock.replica.machine import StateMachine
from penstock.replica.marks import LOCAL_MARK, RowMark
from penstock.replica.statements import insert_rows
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

OutcomeT = TypeVar("OutcomeT")

_REPLAY_ENTRIES_MAX: Final = 256
"""Entries per transaction when a journal's tail is applied."""

_COMMIT_BYTES: Final = 24 << 10
"""Bytes that a small commit adds to SQLite's WAL, about: six pages."""

_SET_LOCAL: Final = "INSERT OR REPLACE INTO local VALUES (?, ?)"

_Row = tuple[int, int, bytes]
"""(position, journal time, body)."""


class Transaction(Generic[OutcomeT]):
    """Applies entries and commits them.

    Args:
        position, time_ms: of the last entry that the database has applied.
        fsync: whether `append` is durable, by a sync.
        keeps_journal: whether entries are kept, or the position alone.
        journal: where entries are kept besides the database; None: nowhere.
        keeps_mark: whether the mark of the last entry is kept with the position, in one COMMIT.
    """

    def __init__(
        self,
        path: Path,
        machine: StateMachine[OutcomeT],
        connection: sqlite3.Connection,
        *,
        position: int,
        time_ms: int,
        fsync: bool,
        keeps_journal: bool,
        journal: JournalFiles | None = None,
        keeps_mark: bool = False,
    ) -> None:
        self._journal = journal
        self._keeps_mark = keeps_mark
        self._path = path
        self._machine = machine
        self._connection = connection
        self._fsync = fsync
        self._keeps_journal = keeps_journal
        self.failure: str | None = None
        """Why nothing may be written any more."""
        self.uncheckpointed_bytes = 0
        """About what was added to SQLite's WAL; a checkpoint takes off what it has copied."""
        self._may_spill = True
        """Whether pages that were changed may be written before COMMIT. Not once the disk was full:
        the transaction would be lost to it."""
        self._is_synced = fsync
        """Whether COMMIT syncs, as `PRAGMA synchronous` was set last."""
        self.is_begun = False
        self._rows: list[_Row] = []
        """Entries applied in the open transaction."""
        self.row_bytes = 0
        """Their bodies' bytes."""
        self._undone: list[_Row] = []
        """Entries whose transaction was rolled back: applied again before anything else is."""
        self._locals: dict[str, int | str] = {}
        """Values of this copy that were set with them: set again as they are applied again."""
        self.position = position
        """The position of the last applied entry."""
        self.time_ms = time_ms
        self._stamp_ms = 0
        """The journal's stamp of the last applied entry."""
        self._committed_ms = time_ms
        self.committed_position = position
        """The position of the last entry that readers of the database see."""
        self.durable_position = 0
        """The position of the last entry that a power cut can't take out of the database."""

    @property
    def uncommitted_count(self) -> int:
        """Entries that `commit` would commit."""
        return len(self._rows) + len(self._undone)

    # -- applying ------------------------------------------------------------------------------

    def append(self, body: bytes, stamp_ms: int) -> Applied[OutcomeT]:
        """Apply one entry in a transaction of its own and commit it, synced: here, or in the
        journal files. Raises as `Replica.append`."""
        self.commit()
        journal = self._journal
        appended = self.apply(body, stamp_ms, synced=self._fsync and journal is None)
        try:
            self._machine.flush()
            self._write_rows()
            if journal is not None:
                journal.append_synced(self._rows[-1])
        except BaseException as error:
            if isinstance(error, FatalStorageError):
                self.failure = f"an entry could not be written: {error}"
            self.take_back_last(error)
            raise
        try:
            self.end()
        except StorageFullError as error:
            if journal is None:
                raise
            # Durable by now. It is applied again before anything else is.
            heard(Cause.DATABASE_FULL, error, logger, "an entry is applied again soon")
        return appended

    def apply(self, body: bytes, stamp_ms: int, *, synced: bool = False) -> Applied[OutcomeT]:
        """Apply one entry in the open transaction, which is begun if there is none."""
        position = self.position + 1
        try:
            if not self.is_begun:
                self.begin(synced=synced)
            time_ms = self._machine.journal_time(self.time_ms, stamp_ms, body)
            outcome = self._machine.apply(position, time_ms, body)
        except BaseException as error:
            self.roll_back(error)
            raise
        self._rows.append((position, time_ms, body))
        self.row_bytes += len(body)
        self.position = position
        self.time_ms = time_ms
        self._stamp_ms = stamp_ms
        return Applied(position, time_ms, outcome)

    def journal_time(self, body: bytes, stamp_ms: int) -> int:
        """Journal time at an entry, were it the next."""
        return self._machine.journal_time(self.time_ms, stamp_ms, body)

    def redo(self) -> None:
        """Apply again what was rolled back. Raises as `apply`; nothing is lost by it."""
        if not self._undone:
            return
        try:
            self.begin(synced=False)
            for row in self._undone:
                # Deterministic: the outcome is the one that was delivered already.
                self._machine.apply(*row)
            for item in self._locals.items():
                self._connection.execute(_SET_LOCAL, item)
        except BaseException as error:
            self.roll_back(error)
            raise
        self._rows, self._undone = self._undone, []

    def set_local(self, name: str, value: int | str) -> None:
        """Set a value of this copy: with the entries that are applied and not committed, also where
        their transaction is lost."""
        if self.is_begun or self._undone:
            self._locals[name] = value
        if not self._undone:
            self._connection.execute(_SET_LOCAL, (name, value))

    def take_back_last(self, error: BaseException) -> None:
        """The last entry is refused after all, and with it its transaction is rolled back.

        Raises: what the error means, if it is SQLite's.
        """
        _, _, body = self._rows.pop()
        self.row_bytes -= len(body)
        self.position -= 1
        self.time_ms = self._rows[-1][1] if self._rows else self._committed_ms
        self.roll_back(error)

    def replay(self) -> None:
        """Apply the entries of `tail` (after a restore there are some), and make them journal."""
        while True:
            rows = self._connection.execute(
                "SELECT position, time_ms, body FROM tail ORDER BY position LIMIT ?",
                (_REPLAY_ENTRIES_MAX,),
            ).fetchall()
            if not rows:
                return
            for position, time_ms, body in rows:
                if position != self.position + 1:
                    raise gap(self._path, self.position + 1, position)
                self.apply(body, time_ms)
            try:
                self._connection.execute("DELETE FROM tail WHERE position <= ?", (self.position,))
            except BaseException as error:
                self.roll_back(error)
                raise
            self.commit()

    # -- ending --------------------------------------------------------------------------------

    def begin(self, *, synced: bool | None = None) -> None:
        """Begin a transaction whose COMMIT syncs, or not; None: as the last one."""
        if synced is not None and self._is_synced is not synced:
            # SQLite ignores this inside a transaction.
            level = "FULL" if synced else "NORMAL"
            self._connection.execute(f"PRAGMA synchronous = {level}")
            self._is_synced = synced
        self._connection.execute("BEGIN IMMEDIATE")
        self.is_begun = True

    def commit(self) -> None:
        """End the open transaction with its entries, if there is one."""
        if not self.is_begun:
            return
        try:
            self._machine.flush()
            self._write_rows()
        except BaseException as error:
            self.roll_back(error)
            raise
        self.end()

    def _write_rows(self) -> None:
        if not self._rows:
            return
        if self._keeps_journal:
            # The last row is the state's position, too: nothing else need be written.
            insert_rows(self._connection.execute, "INSERT INTO journal", self._rows)
        else:
            self._connection.execute(
                "UPDATE replica SET position = ?, time_ms = ?", (self.position, self.time_ms)
            )
        if self._keeps_mark:
            # At each commit, also when a snapshot makes one in the middle of a page: a mark of an
            # earlier entry would not show that the journal came back older than this one.
            mark = RowMark(self.position, self._stamp_ms, crc32c(self._rows[-1][2]))
            self._connection.execute(_SET_LOCAL, (LOCAL_MARK, mark.text))

    def end(self) -> None:
        """COMMIT. Raises: FatalStorageError."""
        try:
            self._connection.execute("COMMIT")
        except BaseException as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code == sqlite3.SQLITE_FULL and not self._is_synced and self._rows:
                # All of it is durable elsewhere, and nothing of it is here.
                self.roll_back(error)
            # Tried again, it might succeed with half of the pages lost by the kernel (a failed
            # fsync drops them): what is durable is unknown from here on.
            self.failure = f"a commit failed: {error}"
            raise FatalStorageError("commit", str(self._path), str(error)) from error
        self._spill(may=True)
        # SQLite's WAL gets an entry's body as well, where the journal is a table.
        self.uncheckpointed_bytes += _COMMIT_BYTES + 4 * self.row_bytes
        self.is_begun = False
        if self._journal is not None:
            self._journal.note(self._rows)
        self._rows = []
        self._locals.clear()
        self.row_bytes = 0
        self.committed_position = self.position
        self._committed_ms = self.time_ms
        if self._is_synced:
            self.durable_position = self.position

    def synced(self, position: int) -> None:
        """A power cut can't take the database back behind a position any more."""
        self.durable_position = max(self.durable_position, position)

    def roll_back(self, error: BaseException) -> None:
        """Undo a transaction whose statement failed; raises what the failure means."""
        self._machine.drop_caches()
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            self._spill(may=False)
        self.is_begun = False
        self._undone += self._rows
        self._rows = []
        try:
            # Some errors have rolled back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as failed:
            self.failure = f"a rollback failed: {failed}"
            raise FatalStorageError("roll back", str(self._path), str(failed)) from error
        if isinstance(error, sqlite3.Error):
            raise self.fail("append", error) from error

    def _spill(self, *, may: bool) -> None:
        if may is not self._may_spill:
            self._may_spill = may
            self._connection.execute(f"PRAGMA cache_spill = {'ON' if may else 'OFF'}")

    def fail(self, operation: str, error: sqlite3.Error) -> PenstockError:
        """Translate an error of SQLite; after some, nothing may be written any more."""
        translated = translate(error, operation, str(self._path))
        if isinstance(translated, FatalStorageError | CorruptDataError):
            self.failure = str(translated)
        return translated

    def check_usable(self) -> None:
        """Raises: FatalStorageError: nothing may be written any more."""
        if self.failure is not None:
            raise FatalStorageError("append", str(self._path), self.failure)


def gap(path: Path, expected: int, found: int) -> CorruptDataError:
    """The error of a journal in which entries are missing."""
    return CorruptDataError(
        "read journal", str(path), f"position {found} where {expected} is due", "restore a backup"
    )
