"""Replicas that are set aside: they have applied rows which the journal has lost.

Such a replica names acknowledged records that no row of the journal names any more, so it is
renamed, not dropped, and kept beside the new one until its lost history is closed. Blocking.
"""

import logging
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.replica.database import state_position
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


def set_aside(path: Path) -> AsideReplica | None:
    """Rename the replica at `path` to what it is known by, with all that is in its SQLite WAL.

    Returns:
        None: the file can't be read, or says nothing of its last row; it is where it was.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            # One file, and one rename: without its WAL it would be an older replica, which may be
            # older than what was lost, and would go on as if nothing had happened.
            connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            position, _ = state_position(connection)
            row = connection.execute(
                "SELECT value FROM local WHERE name = ?", (LOCAL_MARK,)
            ).fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        logger.warning("a replica of a lost history can't be set aside: %s: %s", path, error)
        return None
    mark = RowMark.parse(row and row[0])
    if mark is None or mark.position != position:
        logger.warning("a replica of a lost history says nothing of its last row: %s", path)
        return None
    target = path.with_name(f"lost-{mark.position:020d}-{mark.stamp_ms}-{mark.crc:08x}.sqlite")
    path.rename(target)
    for suffix in _SUFFIXES:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    _drop_oldest(path.parent, keep=target)
    return AsideReplica(target, mark)


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
    for suffix in ("", *_SUFFIXES):
        replica.path.with_name(replica.path.name + suffix).unlink(missing_ok=True)


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
