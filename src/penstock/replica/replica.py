"""A replica: one SQLite database that has applied its journal up to a position.

Two ways to write. `append` makes an entry durable here: one transaction journals it, applies it
and is synced; or it is synced in journal files (docs/formats/journal-files.md). Where the entry is
durable elsewhere first (a WAL frame, another database), `apply` applies it inside an open
transaction and `commit` ends that one behind, without a sync: what a power cut takes is applied
again from there. See docs/formats/journal.md for tables and crash cases.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

from penstock.model.errors import (
    FatalStorageError,
    StorageFullError,
)
from penstock.replica.applied import Applied
from penstock.replica.creation import create_tables, migrate_tables
from penstock.replica.database import (
    check_space,
    check_versions,
    connect_reader,
    connect_writer,
    state_position,
    sync_wal,
    translate,
    trim_cache,
)
from penstock.replica.dump import state_digest
from penstock.replica.journal_files import JournalFiles
from penstock.replica.machine import StateMachine
from penstock.replica.snapshot import JournalEntry, SnapshotInfo, write_snapshot
from penstock.replica.transaction import Transaction, gap
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

OutcomeT = TypeVar("OutcomeT")

_TRIM_ENTRIES_MAX: Final = 1_000
"""Entries that one trim transaction deletes: it holds up commits meanwhile."""

_CHECKPOINT_DUE_BYTES: Final = 4 << 20
_CHECK_SPACE_BYTES: Final = 256 << 10
"""An open transaction with more than this in it asks for free space at each entry, not once."""
_CHECKPOINT_FORCED_BYTES: Final = 64 << 20
_LOG_PAGES_MAX: Final = 4096
"""Pages of SQLite's WAL, 16 MiB, past which a checkpoint sees to it that it begins again."""
_LEFT_PAGES_MAX: Final = 1024
"""Pages, 4 MiB, that a checkpoint may leave for a copy that holds up the appends."""

_CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"


class Replica(Generic[OutcomeT]):
    """Appends and applies. One thread at a time writes (a lock sees to it); `checkpoint` and
    `snapshot` use connections of their own and hold up an append for one commit at most."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        transaction: Transaction[OutcomeT],
        *,
        fsync: bool,
        journal: JournalFiles | None = None,
    ) -> None:
        """Use `open`."""
        self.path = path
        self._journal = journal
        self._directory = str(path.parent)
        self._connection = connection
        self._fsync = fsync
        self._lock = threading.Lock()
        self._transaction = transaction

    @classmethod
    def open(
        cls,
        path: Path,
        machine: StateMachine[OutcomeT],
        *,
        fsync: bool = True,
        keeps_journal: bool = True,
        journal: JournalFiles | None = None,
    ) -> "Replica[OutcomeT]":
        """Open, or create, and apply the entries past the state's position.

        Args:
            fsync: false gives up the last commits in a power cut, never the file.
            keeps_journal: false where the journal is elsewhere: entries are applied, and the mark
                of the last one is kept.
            journal: keeps the entries in place of the database's own table; it is written,
                synced and closed here.
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
                oldest_version=machine.oldest_version,
            )
            if not exists:
                create_tables(connection, machine)
            else:
                migrate_tables(connection, machine)
            position, time_ms = state_position(connection)
            transaction = Transaction(
                path,
                machine,
                connection,
                position=position,
                time_ms=time_ms,
                fsync=fsync,
                keeps_journal=keeps_journal and journal is None,
                journal=journal,
                keeps_mark=not keeps_journal,
            )
            machine.bind(connection)
            transaction.replay()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            connection.close()
            raise translate(error, "open", str(path)) from error
        except BaseException:
            connection.close()
            raise
        return cls(path, connection, transaction, fsync=fsync, journal=journal)

    # -- how far it is -------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The position of the last applied entry."""
        return self._transaction.position

    @property
    def time_ms(self) -> int:
        """Journal time there."""
        return self._transaction.time_ms

    def journal_time(self, body: bytes, *, stamp_ms: int) -> int:
        """Journal time at an entry, were it the next; nothing is applied. Any thread."""
        with self._lock:
            return self._transaction.journal_time(body, stamp_ms)

    @property
    def base_position(self) -> int:
        """The least position of a snapshot that the journal files lead on from; 0: they begin at
        the first entry, or there are none."""
        return max(0, self._journal.floor - 1) if self._journal is not None else 0

    @property
    def committed_position(self) -> int:
        """The position of the last entry that readers of the database see."""
        return self._transaction.committed_position

    @property
    def durable_position(self) -> int:
        """The position of the last entry that a power cut can't take out of the database."""
        return self._transaction.durable_position

    # -- writing -------------------------------------------------------------------------------

    def append(
        self,
        body: bytes,
        *,
        stamp_ms: int,
        frees_space: bool = False,
        write: Callable[[int, int], None] | None = None,
    ) -> Applied[OutcomeT]:
        """Append one entry and apply it, durably.

        Args:
            frees_space: the entry is a step towards deleting something: it may use the last of
                the disk, since else a full one could never be emptied.
            write: makes the entry durable elsewhere, given its position and journal time; the
                transaction then stays open until `commit`. If it raises StorageFullError the
                entry has not been, anywhere. None: the transaction is committed and synced.
        Raises:
            StorageFullError: no space; nothing changed, the next append tries again.
            FatalStorageError: what is durable is unknown; every later call is refused.
            CorruptDataError: the machine does not know the entry; nothing changed.
        """
        with self._lock:
            self._transaction.check_usable()
            self._transaction.redo()
            if (
                not self._transaction.is_begun
                or self._transaction.row_bytes + len(body) > _CHECK_SPACE_BYTES
            ):
                check_space(
                    self._directory,
                    entry_bytes=self._transaction.row_bytes + len(body),
                    frees_space=frees_space,
                )
            if write is None:
                appended = self._transaction.append(body, stamp_ms)
            else:
                appended = self._transaction.apply(body, stamp_ms)
                try:
                    write(appended.position, appended.time_ms)
                except StorageFullError as error:
                    self._transaction.take_back_last(error)
                    try:
                        self._transaction.redo()
                    except StorageFullError as full:
                        saying = "the database is brought along before the next entry"
                        heard(Cause.DATABASE_FULL, full, logger, saying)
                    raise
                except BaseException as error:
                    # Applied, and it is unknown whether it is durable: it must never be committed.
                    self._transaction.failure = f"an entry could not be written: {error}"
                    raise
        if self._transaction.uncheckpointed_bytes > _CHECKPOINT_FORCED_BYTES:
            # `checkpoint` isn't being called as it should: the WAL must still not grow for ever.
            # The entry is committed: whatever goes wrong here must not look as if it were not.
            try:
                self.checkpoint()
            except StorageFullError as error:
                heard(Cause.DATABASE_FULL, error, logger, "no checkpoint of the database")
        return appended

    def apply(
        self, body: bytes, *, stamp_ms: int, position: int | None = None
    ) -> Applied[OutcomeT]:
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
            self._transaction.check_usable()
            self._transaction.redo()
            if position is not None and position != self.position + 1:
                raise gap(self.path, self.position + 1, position)
            return self._transaction.apply(body, stamp_ms)

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
            self._transaction.check_usable()
            self._transaction.redo()
            self._transaction.commit()
            if self._journal is not None:
                # Full: the entries are elsewhere until `sync` succeeds.
                try:
                    self._journal.write()
                except StorageFullError as error:
                    heard(Cause.JOURNAL_FILE, error, logger, "entries are written later")
            return self.committed_position

    @property
    def is_busy(self) -> bool:
        """Whether another thread commits just now, so that an append would wait."""
        return self._lock.locked()

    @property
    def uncommitted_count(self) -> int:
        """Entries that `commit` would commit."""
        return self._transaction.uncommitted_count

    @property
    def uncommitted_bytes(self) -> int:
        """Their bodies' bytes."""
        return self._transaction.row_bytes

    def trim_journal(self, snapshot: SnapshotInfo, *, until: int | None = None) -> int:
        """Note a verified snapshot and delete entries that the one before it covers.

        Any thread. One call deletes a bounded number; call until it returns 0.

        Args:
            snapshot: verified, and stored wherever it is to survive.
            until: delete none past this position.
        Returns:
            How many entries were deleted, without those of journal files.
        """
        with self._lock:
            self._transaction.check_usable()
            self._transaction.redo()
            self._transaction.commit()
            execute = self._connection.execute
            try:
                self._transaction.begin()
                execute(
                    "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)",
                    (snapshot.position, snapshot.digest, snapshot.time_ms),
                )
                execute(
                    "DELETE FROM snapshots WHERE position NOT IN"
                    " (SELECT position FROM snapshots ORDER BY position DESC LIMIT 2)"
                )
                older, count = execute("SELECT min(position), count(*) FROM snapshots").fetchone()
                older = older if until is None else min(older, until)
                deleted = 0
                if count == 2:
                    deleted = execute(
                        "DELETE FROM journal WHERE position <= ? AND position < ? AND position <"
                        " (SELECT min(position) FROM journal) + ?",
                        # The last entry stays, since it holds the state's position.
                        (older, self.position, _TRIM_ENTRIES_MAX),
                    ).rowcount
            except BaseException as error:
                self._transaction.roll_back(error)
                raise
            self._transaction.end()
        if self._journal is not None and not deleted and count == 2:
            self._journal.trim(older)
        return deleted

    def set_local(self, name: str, value: int | str) -> None:
        """Keep a value of this copy alone, outside state and snapshots."""
        with self._lock:
            self._transaction.check_usable()
            try:
                self._transaction.set_local(name, value)
            except sqlite3.Error as error:
                if self._transaction.is_begun:
                    # SQLite may have ended the transaction by itself.
                    self._transaction.roll_back(error)
                raise self._transaction.fail("set local value", error) from error

    def local(self, name: str) -> int | str | None:
        """A value of this copy."""
        with self._lock:
            row = self._connection.execute(
                "SELECT value FROM local WHERE name = ?", (name,)
            ).fetchone()
        return None if row is None else row[0]

    # -- next to the writer --------------------------------------------------------------------

    @property
    def checkpoint_due(self) -> bool:
        """Enough was written that a checkpoint is worth its syncs."""
        return self._transaction.uncheckpointed_bytes >= _CHECKPOINT_DUE_BYTES

    def sync(self) -> int:
        """Make durable what was applied: one sync, of the journal files or else of SQLite's WAL.
        Any thread; appends go on.

        Returns:
            The position up to which no power cut takes anything any more.
        Raises:
            StorageFullError: no space; a later one may succeed.
            FatalStorageError: it failed; every later append is refused.
        """
        position = self.commit()
        if self._journal is not None:
            try:
                position = self._journal.sync()
            except FatalStorageError as error:
                self._transaction.failure = str(error)
                raise
        elif self._fsync:
            # What is no longer in that file was synced by the checkpoint that took it out.
            try:
                sync_wal(self.path)
            except FatalStorageError as error:
                self._transaction.failure = str(error)
                raise
        self._transaction.synced(position)
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
        before_bytes = self._transaction.uncheckpointed_bytes
        # By itself: a checkpoint that a reader keeps from moving anything syncs nothing.
        position = self.sync()
        try:
            connection = connect_writer(self.path, fsync=True)
            try:
                # Passive waits for no reader: what one still needs stays for the next checkpoint.
                ((_, log_pages, copied_pages),) = connection.execute(_CHECKPOINT)
                # With more left a reader is long at it. Should it end just now, hundreds of MB
                # would be copied while nothing can be appended.
                if log_pages > _LOG_PAGES_MAX and log_pages - copied_pages <= _LEFT_PAGES_MAX:
                    self._begin_log_anew(connection)
            finally:
                connection.close()
            with self._lock:
                if self._transaction.failure is None:
                    trim_cache(self._connection)
        except sqlite3.Error as error:
            translated = translate(error, "checkpoint", str(self.path))
            if isinstance(translated, FatalStorageError):
                self._transaction.failure = str(translated)
            raise translated from error
        self._transaction.uncheckpointed_bytes = max(
            0, self._transaction.uncheckpointed_bytes - before_bytes
        )
        return position

    def snapshot(self, target: Path) -> SnapshotInfo:
        """Write a verified snapshot of the state; any thread. See `write_snapshot`."""
        self.commit()
        if self._journal is not None:
            # So that a file ends where the snapshot covers all of it.
            self._journal.roll()
            self.sync()
        return write_snapshot(self.path, target)

    def journal_after(self, position: int) -> Iterator[JournalEntry]:
        """Entries past a position, oldest first, in one read transaction; any thread.

        Raises:
            CorruptDataError: entries right past `position` have been trimmed.
        """
        self._show()
        if self._journal is not None:
            yield from self._journal.entries(position)
            return
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
                    raise gap(self.path, expected, entry.position)
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

    def close(self) -> bool:
        """Commit and close; idempotent. Returns whether nothing had failed, and all is committed,
        at the first call."""
        with self._lock:
            is_in_order = self._transaction.failure is None
            if is_in_order:
                # Full: what is durable elsewhere is applied again by the next start.
                try:
                    self._transaction.redo()
                    self._transaction.commit()
                except StorageFullError as error:
                    heard(Cause.DATABASE_FULL, error, logger, "the next start brings it along")
                    is_in_order = False
            if self._transaction.failure is None:
                self._transaction.failure = "it is closed"
            self._connection.close()
        if self._journal is not None:
            self._journal.close()
        return is_in_order

    def _begin_log_anew(self, connection: sqlite3.Connection) -> None:
        """Copy what little has been committed since, while nothing is.

        SQLite's WAL begins again with a transaction that finds all of it copied as it begins. Under
        load one begins right behind the last, so that none ever did, and the WAL grew by 0.8 MB/s.
        """
        with self._lock:
            if self._transaction.failure is None:
                self._transaction.redo()
                self._transaction.commit()
                connection.execute(_CHECKPOINT).fetchall()

    def _show(self) -> None:
        """Let readers of the database see what was applied; a closed one has been committed."""
        if self._transaction.failure is None:
            self.commit()
