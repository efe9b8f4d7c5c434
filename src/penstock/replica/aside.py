"""Replicas that are set aside: they have applied rows which the journal has lost.

Such a replica names acknowledged records that no row of the journal names any more, so it is
renamed, not dropped, and kept next to the new one until its lost history is closed. One that is
damaged is kept as well: an operator may still get records' places out of it. Blocking.
"""

import logging
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.replica.database import state_position, translate
from penstock.replica.marks import LOCAL_MARK, RowMark

logger = logging.getLogger(__name__)

KEPT_MAX: Final = 3
"""Replicas kept aside in one directory: each is as large as the state."""
_NAME: Final = re.compile(r"lost-(\d{20})-(-?\d+)-([0-9a-f]{8})\.sqlite")
_SUFFIXES: Final = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class AsideReplica:
    """A replica of a lost history. `mark`: of the last row that it has applied."""

    path: Path
    mark: RowMark


def read_mark(path: Path) -> RowMark | None:
    """The mark of the last row that a replica has applied; None: the file is damaged where the
    mark lies, or has none (an older release's).

    Raises:
        PenstockError: another program locks the file, say; to be tried again.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return _mark_in(connection)
    except sqlite3.Error as error:
        failure = translate(error, "read replica", str(path))
        if not isinstance(failure, CorruptDataError):
            raise failure from error
        return None


def set_aside(path: Path) -> Path:
    """Rename the replica at `path` to what it is known by, with all that is in its SQLite WAL.

    Returns:
        The new path: named by the last row; `lost-damaged-<n>.sqlite` where that can't be read.

    Raises:
        PenstockError: the disk is full, say, or another program reads the file; it is where it
            was, and what only it names stays. To be tried again.
    """
    mark, damage = None, ""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            mark = _mark_in(connection)
            # One file, and one rename: without its WAL it would be an older replica, which may be
            # older than what was lost, and would go on as if nothing had happened.
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        failure = translate(error, "set replica aside", str(path))
        if not isinstance(failure, CorruptDataError):
            raise failure from error
        damage = str(failure)
    if mark is None:
        return _keep_damaged(path, damage or "it does not say which row it applied last")
    target = path.with_name(f"lost-{mark.position:020d}-{mark.stamp_ms}-{mark.crc:08x}.sqlite")
    _rename(path, target)
    _drop_oldest(path.parent, keep=target)
    return target


def find_damaged(folder: Path) -> list[Path]:
    """The replicas that were set aside in a directory, and whose last row can't be read."""
    return sorted(folder.glob("lost-damaged-*.sqlite"))


def find_aside(folder: Path) -> list[AsideReplica]:
    """The replicas that were set aside in a directory, by position."""
    found = []
    for path in sorted(folder.glob("lost-*.sqlite")):
        name = _NAME.fullmatch(path.name)
        if name is not None:
            mark = RowMark(int(name[1]), int(name[2]), int(name[3], 16))
            found.append(AsideReplica(path, mark))
    return found


def drop_aside(replica: AsideReplica) -> None:
    """Delete it."""
    _drop(replica.path)


def _mark_in(connection: sqlite3.Connection) -> RowMark | None:
    try:
        position, _ = state_position(connection)
        row = connection.execute("SELECT value FROM local WHERE name = ?", (LOCAL_MARK,)).fetchone()
        mark = RowMark.parse(row and row[0])
    except (CorruptDataError, TypeError, ValueError):
        return None  # a flipped bit: no row, or text that isn't what was written
    return None if mark is None or mark.position != position else mark


def _keep_damaged(path: Path, detail: str) -> Path:
    kept = find_damaged(path.parent)
    # By number, so that a later one never takes an earlier one's name.
    number = max((_number_of(other) for other in kept), default=0) + 1
    target = path.with_name(f"lost-damaged-{number:04d}.sqlite")
    _rename(path, target)
    logger.error(
        "a damaged replica, perhaps of a history that the journal has lost, is kept as %s: %s"
        " (docs/operations.md, A database that failed over to an older state)",
        target,
        detail,
    )
    for other in kept[: max(0, len(kept) + 1 - KEPT_MAX)]:
        logger.error("dropping %s: %d damaged replicas are kept", other, KEPT_MAX)
        _drop(other)
    return target


def _number_of(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _rename(path: Path, target: Path) -> None:
    """Rename a database; what is left of its SQLite WAL (of a damaged one alone) goes with it."""
    path.rename(target)
    for suffix in _SUFFIXES:
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(target.with_name(target.name + suffix))


def _drop(path: Path) -> None:
    for suffix in ("", *_SUFFIXES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _drop_oldest(folder: Path, *, keep: Path) -> None:
    others = [replica for replica in find_aside(folder) if replica.path != keep]
    others.sort(key=lambda replica: replica.path.stat().st_mtime_ns)
    for replica in others[: max(0, len(others) + 1 - KEPT_MAX)]:
        logger.error(
            "dropping %s: %d replicas of lost histories are kept, and this is the oldest",
            replica.path,
            KEPT_MAX,
        )
        drop_aside(replica)
