"""Opening what an embedded log stands on, in the order that recovery needs.

The journal's files may lack the last entries: the WAL's frames hold them. The database may lack
more, or all (docs/formats/journal-files.md). So the files are brought up to date from the WAL
first, then the database from the files, and only then the state says which frames must be there.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from penstock.log.opening.left import is_as_left
from penstock.log.opening.rebuild import NOT_OURS, SNAPSHOTS_FOLDER, find_fault, rebuild
from penstock.log.opening.state_check import fault_at_start
from penstock.log.wals.names import new_wal_name, read_wal_name, refuse_others_wal
from penstock.model.errors import CorruptDataError, OtherClusterError
from penstock.ports.clock import Clock
from penstock.ports.device import Device
from penstock.ports.random import Random
from penstock.replica.bootstrap import drop_replica
from penstock.replica.journal_files import JournalFiles
from penstock.replica.snapshot import JournalEntry
from penstock.state.orders import LocalJournal, open_local_journal
from penstock.state.read.queries import Queries
from penstock.state.schema import FORMAT_VERSION
from penstock.wal import WalWriter, entries_after
from penstock.wal.format import OtherWalVersionError
from penstock.wal.recovery import FOLDER, find_files

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE: Final = 1000


def open_journal(
    path: Path,
    device: Device,
    *,
    clock: Clock,
    random: Random,
    fsync: bool = True,
    software: str = "",
    labels: dict[str, str] | None = None,
    endpoint: str = "",
    peer: str = "",
    checks_state: bool = True,
) -> LocalJournal:
    """Open, or create, the journal at `path`, with the entries that only journal files and the WAL
    hold. A database that is lost or damaged is made again of them.

    Args:
        device: the data directory.
        checks_state: whether a database that was not left in good order is compared with the
            journal.

    Raises: as `open_local_journal`, and
        CorruptDataError: an entry is damaged or missing, or all of the WAL.
        OtherClusterError: the WAL holds records of another cluster than the journal.
    """

    journal, wal_fault = _open_journal(device, fsync=fsync)
    if journal.is_empty and not path.exists():
        _refuse_remains(path, device, journal)
    is_whole = is_as_left(path)
    fault = find_fault(path, device, journal, is_as_left=is_whole)
    if not (fault or is_whole or journal.is_empty) and wal_fault is None and checks_state:
        fault = fault_at_start(path, device, journal)
    if fault:
        if wal_fault is not None:
            raise wal_fault
        rebuild(path, device, journal, fault=fault)

    def open_once() -> LocalJournal:
        return open_local_journal(
            path,
            clock=clock,
            random=random,
            fsync=fsync,
            software=software,
            labels=labels,
            endpoint=endpoint,
            peer=peer,
            entries=lambda position: _missing(device, journal, position, wal_fault, sync=fsync),
            check_cluster=partial(_check_wal, device),
            journal=journal,
        )

    is_new = not path.exists()
    try:
        order = open_once()
    except OtherClusterError:
        if is_new:
            # It would look like a server's directory, which it isn't.
            drop_replica(path)
        raise
    except (CorruptDataError, *NOT_OURS) as error:
        # Damage of the database itself that no check has seen.
        is_its_own = not isinstance(error, CorruptDataError) or error.subject == str(path)
        if fault or journal.is_empty or not is_its_own:
            raise
        fault = f"{type(error).__name__}: {error}"
        journal, wal_fault = _open_journal(device, fsync=fsync)
        rebuild(path, device, journal, fault=fault)
        order = open_once()
    order.rebuilt_because = fault
    try:
        _name_wal(path, device, order.cluster_id, random)
    except BaseException:
        order.close()
        raise
    return order


def _name_wal(path: Path, device: Device, cluster_id: str, random: Random) -> None:
    """
    Raises:
        CorruptDataError: the WAL's folder is empty, and the state names runs in it.
    """
    name = read_wal_name(device)
    if name is None and not find_files(device):
        with closing(Queries(path)) as queries:
            runs = queries.wal_runs()
        if runs:
            # A volume that isn't mounted looks so. Records written now would lie beneath it.
            raise CorruptDataError(
                "open WAL",
                FOLDER,
                f"there is no file in it, and the journal names {len(runs)} runs of"
                f" {sum(run.length for run in runs)} bytes there",
                "mount its volume, or restore the folder wal/ or a backup",
            )
    if name is None or name.cluster_id != cluster_id:
        # This comes before the first frame. A WAL of an older release, whose frames the journal in
        # this directory has named all along, gets its name now.
        new_wal_name(device, cluster_id, random)


def _refuse_remains(path: Path, device: Device, journal: JournalFiles) -> None:
    """Refuse what a log has left whose database and journal are both gone. A new log in its place
    would take its objects for orphans, and delete them.

    Raises:
        CorruptDataError: the folder holds such.
    """
    segments = (path.parent / SNAPSHOTS_FOLDER).with_name("segments")
    try:
        # The first entry of a log is in none: so they alone are not enough.
        has_entries = next(entries_after(device, 0, sync=False), None) is not None
    except CorruptDataError:
        has_entries = True
    remains = [
        "snapshots" if device.list(SNAPSHOTS_FOLDER) else "",
        "segment objects" if segments.is_dir() and any(segments.iterdir()) else "",
        "a WAL with entries" if has_entries else "",
    ]
    if any(remains):
        raise CorruptDataError(
            "open data directory",
            str(path.parent),
            f"{path.name} is missing, and journal/ is {'damaged' if journal.faults else 'missing'}:"
            f" nothing says the order of what is there: {', '.join(filter(None, remains))}",
            f"mount their volume, or put back journal/ or {path.name}, or restore a backup into an"
            " empty directory; a new log needs another directory",
        )


def _open_journal(device: Device, *, fsync: bool) -> tuple[JournalFiles, CorruptDataError | None]:
    """The journal files with the WAL's entries past them, and what ended those too early."""
    journal = JournalFiles.open(device, fsync=fsync)
    journal.format_version = FORMAT_VERSION
    if journal.is_empty:
        return journal, None  # where they begin is the database's to say
    name = read_wal_name(device)
    if name is not None and name.cluster_id not in ("", journal.cluster_id):
        refuse_others_wal(device, journal.cluster_id, of=name.cluster_id)
    try:
        _take_from_wal(device, journal, sync=fsync)
    except CorruptDataError as error:
        return journal, error
    return journal, None


def _take_from_wal(device: Device, journal: JournalFiles, *, sync: bool) -> None:
    rows: list[tuple[int, int, bytes]] = []
    fault: CorruptDataError | None = None
    try:
        for entry in entries_after(device, journal.last, sync=sync):
            rows.append((entry.position, entry.time_ms, entry.body))
            if len(rows) >= _ROWS_AT_ONCE:
                journal.note(rows)
                journal.write()
                rows = []
    except OtherWalVersionError:
        raise
    except CorruptDataError as error:
        fault = error
    finally:
        journal.note(rows)
        journal.sync()
    if fault is not None:
        raise CorruptDataError(
            fault.operation,
            fault.subject,
            f"{fault.detail}; entry {journal.last + 1} of the journal should lie here and is in no"
            " journal file, and all later ones stand on it",
            "restore this file of wal/, or a backup",
        ) from fault


def _missing(
    device: Device,
    journal: JournalFiles,
    position: int,
    wal_fault: CorruptDataError | None,
    *,
    sync: bool,
) -> Iterator[JournalEntry]:
    """The entries past the database's position."""
    if journal.is_empty or position > journal.last:
        if not journal.is_empty:
            logger.error(
                "the journal's files and the WAL end at position %d, the database at %d: entries"
                " between are lost, and a damaged database could not be made again; a snapshot"
                " of it is due now (%s)",
                journal.last,
                position,
                "; ".join([*journal.faults, str(wal_fault or "")]),
            )
        if position or not journal.is_empty:
            journal.begin_at(position + 1)
        _take_from_wal(device, journal, sync=sync)
    elif wal_fault is not None:
        raise wal_fault
    return journal.entries(position)


def _check_wal(device: Device, cluster_id: str) -> None:
    """Refuse another cluster's WAL, and frames that no journal names.

    Args:
        cluster_id: the cluster of the directory's journal; empty: there is no journal yet, and
            no entry in the WAL names a cluster.
    """
    name = read_wal_name(device)
    of = name.cluster_id if name is not None else ""
    if not cluster_id or of not in ("", cluster_id):
        refuse_others_wal(device, cluster_id, of=of)


def open_wal(
    device: Device,
    queries: Queries,
    *,
    file_bytes: int,
    bytes_max: int,
    fsync: bool = True,
) -> WalWriter:
    """Open the WAL of an order that is open. See `WalWriter.open`."""
    return WalWriter.open(
        device,
        file_bytes=file_bytes,
        bytes_max=bytes_max,
        named=named_ranges(queries),
        last_generation=queries.last_wal_generation(),
        fsync=fsync,
    )


def unapplied_entries(device: Device, position: int) -> Iterator[JournalEntry]:
    """Entries past a position that journal files and the WAL hold. Writes nothing.

    Raises:
        CorruptDataError: one is damaged or missing.
    """
    journal = JournalFiles.open(device)
    last = position
    if not journal.is_empty and journal.last > position:
        for entry in journal.entries(position):
            last = entry.position
            yield entry
    for found in entries_after(device, last, sync=False):
        yield JournalEntry(found.position, found.time_ms, found.body)


def named_ranges(queries: Queries) -> dict[int, int]:
    """Return, by WAL generation, the end in bytes of the last run that the journal names in it."""
    named: dict[int, int] = {}
    for run in queries.wal_runs():
        named[run.generation] = max(named.get(run.generation, 0), run.position + run.length)
    return named
