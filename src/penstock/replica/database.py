"""Opening a replica's SQLite file, and what its errors mean. See docs/formats/journal.md."""

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.system.files import sync_descriptor

BUSY_TIMEOUT_S: Final = 5.0
_CACHE_KIB_MAX: Final = 16 << 10
"""Cache of the connection that writes: enough for what a large commit needs of every tree."""
_CACHE_KIB_KEPT: Final = 4 << 10
"""Cache that `trim_cache` leaves. With 2 MiB, commits over 640 partitions took twice the CPU."""
FREE_BYTES_MIN: Final = 8 << 20
"""Free space that a volume needs before a transaction begins (see `check_space`)."""
FREE_BYTES_MIN_TO_FREE: Final = FREE_BYTES_MIN // 4
"""The same for an entry that is a step towards deleting something."""

REPLICA_TABLES: Final = ("journal", "local", "replica", "snapshot", "snapshots", "tail")
"""Tables that are not state: in no snapshot and no digest."""

_ENTRIES: Final = (
    "(position INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, body BLOB NOT NULL) STRICT"
)
REPLICA_SCHEMA: Final = (
    f"CREATE TABLE journal {_ENTRIES}",
    f"CREATE TABLE tail {_ENTRIES}",
    """CREATE TABLE replica (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        position INTEGER NOT NULL,
        time_ms INTEGER NOT NULL
    ) STRICT""",
    "CREATE TABLE local (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID",
    """CREATE TABLE snapshots (
        position INTEGER PRIMARY KEY,
        digest BLOB NOT NULL,
        time_ms INTEGER NOT NULL
    ) STRICT""",
)

# Whatever is in `journal` is applied, in the same transaction; so its last row says how far the
# state is, and a commit need not write that anywhere else. `replica` is the floor that a restore
# began from.
SELECT_POSITION: Final = (
    "SELECT position, time_ms FROM {schema}.journal"
    " UNION ALL SELECT position, time_ms FROM {schema}.replica ORDER BY position DESC LIMIT 1"
)

# Primary result codes of SQLite (sqlite.org/rescode.html); the low byte of an extended code.
_ERROR, _BUSY, _READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB = 1, 5, 8, 10, 11, 13, 14, 26


def connect_writer(path: Path, *, fsync: bool) -> sqlite3.Connection:
    """The one connection that writes. Transactions are begun and ended by hand.

    Args:
        fsync: a commit that returned survives a power cut; else only a process crash.
    """
    # One thread at a time uses it, under the replica's lock, but not always the same one.
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # NORMAL leaves the syncs to checkpoints: nothing is damaged by a power cut, but the last
        # commits may be gone.
        connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA fullfsync = 1")
        connection.execute("PRAGMA checkpoint_fullfsync = 1")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB_MAX}")
    except BaseException:
        connection.close()
        raise
    return connection


def trim_cache(connection: sqlite3.Connection) -> None:
    """Give back the memory of the pages that were used longest ago.

    Nothing leaves a cache before it is full, and each entry of the journal adds to pages that are
    not read again: a server's memory rose for six minutes under a steady load.
    """
    for kibibytes in (_CACHE_KIB_KEPT, _CACHE_KIB_MAX):
        connection.execute(f"PRAGMA cache_size = -{kibibytes}")


def connect_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection, for the thread that calls this; any thread may close it.

    Raises:
        NotFoundError: there is no such file.
        RetryableError: too many files are open.
    """
    if not path.exists():
        raise NotFoundError("open", str(path), "there is no such file")
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            # For closing alone: a server's end closes connections of threads that are gone.
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise translate(error, "open", str(path)) from error
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def check_versions(
    connection: sqlite3.Connection,
    path: Path,
    *,
    application_id: int,
    format_version: int,
    oldest_version: int = 0,
) -> bool:
    """Whether the file has been created; refuses what this release can't read.

    Returns:
        False for a file without any table, which is to be created.
    Raises:
        InvalidRequestError: the file belongs to another program or to a newer release, or it is of
            a version below the oldest.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    found_id = pragma_integer(connection, "application_id")
    found_version = pragma_integer(connection, "user_version")
    if not tables and not found_id:
        return False
    if found_id != application_id:
        raise InvalidRequestError(
            "open",
            str(path),
            f"application id {found_id:#010x}, not {application_id:#010x}",
            "this is a database of another program",
        )
    if found_version > format_version:
        raise InvalidRequestError(
            "open",
            str(path),
            f"format version {found_version}, this release knows {format_version}",
            "open it with the release that wrote it, or a later one",
        )
    refuse_older(str(path), found_version, oldest=oldest_version, newest=format_version)
    return True


def refuse_older(subject: str, found: int, *, oldest: int, newest: int) -> None:
    """Refuse a format version that only builds from before the first release wrote.

    Raises:
        InvalidRequestError: the version is below the oldest.
    """
    if found < oldest:
        raise InvalidRequestError(
            "open",
            subject,
            f"format version {found}, this release opens versions {oldest} to {newest}",
            "only builds from before the first release wrote it: consume the records with that "
            "build, and produce them to a new log",
        )


def pragma_integer(connection: sqlite3.Connection, name: str) -> int:
    """A pragma's integer value."""
    value = connection.execute(f"PRAGMA {name}").fetchone()[0]
    assert isinstance(value, int)
    return value


def check_space(directory: str, *, entry_bytes: int, frees_space: bool = False) -> None:
    """Refuse a transaction that might meet the end of the disk in COMMIT.

    In WAL mode SQLite writes pages at COMMIT, so that is where a full disk would show; and a
    failed COMMIT is fatal, because what is durable is unknown then. So it is asked first. One
    `statvfs` costs a microsecond.

    Raises:
        StorageFullError: too little is free.
    """
    volume = os.statvfs(directory)
    free_bytes = volume.f_bavail * volume.f_frsize
    reserve_bytes = FREE_BYTES_MIN_TO_FREE if frees_space else FREE_BYTES_MIN
    needed_bytes = reserve_bytes + 8 * entry_bytes
    if free_bytes < needed_bytes:
        raise StorageFullError(
            "append",
            directory,
            f"{free_bytes} bytes are free, {needed_bytes} are needed",
            "free some space; writing goes on by itself",
        )


def translate(
    error: sqlite3.Error | UnicodeDecodeError, operation: str, subject: str
) -> PenstockError:
    """Translate an error of a statement (not of COMMIT) for the caller."""
    if isinstance(error, UnicodeDecodeError):
        # SQLite's own words about a damaged schema: it quotes what it has found.
        return CorruptDataError(operation, subject, str(error), "restore it from a backup")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    detail = f"{name}: {error}"
    if code == _FULL:
        return StorageFullError(operation, subject, detail, "free some space")
    if code in (_IOERR, _READONLY):
        return FatalStorageError(operation, subject, detail)
    if code in (_CORRUPT, _NOTADB):
        return CorruptDataError(operation, subject, detail, "restore it from a backup")
    if code == _CANTOPEN:
        return _not_opened(operation, Path(subject), detail)
    if code == _BUSY:
        return RetryableError(operation, subject, detail, "does another process write it?")
    return FatalStorageError(operation, subject, detail)


def is_no_table(error: sqlite3.Error) -> bool:
    """Whether a statement has failed by what is in the file, not by what is around it."""
    return getattr(error, "sqlite_errorcode", _ERROR) & 0xFF == _ERROR


def _not_opened(operation: str, path: Path, detail: str) -> PenstockError:
    # SQLite doesn't say why. Trying to open the file here would tell, and closing it again would
    # give up the locks that SQLite has on it in this process.
    wanted = path if path.exists() else path.parent
    if path.is_dir() or not os.access(wanted, os.R_OK | os.W_OK):
        return NotFoundError(operation, str(path), detail)
    return RetryableError(
        operation, str(path), detail, "if too many files are open, raise the limit with ulimit -n"
    )


def sync_wal(path: Path) -> None:
    """Make durable what was committed to a database without a sync.

    Raises:
        StorageFullError: too many files are open; to be tried again.
        FatalStorageError: the sync failed.
    """
    wal = path.with_name(path.name + "-wal")
    try:
        # SQLite's locks lie on its other two files, so closing this one gives up none.
        descriptor = os.open(wal, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # the checkpoint that left nothing of it has synced the database
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise StorageFullError("sync", str(wal), f"too many open files: {error}") from error
        raise FatalStorageError("sync", str(wal), str(error)) from error
    try:
        sync_descriptor(descriptor)
    except OSError as error:
        raise FatalStorageError("sync", str(wal), str(error)) from error
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make creations and renames in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def state_position(connection: sqlite3.Connection, *, schema: str = "main") -> tuple[int, int]:
    """The last applied entry's position and journal time."""
    position, time_ms = connection.execute(SELECT_POSITION.format(schema=schema)).fetchone()
    return position, time_ms
