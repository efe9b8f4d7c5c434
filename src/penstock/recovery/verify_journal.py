"""Verifying the journal checks its files, its snapshots, and that both give the state.

This only reads; a server may be running.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from penstock.log.opening.embedded import unapplied_entries
from penstock.log.opening.rebuild import (
    NOT_OURS,
    bases,
    copy_snapshot,
    find_fault,
)
from penstock.log.opening.state_check import fault_at_start
from penstock.log.wals.names import check_wal_name, read_wal_name
from penstock.model.errors import CorruptDataError, InvalidRequestError, PenstockError
from penstock.ports.device import Device
from penstock.recovery.verify_report import FindingKind, VerifyReport
from penstock.replica.journal_files import JournalFiles

_ATTEMPTS: Final = 5
_REBUILT: Final = "; the next start makes it again"


def verify_journal(report: VerifyReport, database: Path, device: Device) -> bool:
    """Check journal files, snapshots and the database as a whole; add what is found.

    Returns:
        Whether the database may have the acknowledged state.

    Raises:
        InvalidRequestError: a newer release has written a file.
    """
    journal = JournalFiles.open(device)
    _check(report, "wal/cluster", lambda: _check_wal_name(device, journal))
    _check_files(report, journal)
    _check_snapshots(report, device, journal)
    if journal.is_empty:
        if not database.exists():
            report.add(FindingKind.DATABASE, str(database), "it is missing")
        return database.exists()
    try:
        fault = find_fault(database, device, journal) or fault_at_start(database, device, journal)
    except InvalidRequestError:
        raise
    except (PenstockError, *NOT_OURS) as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        report.add(FindingKind.DATABASE, str(database), fault + _REBUILT)
    return not fault


def verify_tail(report: VerifyReport, device: Device, position: Callable[[], int]) -> None:
    """Walk all journal files, and the WAL's entries after them, as a start would. Entries past the
    database's position are counted.

    Args:
        position: returns the database's present position.
    """
    before = ""
    for _ in range(_ATTEMPTS):
        at = position()
        try:
            journal = JournalFiles.open(device)
            reached = at if journal.is_empty else max(0, journal.floor - 1)
            for entry in unapplied_entries(device, reached):
                reached = entry.position
            report.unapplied_entries = max(0, reached - at)
            report.unapplied_in_wal = max(0, reached - max(at, journal.last))
        except FileNotFoundError:
            continue
        except CorruptDataError as error:
            # Files that a server writes or recycles meanwhile are whole at the next look.
            if str(error) != before or position() != at:
                before = str(error)
                continue
            report.add(FindingKind.DAMAGED, error.subject, error.detail)
            return
        if reached >= at:
            return
        if before != (before := f"the journal ends at position {reached}, the database at {at}"):
            continue
        report.add(FindingKind.DAMAGED, "journal", before)
        return


def _check_files(report: VerifyReport, journal: JournalFiles) -> None:
    newest = journal.newest_name
    for subject, detail in journal.damaged:
        # A last file that a power cut has torn is not damage; `verify_tail` reports missing
        # entries.
        if subject.split(" ")[0] < newest:
            report.add(FindingKind.DAMAGED, subject, detail)


def _check_wal_name(device: Device, journal: JournalFiles) -> None:
    if journal.cluster_id:
        check_wal_name(device, journal.cluster_id)
    else:
        read_wal_name(device)


def _check_snapshots(report: VerifyReport, device: Device, journal: JournalFiles) -> None:
    if journal.is_empty:
        return
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "snapshot"
        for _, name in _named(device, journal):
            _check(report, name, partial(copy_snapshot, device, name, made))
            made.unlink(missing_ok=True)


def _named(device: Device, journal: JournalFiles) -> Iterator[tuple[int, str]]:
    found = bases(device, journal, journal.last)
    return ((position, name) for position, name in found if name)


def _check(report: VerifyReport, subject: str, work: Callable[[], object]) -> None:
    try:
        work()
    except InvalidRequestError as error:
        report.add(FindingKind.DAMAGED, subject, error.detail)
    except CorruptDataError as error:
        report.add(FindingKind.DAMAGED, subject, error.detail)
    except (PenstockError, OSError, *NOT_OURS) as error:
        report.add(FindingKind.DAMAGED, subject, f"{type(error).__name__}: {error}")
