"""A lost or damaged database is made again. docs/formats/journal-files.md has the steps.

The base is the newest snapshot that is whole, or nothing where the journal files begin at the first
entry; the open that follows applies the entries past it. What is there is renamed, never deleted.
"""

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.model.errors import CorruptDataError, PenstockError
from penstock.ports.device import Device
from penstock.replica.database import (
    connect_reader,
    pragma_integer,
    state_position,
    sync_directory,
    translate,
)
from penstock.replica.journal_files import JournalFiles
from penstock.replica.snapshot import restore_snapshot, verify_snapshot
from penstock.state.schema import APPLICATION_ID, FORMAT_VERSION
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

SNAPSHOTS_FOLDER: Final = "objects/snapshots"
"""Where an embedded server's snapshots are, under its data directory."""
START_BYTES_MAX: Final = 256 << 20
"""A larger database is checked less while a start waits."""
_COPY_BYTES: Final = 8 << 20
_SUFFIX: Final = ".sqlite"
NOT_OURS: Final = (sqlite3.Error, ValueError, TypeError, LookupError, AttributeError)
"""Errors of reading rows that this program has not written: for example, numbers that are texts."""


def rebuild(
    path: Path,
    device: Device,
    journal: JournalFiles,
    *,
    fault: str,
) -> None:
    """Set the database aside and make its base again; the open that follows applies the entries.

    Raises:
        CorruptDataError: no snapshot is whole, or entries past it are damaged; nothing was moved.
    """
    logger.error("%s: %s; it is made again of a snapshot and the journal", path, fault)
    made = path.with_name(f"{path.name}.rebuilt")
    checked = _checked_base(path)
    last = journal.last if checked is None else min(journal.last, checked)
    base = _make_base(made, device, journal, last)
    if base is None:
        raise CorruptDataError(
            "rebuild",
            str(path),
            f"{fault}, and no whole snapshot reaches the journal's entries"
            f" {journal.floor} to {journal.last}",
            "restore a backup",
        )
    count = 0
    for _ in journal.entries(base):
        count += 1
    if checked is not None:
        # Copies of a state in which a cell may have been flipped by then.
        for position, name in list(_snapshots(device)):
            if position > checked:
                logger.error("%s was not checked: it is kept as %s.suspect", name, name)
                device.rename(name, f"{name}.suspect")
    aside = set_aside(path)
    if base:
        made.replace(path)
        sync_directory(path.parent)
    logger.error(
        "%s: made again of %s and %d entries; %s",
        path,
        f"the snapshot at position {base}" if base else "nothing",
        count,
        f"what was there is kept as {aside}" if aside is not None else "nothing was there",
    )


def set_aside(path: Path) -> Path | None:
    """Rename a database and SQLite's WAL. Returns the new name; None: nothing was there."""
    number = 1
    while any(
        path.with_name(f"{path.name}.damaged-{number}{suffix}").exists() for suffix in ("", "-wal")
    ):
        number += 1
    aside = path.with_name(f"{path.name}.damaged-{number}")
    found = None
    # The WAL first: with it gone the database is at worst older, and is found so.
    for suffix in ("-wal", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
            found = aside
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    suspect_path(path).unlink(missing_ok=True)
    sync_directory(path.parent)
    return found


def find_fault(
    path: Path,
    device: Device,
    journal: JournalFiles,
    *,
    is_as_left: bool = False,
) -> str:
    """Return why the database can't be used; empty: it can, or there is nothing yet.

    Args:
        device: the data directory, with the WAL and snapshots.
        is_as_left: it is what the last server left in good order, so its pages need no check.
    """
    if not path.exists():
        if journal.is_empty and not journal.faults and not device.list(SNAPSHOTS_FOLDER):
            return ""
        return "it is missing"
    suspect = suspect_path(path)
    if suspect.exists():
        text = suspect.read_text(encoding="utf-8", errors="replace")
        return text.partition("\n")[0].strip() or "it is suspect"
    if journal.is_empty:
        return ""  # of an older release, or just restored: nothing to make it of
    try:
        with closing(connect_reader(path)) as connection:
            if not pragma_integer(connection, "schema_version"):
                return "it is empty"
            found_id = pragma_integer(connection, "application_id")
            if found_id != APPLICATION_ID:
                return f"application id {found_id:#010x}, not {APPLICATION_ID:#010x}"
            version = pragma_integer(connection, "user_version")
            if version > FORMAT_VERSION and journal.known_format_version <= FORMAT_VERSION:
                return f"format version {version}, the directory's journal is of {FORMAT_VERSION}"
            problems = [
                text for (text,) in ([] if is_as_left else connection.execute(_own_check(path)))
            ]
            if problems not in ([], ["ok"]):
                return "; ".join(map(str, problems))
            position, _ = state_position(connection)
    except sqlite3.Error as error:
        return translate(error, "check", str(path)).detail
    except (PenstockError, *NOT_OURS) as error:
        return f"{type(error).__name__}: {error}"
    if position < journal.floor - 1:
        return f"it stands at position {position}, the journal's files begin at {journal.floor}"
    return ""


def bases(device: Device, journal: JournalFiles, last: int) -> Iterator[tuple[int, str]]:
    """Snapshots up to position `last` from which the journal files lead on, the newest first: their
    positions and names; in the end (0, "") if nothing is a base as well."""
    for position, name in _snapshots(device):
        if journal.floor - 1 <= position <= last:
            yield position, name
    if journal.floor == 1:
        yield 0, ""


def _checked_base(path: Path) -> int | None:
    """Return up to which position snapshots are right, if a check has found the state wrong."""
    try:
        text = suspect_path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    digits = text.rpartition("\nbase ")[2].strip()
    return int(digits) if "\nbase " in text and digits.isascii() and digits.isdigit() else None


def _make_base(made: Path, device: Device, journal: JournalFiles, last: int) -> int | None:
    """Put the newest whole snapshot up to position `last` at `made`. Returns its position; 0: none
    is needed."""
    for position, name in bases(device, journal, last):
        if not name or _copied(device, name, made):
            return position
    return None


def _snapshots(device: Device) -> Iterator[tuple[int, str]]:
    """Snapshots by position, the newest first."""
    for entry in sorted(device.list(SNAPSHOTS_FOLDER), reverse=True):
        digits = entry.removesuffix(_SUFFIX)
        if digits != entry and digits.isascii() and digits.isdigit():
            yield int(digits), f"{SNAPSHOTS_FOLDER}/{entry}"


def _own_check(path: Path) -> str:
    """SQLite's check: of a large file without the comparison of indexes with their tables."""
    is_large = path.stat().st_size > START_BYTES_MAX
    return f"PRAGMA {'quick_check' if is_large else 'integrity_check'}(3)"


def copy_snapshot(device: Device, name: str, made: Path) -> None:
    """Verify a stored snapshot whole and make a database of it.

    Raises:
        CorruptDataError: it is damaged, or missing.
    """
    fetched = made.with_name(made.name + ".snapshot")
    try:
        try:
            file = device.open(name)
        except FileNotFoundError as error:
            raise CorruptDataError("read snapshot", name, "it is missing") from error
        try:
            with fetched.open("wb") as target:
                for at in range(0, file.size(), _COPY_BYTES):
                    target.write(file.read_at(at, _COPY_BYTES))
        finally:
            file.close()
        verify_snapshot(fetched, application_id=APPLICATION_ID, format_version=FORMAT_VERSION)
        restore_snapshot(
            fetched,
            made,
            application_id=APPLICATION_ID,
            format_version=FORMAT_VERSION,
            is_verified=True,
        )
    finally:
        fetched.unlink(missing_ok=True)


def suspect_path(path: Path) -> Path:
    """The file that says why the next start has to make a database again."""
    return path.with_name(path.name + ".suspect")


def _copied(device: Device, name: str, made: Path) -> bool:
    try:
        copy_snapshot(device, name, made)
    except (PenstockError, OSError) as error:
        heard(Cause.SNAPSHOT, error, logger, f"passing over the snapshot {name}")
        return False
    return True
