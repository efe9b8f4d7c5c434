"""Snapshots of an environment, the journal's end, and databases of an earlier position.

The last two snapshots are kept, with the journal since the older one: every position from there on
can be made again, in a file next to the database that is in use.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.authz.state.entries import Begin, Entry, Outcome, encode
from penstock.authz.state.environment import (
    APPLICATION_ID,
    FORMAT_VERSION,
    EnvironmentMachine,
)
from penstock.model.errors import ConflictError, InvalidRequestError, NotFoundError
from penstock.replica.database import connect_reader, translate
from penstock.replica.replica import Replica
from penstock.replica.snapshot import JournalEntry, read_snapshot_info, restore_snapshot
from penstock.system.files import make_folder

SNAPSHOT_ENTRIES: Final = 500_000
"""A snapshot is taken after this many entries."""
SNAPSHOTS_KEPT: Final = 2
SUFFIX: Final = ".snapshot"
_COMMIT_ENTRIES: Final = 1_000


def snapshots(folder: Path) -> list[tuple[int, Path]]:
    """Give the snapshots of a folder with their positions, oldest first."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        digits = path.name.removesuffix(SUFFIX)
        if digits.isascii() and digits.isdigit():
            found.append((int(digits), path))
    return sorted(found)


def keep(replica: Replica[list[Outcome]], folder: Path) -> None:
    """Take a snapshot, and drop the entries and snapshots before the last two. Any thread.

    Raises:
        StorageFullError: there is no space; the next call tries again.
        CorruptDataError: the copy isn't what was read.
    """
    make_folder(folder)
    # Its position is known once it is written, so that it gets its name then.
    new = folder / "new"
    info = replica.snapshot(new)
    new.rename(folder / f"{info.position:020d}{SUFFIX}")
    for _, path in snapshots(folder)[:-SNAPSHOTS_KEPT]:
        path.unlink()
    while replica.trim_journal(info):
        pass


def recover(
    database: Path,
    folder: Path,
    output: Path,
    *,
    name: str,
    log: bytes,
    stamp_ms: int,
    position: int | None = None,
    time_ms: int | None = None,
) -> int:
    """Make a database of an earlier position, next to the one in use, which may be written.

    It begins another history: tokens of the old one ask for nothing there.

    Args:
        folder: of the environment's snapshots.
        log: names the new history.
        position, time_ms: the last entry that it has; without both, all of them.
    Returns:
        The position of that entry.
    Raises:
        NotFoundError: there isn't such a database, or the position is outside of what is kept.
        ConflictError: there is a file at `output`.
    """
    if output.exists():
        raise ConflictError("recover", str(output), "there is such a file", "choose another name")
    with closing(connect_reader(database)) as connection:
        try:
            connection.execute("BEGIN")
            end = _end(connection, folder, position, time_ms)
            usable = [each for each in snapshots(folder) if each[0] <= end]
            begin, snapshot = usable[-1] if usable else (0, None)
            first, last = connection.execute(
                "SELECT min(position), max(position) FROM journal"
            ).fetchone()
            if not begin + 1 >= (first or 0) or not begin <= end <= (last or 0):
                oldest = min((at for at, _ in snapshots(folder)), default=first)
                raise NotFoundError(
                    "recover",
                    f"environment {name}",
                    f"position {end} isn't kept; {oldest} to {last} are",
                )
            tail = _entries(connection, begin, end)
            if snapshot is not None:
                restore_snapshot(
                    snapshot,
                    output,
                    application_id=APPLICATION_ID,
                    format_version=FORMAT_VERSION,
                    tail=tail,
                )
                tail = iter(())
            _finish(output, name, tail, log, stamp_ms)
        except sqlite3.Error as error:
            raise translate(error, "recover", str(database)) from error
    return end


def _end(
    connection: sqlite3.Connection, folder: Path, position: int | None, time_ms: int | None
) -> int:
    if position is not None:
        return position
    if time_ms is None:
        (last,) = connection.execute("SELECT max(position) FROM journal").fetchone()
    else:
        (last,) = connection.execute(
            "SELECT max(position) FROM journal WHERE time_ms <= ?", (time_ms,)
        ).fetchone()
        if last is None:
            # Between the oldest snapshot, whose last entry has been dropped, and the next entry.
            kept = snapshots(folder)
            last = max((at for at, path in kept if _time_ms(path) <= time_ms), default=None)
    if last is None:
        raise InvalidRequestError("recover", "position", "nothing is kept of that time")
    assert isinstance(last, int)
    return last


def _time_ms(snapshot: Path) -> int:
    """The journal time of a snapshot's last entry."""
    return read_snapshot_info(
        snapshot, application_id=APPLICATION_ID, format_version=FORMAT_VERSION
    ).time_ms


def _entries(connection: sqlite3.Connection, begin: int, end: int) -> Iterator[JournalEntry]:
    for row in connection.execute(
        "SELECT position, time_ms, body FROM journal WHERE position > ? AND position <= ?"
        " ORDER BY position",
        (begin, end),
    ):
        yield JournalEntry(*row)


def _finish(
    output: Path, name: str, tail: Iterator[JournalEntry], log: bytes, stamp_ms: int
) -> None:
    replica: Replica[list[Outcome]] = Replica.open(output, EnvironmentMachine(name))
    try:
        for number, entry in enumerate(tail, 1):
            replica.apply(entry.body, stamp_ms=entry.time_ms, position=entry.position)
            if not number % _COMMIT_ENTRIES:
                replica.commit()
        replica.append(encode(Entry(name, (Begin(log),))), stamp_ms=stamp_ms)
        replica.checkpoint()
    finally:
        replica.close()
