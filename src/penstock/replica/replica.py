"""A replica: one SQLite database that has applied its journal up to a position.

Embedded: the journal is a table of the same file, so that one transaction appends an entry,
applies it and moves the position. See docs/formats/journal.md for tables and crash cases.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    PenstockError,
    StorageFullError,
)
from penstock.replica.database import (
    REPLICA_SCHEMA,
    check_space,
    check_versions,
    connect_reader,
    connect_writer,
    state_position,
    translate,
)
from penstock.replica.dump import state_digest
from penstock.replica.machine import StateMachine
from penstock.replica.snapshot import JournalEntry, SnapshotInfo, write_snapshot

OutcomeT = TypeVar("OutcomeT")

REPLAY_ENTRIES_MAX: Final = 256
"""Entries per transaction when a journal's tail is applied."""
TRIM_ENTRIES_MAX: Final = 1_000
"""Entries that one trim transaction deletes: it holds up commits meanwhile."""

_COMMIT_BYTES: Final = 24 << 10
"""What a small commit adds to SQLite's WAL, about: six pages."""
_CHECKPOINT_DUE_BYTES: Final = 4 << 20
_CHECKPOINT_FORCED_BYTES: Final = 64 << 20


@dataclass(slots=True)
class Appended(Generic[OutcomeT]):
    """An entry's place, journal time there, and what the machine made of it."""

    position: int
    time_ms: int
    outcome: OutcomeT


class Replica(Generic[OutcomeT]):
    """Appends and applies. One thread at a time writes (a lock sees to it); `checkpoint` and
    `snapshot` use connections of their own and never hold up an append."""

    def __init__(
        self, path: Path, machine: StateMachine[OutcomeT], connection: sqlite3.Connection
    ) -> None:
        """Use `open`."""
        self.path = path
        self._directory = str(path.parent)
        self._machine = machine
        self._connection = connection
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._uncheckpointed_bytes = 0
        self.position = 0
        self.time_ms = 0

    @classmethod
    def open(
        cls, path: Path, machine: StateMachine[OutcomeT], *, fsync: bool = True
    ) -> "Replica[OutcomeT]":
        """Open, or create, and apply the entries past the state's position.

        Args:
            fsync: false gives up the last commits in a power cut, never the file.
        Raises:
            InvalidRequestError: another program's file, or a newer release's.
            CorruptDataError: the file or an entry is damaged, or an entry is missing.
            StorageFullError: no space to create or replay.
        """
        try:
            connection = connect_writer(path, fsync=fsync)
        except sqlite3.Error as error:
            raise translate(error, "open", str(path)) from error
        try:
            exists = check_versions(
                connection,
                path,
                application_id=machine.application_id,
                format_version=machine.format_version,
            )
            if not exists:
                _create(connection, machine)
            replica = cls(path, machine, connection)
            replica.position, replica.time_ms = state_position(connection)
            machine.bind(connection)
            replica._replay()
        except sqlite3.Error as error:
            connection.close()
            raise translate(error, "open", str(path)) from error
        except BaseException:
            connection.close()
            raise
        return replica

    # -- writing -------------------------------------------------------------------------------

    def append(
        self, body: bytes, *, stamp_ms: int, frees_space: bool = False
    ) -> Appended[OutcomeT]:
        """Append one entry and apply it, durably, in one transaction.

        Args:
            frees_space: the entry is a step towards deleting something: it may use the last of
                the disk, since else a full one could never be emptied.
        Raises:
            StorageFullError: no space; nothing changed, the next append tries anew.
            FatalStorageError: what is durable is unknown; every later call is refused.
            CorruptDataError: the machine does not know the entry; nothing changed.
        """
        with self._lock:
            self._check_usable()
            check_space(self._directory, entry_bytes=len(body), frees_space=frees_space)
            position = self.position + 1
            # Journal time never runs backwards, whatever the stamping clock does.
            time_ms = max(self.time_ms, stamp_ms)
            execute = self._connection.execute
            try:
                execute("BEGIN IMMEDIATE")
                # The entry's row is the state's position, too: one row less to write.
                execute("INSERT INTO journal VALUES (?, ?, ?)", (position, time_ms, body))
                outcome = self._machine.apply(position, time_ms, body)
                self._machine.flush()
            except BaseException as error:
                self._roll_back(error)
                raise
            self._commit()
            self.position = position
            self.time_ms = time_ms
            self._uncheckpointed_bytes += _COMMIT_BYTES + 4 * len(body)
        if self._uncheckpointed_bytes > _CHECKPOINT_FORCED_BYTES:
            # Whoever should call `checkpoint` does not: the WAL must still not grow for ever.
            # The entry is committed: whatever goes wrong here must not look as if it were not.
            with contextlib.suppress(StorageFullError):
                self.checkpoint()
        return Appended(position, time_ms, outcome)

    def trim_journal(self, snapshot: SnapshotInfo) -> int:
        """Note a verified snapshot and delete entries that the one before it covers.

        Any thread. One call deletes a bounded number; call until it returns 0.

        Args:
            snapshot: verified, and stored wherever it is to survive.
        Returns:
            How many entries were deleted.
        """
        with self._lock:
            self._check_usable()
            execute = self._connection.execute
            try:
                execute("BEGIN IMMEDIATE")
                execute(
                    "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)",
                    (snapshot.position, snapshot.digest, snapshot.time_ms),
                )
                execute(
                    "DELETE FROM snapshots WHERE position NOT IN"
                    " (SELECT position FROM snapshots ORDER BY position DESC LIMIT 2)"
                )
                older, count = execute("SELECT min(position), count(*) FROM snapshots").fetchone()
                deleted = 0
                if count == 2:
                    deleted = execute(
                        "DELETE FROM journal WHERE position <= ? AND position < ? AND position <"
                        " (SELECT min(position) FROM journal) + ?",
                        # The last entry stays, since it holds the state's position.
                        (older, self.position, TRIM_ENTRIES_MAX),
                    ).rowcount
            except BaseException as error:
                self._roll_back(error)
                raise
            self._commit()
            self._uncheckpointed_bytes += _COMMIT_BYTES
        return deleted

    def set_local(self, name: str, value: int | str) -> None:
        """Keep a value of this copy alone, outside state and snapshots."""
        with self._lock:
            self._check_usable()
            try:
                self._connection.execute(
                    "INSERT OR REPLACE INTO local VALUES (?, ?)", (name, value)
                )
            except sqlite3.Error as error:
                raise self._fail("set local value", error) from error

    def local(self, name: str) -> int | str | None:
        """A value of this copy."""
        with self._lock:
            row = self._connection.execute(
                "SELECT value FROM local WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else row[0]

    # -- beside the writer ---------------------------------------------------------------------

    @property
    def checkpoint_due(self) -> bool:
        """Enough was written that a checkpoint is worth its syncs."""
        return self._uncheckpointed_bytes >= _CHECKPOINT_DUE_BYTES

    def checkpoint(self) -> None:
        """Copy committed pages from SQLite's WAL into the database file.

        Meant for a thread of its own: it syncs both files. Appends go on meanwhile.

        Raises:
            StorageFullError: no space; a later one may succeed.
            FatalStorageError: a sync failed; every later append is refused.
        """
        self._check_usable()
        before_bytes = self._uncheckpointed_bytes
        try:
            connection = connect_writer(self.path, fsync=True)
            try:
                # Passive waits for nobody: what a reader still needs stays for the next one.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                connection.close()
        except sqlite3.Error as error:
            translated = translate(error, "checkpoint", str(self.path))
            if isinstance(translated, FatalStorageError):
                self._failure = str(translated)
            raise translated from error
        self._uncheckpointed_bytes = max(0, self._uncheckpointed_bytes - before_bytes)

    def snapshot(self, target: Path) -> SnapshotInfo:
        """Write a verified snapshot of the state; any thread. See `write_snapshot`."""
        return write_snapshot(self.path, target)

    def journal_after(self, position: int) -> Iterator[JournalEntry]:
        """Entries past a position, oldest first, in one read transaction; any thread.

        Raises:
            CorruptDataError: entries right past `position` have been trimmed.
        """
        connection = connect_reader(self.path)
        try:
            connection.execute("BEGIN")
            expected = position + 1
            for row in connection.execute(
                "SELECT position, time_ms, body FROM journal WHERE position > ? ORDER BY position",
                (position,),
            ):
                entry = JournalEntry(*row)
                if entry.position != expected:
                    raise _gap(self.path, expected, entry.position)
                expected += 1
                yield entry
        finally:
            connection.close()

    def digest(self) -> tuple[int, bytes]:
        """The state's position and digest, in one read transaction; any thread. Reads it all."""
        connection = connect_reader(self.path)
        try:
            connection.execute("BEGIN")
            return state_position(connection)[0], state_digest(connection)
        finally:
            connection.close()

    def close(self) -> None:
        """Close; idempotent."""
        with self._lock:
            if self._failure is None:
                self._failure = "it is closed"
            self._connection.close()

    # -- inside --------------------------------------------------------------------------------

    def _replay(self) -> None:
        """Apply the entries of `tail` (after a restore there are some), and make them journal."""
        while True:
            rows = self._connection.execute(
                "SELECT position, time_ms, body FROM tail ORDER BY position LIMIT ?",
                (REPLAY_ENTRIES_MAX,),
            ).fetchall()
            if not rows:
                return
            position, time_ms = self.position, self.time_ms
            execute = self._connection.execute
            try:
                execute("BEGIN IMMEDIATE")
                for found, found_ms, body in rows:
                    if found != position + 1:
                        raise _gap(self.path, position + 1, found)
                    position, time_ms = found, max(time_ms, found_ms)
                    execute("INSERT INTO journal VALUES (?, ?, ?)", (position, time_ms, body))
                    self._machine.apply(position, time_ms, body)
                self._machine.flush()
                execute("DELETE FROM tail WHERE position <= ?", (position,))
            except BaseException as error:
                self._roll_back(error)
                raise
            self._commit()
            self.position, self.time_ms = position, time_ms

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except BaseException as error:
            # Tried again, it might succeed with half of the pages lost by the kernel (a failed
            # fsync drops them): what is durable is unknown from here on.
            self._failure = f"a commit failed: {error}"
            raise FatalStorageError("commit", str(self.path), str(error)) from error

    def _roll_back(self, error: BaseException) -> None:
        """Undo a transaction whose statement failed; raises what the failure means."""
        self._machine.drop_caches()
        try:
            # Some errors have rolled back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as failed:
            self._failure = f"a rollback failed: {failed}"
            raise FatalStorageError("roll back", str(self.path), str(failed)) from error
        if isinstance(error, sqlite3.Error):
            raise self._fail("append", error) from error

    def _fail(self, operation: str, error: sqlite3.Error) -> PenstockError:
        translated = translate(error, operation, str(self.path))
        if isinstance(translated, FatalStorageError | CorruptDataError):
            self._failure = str(translated)
        return translated

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise FatalStorageError("append", str(self.path), self._failure)


def _create(connection: sqlite3.Connection, machine: StateMachine[OutcomeT]) -> None:
    # One transaction, the ids included: a file is created whole or is found empty.
    connection.execute("BEGIN IMMEDIATE")
    try:
        for sql in REPLICA_SCHEMA:
            connection.execute(sql)
        machine.create(connection)
        connection.execute("INSERT INTO replica VALUES (1, 0, 0)")
        connection.execute(f"PRAGMA application_id = {machine.application_id}")
        connection.execute(f"PRAGMA user_version = {machine.format_version}")
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _gap(path: Path, expected: int, found: int) -> CorruptDataError:
    return CorruptDataError(
        "read journal", str(path), f"position {found} where {expected} is due", "restore a backup"
    )
