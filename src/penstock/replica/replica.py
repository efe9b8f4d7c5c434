"""A replica: one SQLite database that has applied its journal up to a position.

Two ways to write. `append` makes an entry durable here: one transaction journals it, applies it
and is synced. Where the entry is durable elsewhere first (a WAL frame, another database), `apply`
applies it inside an open transaction and `commit` ends that one behind, without a sync: what a
power cut takes is applied again from there. See docs/formats/journal.md for tables and crash cases.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
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
    pragma_integer,
    state_position,
    sync_wal,
    translate,
    trim_cache,
)
from penstock.replica.dump import state_digest
from penstock.replica.machine import StateMachine
from penstock.replica.snapshot import JournalEntry, SnapshotInfo, write_snapshot
from penstock.replica.statements import insert_rows

OutcomeT = TypeVar("OutcomeT")

REPLAY_ENTRIES_MAX: Final = 256
"""Entries per transaction when a journal's tail is applied."""
TRIM_ENTRIES_MAX: Final = 1_000
"""Entries that one trim transaction deletes: it holds up commits meanwhile."""

_COMMIT_BYTES: Final = 24 << 10
"""What a small commit adds to SQLite's WAL, about: six pages."""
_CHECKPOINT_DUE_BYTES: Final = 4 << 20
_CHECK_SPACE_BYTES: Final = 256 << 10
"""An open transaction with more than this in it asks for free space at each entry, not once."""
_CHECKPOINT_FORCED_BYTES: Final = 64 << 20
_LOG_PAGES_MAX: Final = 4096
"""Pages of SQLite's WAL, 16 MiB, past which a checkpoint sees to it that it begins anew."""

_CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"

_Row = tuple[int, int, bytes]
"""(position, journal time, body)."""


@dataclass(slots=True)
class Appended(Generic[OutcomeT]):
    """An entry's place, journal time there, and what the machine made of it."""

    position: int
    time_ms: int
    outcome: OutcomeT


class Replica(Generic[OutcomeT]):
    """Appends and applies. One thread at a time writes (a lock sees to it); `checkpoint` and
    `snapshot` use connections of their own and hold up an append for one commit at most."""

    def __init__(
        self,
        path: Path,
        machine: StateMachine[OutcomeT],
        connection: sqlite3.Connection,
        *,
        fsync: bool,
        keeps_journal: bool,
    ) -> None:
        """Use `open`."""
        self.path = path
        self._directory = str(path.parent)
        self._machine = machine
        self._connection = connection
        self._fsync = fsync
        self._keeps_journal = keeps_journal
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._uncheckpointed_bytes = 0
        self._is_synced = fsync
        """What `PRAGMA synchronous` says: whether COMMIT syncs."""
        self._is_begun = False
        self._rows: list[_Row] = []
        """Entries applied in the open transaction."""
        self._row_bytes = 0
        self._undone: list[_Row] = []
        """Entries whose transaction was rolled back: applied again before anything else is."""
        self.position = 0
        """Of the last applied entry."""
        self.time_ms = 0
        self._committed_ms = 0
        self.committed_position = 0
        """Of the last entry that readers of the database see."""
        self.durable_position = 0
        """Of the last entry that a power cut can't take out of the database."""

    @classmethod
    def open(
        cls,
        path: Path,
        machine: StateMachine[OutcomeT],
        *,
        fsync: bool = True,
        keeps_journal: bool = True,
    ) -> "Replica[OutcomeT]":
        """Open, or create, and apply the entries past the state's position.

        Args:
            fsync: false gives up the last commits in a power cut, never the file.
            keeps_journal: false where the journal is elsewhere: entries are applied, not kept.
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
            else:
                _migrate(connection, machine)
            replica = cls(path, machine, connection, fsync=fsync, keeps_journal=keeps_journal)
            replica.position, replica.time_ms = state_position(connection)
            replica.committed_position = replica.position
            replica._committed_ms = replica.time_ms
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
        self,
        body: bytes,
        *,
        stamp_ms: int,
        frees_space: bool = False,
        write: Callable[[int, int], None] | None = None,
    ) -> Appended[OutcomeT]:
        """Append one entry and apply it, durably.

        Args:
            frees_space: the entry is a step towards deleting something: it may use the last of
                the disk, since else a full one could never be emptied.
            write: makes the entry durable elsewhere, given its position and journal time; the
                transaction then stays open until `commit`. If it raises StorageFullError the
                entry has not been, anywhere. None: the transaction is committed and synced.
        Raises:
            StorageFullError: no space; nothing changed, the next append tries anew.
            FatalStorageError: what is durable is unknown; every later call is refused.
            CorruptDataError: the machine does not know the entry; nothing changed.
        """
        with self._lock:
            self._check_usable()
            self._redo()
            if not self._is_begun or self._row_bytes + len(body) > _CHECK_SPACE_BYTES:
                check_space(
                    self._directory,
                    entry_bytes=self._row_bytes + len(body),
                    frees_space=frees_space,
                )
            if write is None:
                self._commit_open()
                appended = self._apply(body, stamp_ms, synced=self._fsync)
                try:
                    self._machine.flush()
                    self._write_rows()
                except BaseException as error:
                    self._take_back_last()
                    self._roll_back(error)
                    raise
                self._commit()
            else:
                appended = self._apply(body, stamp_ms)
                try:
                    write(appended.position, appended.time_ms)
                except StorageFullError as error:
                    self._take_back_last()
                    self._roll_back(error)
                    with contextlib.suppress(StorageFullError):
                        self._redo()  # else before the next entry
                    raise
                except BaseException as error:
                    # Applied, and nobody knows whether it is durable: it must never be committed.
                    self._failure = f"an entry could not be written: {error}"
                    raise
        if self._uncheckpointed_bytes > _CHECKPOINT_FORCED_BYTES:
            # Whoever should call `checkpoint` does not: the WAL must still not grow for ever.
            # The entry is committed: whatever goes wrong here must not look as if it were not.
            with contextlib.suppress(StorageFullError):
                self.checkpoint()
        return appended

    def apply(
        self, body: bytes, *, stamp_ms: int, position: int | None = None
    ) -> Appended[OutcomeT]:
        """Apply one entry that is durable elsewhere, inside the open transaction.

        Nothing is durable, nor seen by readers of the database, until `commit`.

        Args:
            position: what it must be, if given: the one after the last.
        Raises:
            StorageFullError: no space; it was not applied, and is to be given again. What was
                applied before stays so: it is applied again if its transaction was lost.
            FatalStorageError: every later call is refused.
            CorruptDataError: the entry is unknown, damaged, or not the next one.
        """
        with self._lock:
            self._check_usable()
            self._redo()
            if position is not None and position != self.position + 1:
                raise _gap(self.path, self.position + 1, position)
            return self._apply(body, stamp_ms)

    def commit(self) -> int:
        """Commit what was applied; any thread. Costs nothing when there is nothing.

        Not synced: `checkpoint` makes it durable.

        Returns:
            The position up to which readers of the database see the state now.
        Raises:
            StorageFullError: no space; a later call tries again.
            FatalStorageError: every later call is refused.
        """
        with self._lock:
            self._check_usable()
            self._redo()
            self._commit_open()
            return self.committed_position

    @property
    def is_busy(self) -> bool:
        """Whether another thread commits just now, so that whoever appends would wait."""
        return self._lock.locked()

    @property
    def uncommitted_count(self) -> int:
        """Entries that `commit` would commit."""
        return len(self._rows) + len(self._undone)

    @property
    def uncommitted_bytes(self) -> int:
        """Their bodies' bytes."""
        return self._row_bytes

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
            self._redo()
            self._commit_open()
            execute = self._connection.execute
            try:
                self._begin(synced=self._is_synced)
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

    def sync(self) -> int:
        """Make durable what was applied: one sync, of SQLite's WAL. Any thread; appends go on.

        Returns:
            The position up to which a power cut can't take the state back any more.
        Raises:
            StorageFullError: no space; a later one may succeed.
            FatalStorageError: it failed; every later append is refused.
        """
        position = self.commit()
        if self._fsync:
            # What is no longer in that file was synced by the checkpoint that took it out.
            try:
                sync_wal(self.path)
            except FatalStorageError as error:
                self._failure = str(error)
                raise
        self.durable_position = max(self.durable_position, position)
        return position

    def checkpoint(self) -> int:
        """Make durable what was applied, and copy it from SQLite's WAL into the database file.

        Meant for a thread of its own: it syncs both files. Appends go on meanwhile.

        Returns:
            As `sync`.
        Raises:
            StorageFullError: no space; a later one may succeed.
            FatalStorageError: a sync failed; every later append is refused.
        """
        before_bytes = self._uncheckpointed_bytes
        # By itself: a checkpoint that a reader keeps from moving anything syncs nothing.
        position = self.sync()
        try:
            connection = connect_writer(self.path, fsync=True)
            try:
                # Passive waits for nobody: what a reader still needs stays for the next one.
                ((_, log_pages, _),) = connection.execute(_CHECKPOINT)
                if log_pages > _LOG_PAGES_MAX:
                    self._begin_log_anew(connection)
            finally:
                connection.close()
            with self._lock:
                if self._failure is None:
                    trim_cache(self._connection)
        except sqlite3.Error as error:
            translated = translate(error, "checkpoint", str(self.path))
            if isinstance(translated, FatalStorageError):
                self._failure = str(translated)
            raise translated from error
        self._uncheckpointed_bytes = max(0, self._uncheckpointed_bytes - before_bytes)
        return position

    def snapshot(self, target: Path) -> SnapshotInfo:
        """Write a verified snapshot of the state; any thread. See `write_snapshot`."""
        self.commit()
        return write_snapshot(self.path, target)

    def journal_after(self, position: int) -> Iterator[JournalEntry]:
        """Entries past a position, oldest first, in one read transaction; any thread.

        Raises:
            CorruptDataError: entries right past `position` have been trimmed.
        """
        self._show()
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
        self._show()
        connection = connect_reader(self.path)
        try:
            connection.execute("BEGIN")
            return state_position(connection)[0], state_digest(connection)
        finally:
            connection.close()

    def close(self) -> None:
        """Commit and close; idempotent."""
        with self._lock:
            if self._failure is None:
                # Full: what is durable elsewhere is applied again by the next start.
                with contextlib.suppress(StorageFullError):
                    self._redo()
                    self._commit_open()
            if self._failure is None:
                self._failure = "it is closed"
            self._connection.close()

    # -- inside --------------------------------------------------------------------------------

    def _begin_log_anew(self, connection: sqlite3.Connection) -> None:
        """Copy what little has been committed since, while nothing is.

        SQLite's WAL begins anew with a transaction that finds all of it copied as it begins. Under
        load one begins right behind the last, so that none ever did, and the WAL grew by 0.8 MB/s.
        """
        with self._lock:
            if self._failure is None:
                self._redo()
                self._commit_open()
                connection.execute(_CHECKPOINT).fetchall()

    def _show(self) -> None:
        """Let readers of the database see what was applied; a closed one has been committed."""
        if self._failure is None:
            self.commit()

    def _replay(self) -> None:
        """Apply the entries of `tail` (after a restore there are some), and make them journal."""
        while True:
            rows = self._connection.execute(
                "SELECT position, time_ms, body FROM tail ORDER BY position LIMIT ?",
                (REPLAY_ENTRIES_MAX,),
            ).fetchall()
            if not rows:
                return
            for position, time_ms, body in rows:
                if position != self.position + 1:
                    raise _gap(self.path, self.position + 1, position)
                self._apply(body, time_ms)
            try:
                self._connection.execute("DELETE FROM tail WHERE position <= ?", (self.position,))
            except BaseException as error:
                self._roll_back(error)
                raise
            self._commit_open()

    def _begin(self, *, synced: bool) -> None:
        if self._is_synced is not synced:
            # SQLite ignores this inside a transaction.
            level = "FULL" if synced else "NORMAL"
            self._connection.execute(f"PRAGMA synchronous = {level}")
            self._is_synced = synced
        self._connection.execute("BEGIN IMMEDIATE")
        self._is_begun = True

    def _apply(self, body: bytes, stamp_ms: int, *, synced: bool = False) -> Appended[OutcomeT]:
        position = self.position + 1
        # Journal time never runs backwards, whatever the stamping clock does.
        time_ms = max(self.time_ms, stamp_ms)
        try:
            if not self._is_begun:
                self._begin(synced=synced)
            outcome = self._machine.apply(position, time_ms, body)
        except BaseException as error:
            self._roll_back(error)
            raise
        self._rows.append((position, time_ms, body))
        self._row_bytes += len(body)
        self.position = position
        self.time_ms = time_ms
        return Appended(position, time_ms, outcome)

    def _redo(self) -> None:
        """Apply again what was rolled back. Raises as `apply`; nothing is lost by it."""
        if not self._undone:
            return
        try:
            self._begin(synced=False)
            for row in self._undone:
                # Deterministic: the outcome is the one that was told already.
                self._machine.apply(*row)
        except BaseException as error:
            self._roll_back(error)
            raise
        self._rows, self._undone = self._undone, []

    def _take_back_last(self) -> None:
        """The last entry is refused after all; its transaction is about to be rolled back."""
        _, _, body = self._rows.pop()
        self._row_bytes -= len(body)
        self.position -= 1
        self.time_ms = self._rows[-1][1] if self._rows else self._committed_ms

    def _commit_open(self) -> None:
        """End the open transaction, if there is one."""
        if not self._is_begun:
            return
        try:
            self._machine.flush()
            self._write_rows()
        except BaseException as error:
            self._roll_back(error)
            raise
        self._commit()

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

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except BaseException as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code == sqlite3.SQLITE_FULL and not self._is_synced and self._rows:
                # All of it is durable elsewhere, and nothing of it is here.
                self._roll_back(error)
            # Tried again, it might succeed with half of the pages lost by the kernel (a failed
            # fsync drops them): what is durable is unknown from here on.
            self._failure = f"a commit failed: {error}"
            raise FatalStorageError("commit", str(self.path), str(error)) from error
        self._uncheckpointed_bytes += _COMMIT_BYTES + 4 * self._row_bytes
        self._is_begun = False
        self._rows = []
        self._row_bytes = 0
        self.committed_position = self.position
        self._committed_ms = self.time_ms
        if self._is_synced:
            self.durable_position = self.position

    def _roll_back(self, error: BaseException) -> None:
        """Undo a transaction whose statement failed; raises what the failure means."""
        self._machine.drop_caches()
        self._is_begun = False
        self._undone += self._rows
        self._rows = []
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


def _migrate(connection: sqlite3.Connection, machine: StateMachine[OutcomeT]) -> None:
    """Bring an older format version's tables to the machine's, in one transaction."""
    found = pragma_integer(connection, "user_version")
    if found == machine.format_version:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        machine.migrate(connection, found)
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
