"""Snapshots of a replica's state, their check, and a database made of one.

Format, steps and crash cases: docs/formats/snapshot.md. Nothing here touches the writing
connection, so that any thread may take a snapshot while commits go on.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError, PenstockError
from penstock.replica.database import (
    REPLICA_SCHEMA,
    check_versions,
    connect_reader,
    is_no_table,
    pragma_integer,
    state_position,
    sync_directory,
    translate,
)
from penstock.replica.dump import state_digest, state_tables
from penstock.replica.marks import LOCAL_MARK, RowMark

SNAPSHOT_VERSION: Final = 2

_SNAPSHOT_SCHEMA: Final = (
    "CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), snapshot_version INTEGER"
    " NOT NULL, position INTEGER NOT NULL, time_ms INTEGER NOT NULL, digest BLOB NOT NULL,"
    " mark TEXT) STRICT"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """A snapshot's description of itself. `digest`: SHA-256 of the canonical dump; `mark`: of the
    last journal row that it holds, None where the file has the journal or nothing was applied."""

    position: int
    time_ms: int
    digest: bytes
    format_version: int
    mark: RowMark | None = None


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An entry as the journal holds it. `time_ms`: journal time."""

    position: int
    time_ms: int
    body: bytes


@contextmanager
def _scratch(path: Path) -> Iterator[sqlite3.Connection]:
    """A new file whose durability is seen to afterwards, in one go."""
    path.unlink(missing_ok=True)
    try:
        connection = sqlite3.connect(path, isolation_level=None, uri=True)
    except sqlite3.Error as error:
        raise translate(error, "write snapshot", str(path)) from error
    try:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        yield connection
    except sqlite3.Error as error:
        raise translate(error, "write snapshot", str(path)) from error
    finally:
        connection.close()


def write_snapshot(live: Path, target: Path) -> SnapshotInfo:
    """Write a verified snapshot of the database at `live` to `target`; one read transaction.

    Returns only once the file is durable under its name.

    Raises:
        StorageFullError: no space; nothing is left under the target's name.
        CorruptDataError: the copy is not what was read.
    """
    partial = target.with_name(target.name + ".partial")
    try:
        with _scratch(partial) as connection:
            connection.execute("ATTACH ? AS live", (f"{live.absolute().as_uri()}?mode=ro",))
            for name in ("application_id", "user_version"):
                value = pragma_integer(connection, f"live.{name}")
                connection.execute(f"PRAGMA main.{name} = {value}")
            connection.execute("BEGIN")
            position, time_ms = state_position(connection, schema="live")
            (mark,) = connection.execute(
                "SELECT max(value) FROM live.local WHERE name = ?", (LOCAL_MARK,)
            ).fetchone()
            tables = state_tables(connection, schema="live")
            for table in tables:
                (sql,) = connection.execute(
                    "SELECT sql FROM live.sqlite_master WHERE type = 'table' AND name = ?", (table,)
                ).fetchone()
                connection.execute(sql)
                connection.execute(
                    f'INSERT INTO main."{table}" SELECT * FROM live."{table}"'  # noqa: S608
                )
            # An index of a UNIQUE constraint has no statement of its own.
            indexes = connection.execute(
                "SELECT sql, tbl_name FROM live.sqlite_master"
                " WHERE type = 'index' AND sql IS NOT NULL ORDER BY name"
            ).fetchall()
            for sql, table in indexes:
                if table in tables:
                    connection.execute(sql)
            connection.execute(_SNAPSHOT_SCHEMA)
            connection.execute(
                "INSERT INTO main.snapshot VALUES (1, ?, ?, ?, ?, ?)",
                (SNAPSHOT_VERSION, position, time_ms, state_digest(connection), mark),
            )
            connection.execute("COMMIT")
        info = verify_snapshot(partial)
        _publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return info


def verify_snapshot(
    path: Path, *, application_id: int | None = None, format_version: int | None = None
) -> SnapshotInfo:
    """Read a snapshot whole and compare its digest.

    Args:
        application_id: what it must be, if given; `format_version`: at most this.
    Raises:
        NotFoundError: there is no such file.
        CorruptDataError: it is not what was written.
        InvalidRequestError: it belongs to another program or to a newer release.
    """
    connection = connect_reader(path)
    try:
        info = _read_info(connection, path, application_id, format_version)
        problems = [text for (text,) in connection.execute("PRAGMA integrity_check")]
        if problems != ["ok"]:
            raise CorruptDataError("verify snapshot", str(path), "; ".join(problems[:3]))
        digest = state_digest(connection)
        if digest != info.digest:
            raise CorruptDataError(
                "verify snapshot",
                str(path),
                f"digest {digest.hex()[:16]}..., written was {info.digest.hex()[:16]}...",
            )
    except sqlite3.Error as error:
        raise _unreadable(error, "verify snapshot", path) from error
    finally:
        connection.close()
    return info


def read_snapshot_info(
    path: Path, *, application_id: int | None = None, format_version: int | None = None
) -> SnapshotInfo:
    """Read a snapshot's description of itself; its rows are not read.

    Raises:
        NotFoundError: there is no such file.
        CorruptDataError: the file isn't a snapshot.
        InvalidRequestError: it belongs to another program or to a newer release.
    """
    connection = connect_reader(path)
    try:
        return _read_info(connection, path, application_id, format_version)
    except sqlite3.Error as error:
        raise _unreadable(error, "read snapshot", path) from error
    finally:
        connection.close()


def _unreadable(error: sqlite3.Error, operation: str, path: Path) -> PenstockError:
    if is_no_table(error):
        # A SQLite file, but no snapshot.
        return CorruptDataError(operation, str(path), str(error))
    return translate(error, operation, str(path))


def _read_info(
    connection: sqlite3.Connection,
    path: Path,
    application_id: int | None,
    format_version: int | None,
) -> SnapshotInfo:
    found_version = pragma_integer(connection, "user_version")
    if application_id is not None:
        check_versions(
            connection,
            path,
            application_id=application_id,
            format_version=found_version if format_version is None else format_version,
        )
    row = connection.execute("SELECT * FROM snapshot").fetchone()
    # Of id, version, position, time, digest; a mark since version 2.
    # A damaged page gives any types.
    if row is None or not isinstance(row[1], int) or not 1 <= row[1] <= SNAPSHOT_VERSION:
        raise CorruptDataError(
            "read snapshot",
            str(path),
            f"snapshot version {row and row[1]}, this release knows 1 to {SNAPSHOT_VERSION}",
        )
    return SnapshotInfo(
        position=row[2],
        time_ms=row[3],
        digest=row[4],
        format_version=found_version,
        mark=RowMark.parse(row[5]) if row[1] > 1 else None,
    )


def restore_snapshot(
    snapshot: Path,
    target: Path,
    *,
    application_id: int,
    format_version: int,
    tail: Iterable[JournalEntry] = (),
    is_verified: bool = False,
) -> SnapshotInfo:
    """Make a database at `target` of a snapshot and the journal's entries past it.

    The entries are stored, not applied: opening the database applies them.

    Args:
        tail: entries by position; those at or below the snapshot's are left out, the others
            must follow on.
        is_verified: its bytes are known to be those that were verified once; it is moved to the
            target then, not copied, and not read whole.
    Raises:
        CorruptDataError: the snapshot is damaged, or an entry is missing between.
        InvalidRequestError: there is a file at the target, or the format is newer.
    """
    check = read_snapshot_info if is_verified else verify_snapshot
    info = check(snapshot, application_id=application_id, format_version=format_version)
    partial = target.with_name(target.name + ".partial")
    try:
        if is_verified:
            snapshot.replace(partial)
        else:
            shutil.copyfile(snapshot, partial)
        connection = sqlite3.connect(partial, isolation_level=None)
        try:
            connection.execute("BEGIN")
            connection.execute("DROP TABLE snapshot")
            for sql in REPLICA_SCHEMA:
                connection.execute(sql)
            connection.execute(
                "INSERT INTO replica VALUES (1, ?, ?)", (info.position, info.time_ms)
            )
            connection.execute(
                "INSERT INTO snapshots VALUES (?, ?, ?)", (info.position, info.digest, info.time_ms)
            )
            if info.mark is not None:
                # What follows the journal from here compares this row with the journal's first.
                connection.execute("INSERT INTO local VALUES (?, ?)", (LOCAL_MARK, info.mark.text))
            expected = info.position + 1
            for entry in tail:
                if entry.position <= info.position:
                    continue
                if entry.position != expected:
                    raise CorruptDataError(
                        "restore",
                        str(target),
                        f"journal position {entry.position} where {expected} is due",
                    )
                connection.execute(
                    "INSERT INTO tail VALUES (?, ?, ?)",
                    (entry.position, entry.time_ms, entry.body),
                )
                expected += 1
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise translate(error, "restore", str(target)) from error
        finally:
            connection.close()
        _publish(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return info


def _publish(partial: Path, target: Path) -> None:
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(target)
    sync_directory(target.parent)
