"""Checking the state against the journal that made it: docs/formats/journal-files.md, "Checks".

SQLite's own checks see a damaged structure. A flipped bit in a cell is another value, which they
can't see. So the entries past a verified snapshot are applied to a copy, and the digests of all
tables are compared. Blocking; large checks run in a process of their own with low priority.
"""

import logging
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from penstock.log.opening.rebuild import (
    NOT_OURS,
    SNAPSHOTS_FOLDER,
    START_BYTES_MAX,
    bases,
    copy_snapshot,
    suspect_path,
)
from penstock.log.upkeep import snapshot_key
from penstock.model.errors import (
    FatalStorageError,
    PenstockError,
    RetryableError,
)
from penstock.ports.device import Device
from penstock.replica.database import connect_reader, state_position
from penstock.replica.dump import table_digests
from penstock.replica.journal_files import JournalFiles
from penstock.replica.replica import Replica
from penstock.state.apply.machine import LogMachine
from penstock.system.apart import answer_apart, run_apart
from penstock.system.files import PosixDevice
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

ENTRIES_AT_ONCE: Final = 1000
"""Entries of one step, which is a transaction that is committed."""
APART_ENTRIES: Final = 5_000
APART_BYTES: Final = 16 << 20
"""From this many bytes of entries or state on, a check has a process, whose start costs 0.3 s of
CPU."""
_TIMEOUT_S: Final = 6 * 3600


class StateDamagedError(FatalStorageError):
    """The state is not what the journal gives: nothing more may be acknowledged on it. The next
    start makes it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChecker:
    """Checks snapshots of an embedded server's state. Implements `penstock.log.upkeep.Checker`.

    Args:
        root: the data directory; `database`: its database.
        scratch: a folder for the copy of the state.
    """

    root: Path
    database: Path
    scratch: Path

    def check(self, snapshot: Path, *, base: int, position: int) -> None:
        """Compare a snapshot at `position` with what the journal gives from the stored one at
        `base` on (0: from nothing).

        Raises:
            StateDamagedError: they differ; the state has been marked.
            CorruptDataError: the snapshot at `base`, or an entry past it, is damaged.
            PenstockError: it could not be found out.
        """
        is_much = position - base >= APART_ENTRIES or snapshot.stat().st_size >= APART_BYTES
        check = _faults_apart if is_much else faults_of
        faults = check(self.root, self.database, snapshot, base, self.scratch)
        self._report(faults, base)

    def check_structure(self) -> None:
        """Have SQLite check the database, in which something was found damaged.

        Raises:
            StateDamagedError: it is; the state has been marked.
        """
        self._report(structural_faults(self.database))

    def _report(self, faults: list[str], base: int | None = None) -> None:
        if not faults:
            return
        text = "; ".join(faults)
        mark_suspect(self.database, text, base=base)
        logger.error("%s: %s; the next start makes it again", self.database, text)
        raise StateDamagedError(
            "check state", str(self.database), text, "start it again: it is rebuilt"
        )


def faults_of(root: Path, database: Path, snapshot: Path, base: int, scratch: Path) -> list[str]:
    """Return what is wrong with a snapshot, and with the database that it was made of; see
    `StateChecker.check`."""
    return structural_faults(database) or faults_of_snapshot(root, snapshot, base, scratch)


def structural_faults(database: Path) -> list[str]:
    """Return what SQLite finds wrong with a database."""
    try:
        with closing(connect_reader(database)) as connection:
            found = [str(text) for (text,) in connection.execute("PRAGMA integrity_check(3)")]
    except NOT_OURS as error:
        return [f"{type(error).__name__}: {error}"]
    return [] if found == ["ok"] else found


def faults_of_snapshot(root: Path, snapshot: Path, base: int, scratch: Path) -> list[str]:
    """Do as `faults_of`, without the database's own structure."""
    device = PosixDevice(root)
    with closing(connect_reader(snapshot)) as connection:
        (position,) = connection.execute("SELECT position FROM snapshot").fetchone()
        found = _digests(connection)
    journal = JournalFiles.open(device)
    if journal.last < position:
        raise RetryableError(
            "check state", str(snapshot), f"the journal files end at position {journal.last}"
        )
    name = f"{SNAPSHOTS_FOLDER.rpartition('/')[0]}/{snapshot_key(base)}" if base else ""
    with _replayed(device, journal, name, position, scratch) as made:
        differing = _differing(found, made)
    return [_fault(differing, base, position)] if differing else []


def fault_at_start(path: Path, device: Device, journal: JournalFiles) -> str:
    """Return why a database that a server left in no good order can't be trusted; empty: it can.

    It is compared at its own position with the newest whole snapshot and the entries past it.
    """
    if path.stat().st_size > START_BYTES_MAX:
        return ""
    try:
        with closing(connect_reader(path)) as connection:
            connection.execute("BEGIN")
            position, _ = state_position(connection)
            found = _digests(connection)
    except NOT_OURS as error:
        return f"{type(error).__name__}: {error}"
    until = min(position, journal.last)
    for base, name in bases(device, journal, until):
        try:
            with _replayed(device, journal, name, until, path.parent) as made:
                differing = _differing(found, made)
        except (PenstockError, OSError) as error:
            heard(Cause.SNAPSHOT, error, logger, f"the state is not checked from position {base}")
            continue
        if position > until:
            # Either it alone has entries that the journal has lost, or its position is wrong.
            return "" if differing else f"its position {position} is not that of its state, {until}"
        return _fault(differing, base, position) if differing else ""
    return ""


def mark_suspect(path: Path, text: str, *, base: int | None = None) -> None:
    """Have the next start make a database again.

    Args:
        base: the position up to which snapshots are known to be right; None: all are taken.
    """
    lines = [text.replace("\n", " ")] + ([] if base is None else [f"base {base}"])
    suspect_path(path).write_text("\n".join([*lines, ""]), encoding="utf-8")


# -- inside --------------------------------------------------------------------------------------


@contextmanager
def _replayed(
    device: Device, journal: JournalFiles, name: str, until: int, scratch: Path
) -> Iterator[dict[str, bytes]]:
    """The tables' digests of the state that a snapshot and the entries past it give.

    Raises:
        CorruptDataError: the snapshot, or an entry, is damaged.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    made = scratch / "state-check.sqlite"
    _remove(made)
    try:
        if name:
            copy_snapshot(device, name, made)
        with closing(Replica.open(made, LogMachine(), fsync=False, keeps_journal=False)) as replica:
            for entry in journal.entries(replica.position):
                if entry.position > until:
                    break
                replica.apply(entry.body, stamp_ms=entry.time_ms, position=entry.position)
                if replica.uncommitted_count >= ENTRIES_AT_ONCE:
                    replica.commit()
            replica.commit()
        with closing(connect_reader(made)) as connection:
            yield _digests(connection)
    finally:
        _remove(made)


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _digests(connection: sqlite3.Connection) -> dict[str, bytes]:
    """Return digests of the tables' rows, and of the names and types of their columns and keys: a
    flipped letter of a name makes other statements fail."""
    found = table_digests(connection)
    for table in list(found):
        columns = [
            row[1:4] + row[5:] for row in connection.execute(f'PRAGMA table_info("{table}")')
        ]
        indexes = sorted(
            [row[2] for row in connection.execute(f'PRAGMA index_info("{index}")')]
            for _, index, *_ in connection.execute(f'PRAGMA index_list("{table}")').fetchall()
        )
        found[table] += msgspec.msgpack.encode((columns, indexes))
    return found


def _differing(found: dict[str, bytes], made: dict[str, bytes]) -> list[str]:
    return sorted(name for name in found | made if found.get(name) != made.get(name))


def _fault(differing: list[str], base: int, position: int) -> str:
    return (
        f"at position {position} its tables {', '.join(differing)} are not what the journal's"
        f" entries past {base} give"
    )


def _faults_apart(
    root: Path, database: Path, snapshot: Path, base: int, scratch: Path
) -> list[str]:
    return run_apart(
        "penstock.log.opening.state_check",
        [str(root), str(database), str(snapshot), str(base), str(scratch)],
        list[str],
        operation="check state",
        subject=str(snapshot),
        timeout_s=_TIMEOUT_S,
    )


def main(root: str, database: str, snapshot: str, base: str, scratch: str) -> int:
    """Do `faults_of` in the other process. Returns: its exit status."""
    return answer_apart(
        lambda: faults_of(Path(root), Path(database), Path(snapshot), int(base), Path(scratch))
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
