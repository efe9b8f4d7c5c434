"""Replica: one transaction per entry, what failures leave behind, time, trimming, replay."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import (
    CorruptDataError,
    FatalStorageError,
    InvalidRequestError,
    StorageFullError,
)
from penstock.replica import database as database_module
from penstock.replica.dump import canonical_dump
from penstock.replica.replica import Replica
from unit.replica.counters import Counters, entry


def open_counters(directory: Path, machine: Counters | None = None) -> Replica[int]:
    return Replica.open(directory / "db", machine or Counters())


def rows(directory: Path) -> list[Any]:
    connection = sqlite3.connect(directory / "db")
    try:
        return connection.execute("SELECT name, value FROM counters").fetchall()
    finally:
        connection.close()


def test_what_was_appended_is_there_after_reopening(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    assert replica.append(entry("a", 2), stamp_ms=10).outcome == 2
    appended = replica.append(entry("a", 3), stamp_ms=20)
    assert (appended.outcome, appended.position, appended.time_ms) == (5, 2, 20)
    replica.close()
    replica = open_counters(tmp_path)
    assert (replica.position, replica.time_ms) == (2, 20)
    assert replica.append(entry("a", 1), stamp_ms=30).outcome == 6
    replica.close()


def test_journal_time_never_runs_backwards(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    replica.append(entry("a", 1), stamp_ms=100)
    assert replica.append(entry("a", 1), stamp_ms=50).time_ms == 100
    replica.close()
    replica = open_counters(tmp_path)
    assert replica.append(entry("a", 1), stamp_ms=60).time_ms == 100
    replica.close()


def test_an_entry_that_fails_to_apply_leaves_no_trace(tmp_path: Path) -> None:
    machine = Counters()
    replica = open_counters(tmp_path, machine)
    replica.append(entry("a", 1), stamp_ms=1)
    with pytest.raises(ValueError, match="boom"):
        replica.append(entry("boom", 5), stamp_ms=2)
    assert machine.cache == {}
    assert replica.append(entry("a", 1), stamp_ms=3).position == 2
    assert [e.position for e in replica.journal_after(0)] == [1, 2]
    replica.close()
    assert rows(tmp_path) == [("a", 2)]


def test_a_full_disk_is_retriable_and_goes_on_once_there_is_space(tmp_path: Path) -> None:
    machine = Counters()
    replica = open_counters(tmp_path, machine)
    replica.append(entry("a", 1), stamp_ms=1)
    pages = replica._connection.execute("PRAGMA page_count").fetchone()[0]
    replica._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageFullError):
        replica.append(entry("a", 1, padding=100_000), stamp_ms=2)
    assert machine.cache == {}
    assert replica.position == 1
    replica._connection.execute("PRAGMA max_page_count = 1000000")
    assert replica.append(entry("a", 1, padding=100_000), stamp_ms=2).outcome == 2
    replica.close()


def test_a_nearly_full_volume_refuses_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = open_counters(tmp_path)
    monkeypatch.setattr(database_module, "FREE_BYTES_MIN", 1 << 60)
    with pytest.raises(StorageFullError, match="bytes are free"):
        replica.append(entry("a", 1), stamp_ms=1)
    monkeypatch.undo()
    assert replica.append(entry("a", 1), stamp_ms=1).position == 1
    replica.close()


class FailingCommit:
    """A connection whose COMMIT fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *parameters: Any) -> Any:
        if statement == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *parameters)


def test_after_a_failed_commit_everything_is_refused(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    replica.append(entry("a", 1), stamp_ms=1)
    transaction = replica._transaction
    transaction._connection = FailingCommit(transaction._connection)  # type: ignore[assignment]
    with pytest.raises(FatalStorageError, match="disk I/O error"):
        replica.append(entry("a", 1), stamp_ms=2)
    for _ in range(2):
        with pytest.raises(FatalStorageError, match="a commit failed"):
            replica.append(entry("a", 1), stamp_ms=3)
    with pytest.raises(FatalStorageError):
        replica.checkpoint()
    replica.close()
    # The next start reads what is there: here, what was committed before.
    replica = open_counters(tmp_path)
    assert replica.position == 1
    replica.close()


def test_a_newer_format_is_refused_by_both_versions(tmp_path: Path) -> None:
    newer = Counters()
    newer.format_version = 7
    open_counters(tmp_path, newer).close()
    with pytest.raises(InvalidRequestError, match="format version 7, this release knows 1"):
        open_counters(tmp_path)


def test_another_programs_file_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "db")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(InvalidRequestError, match="another program"):
        open_counters(tmp_path)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptDataError, match="db"):
        open_counters(tmp_path)


def test_an_empty_file_of_a_cut_creation_is_created_again(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"")
    replica = open_counters(tmp_path)
    assert replica.append(entry("a", 1), stamp_ms=1).position == 1
    replica.close()


def test_trimming_keeps_the_entries_since_the_snapshot_before(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    for index in range(5):
        replica.append(entry("a", 1), stamp_ms=index)
    first = replica.snapshot(tmp_path / "s1")
    assert replica.trim_journal(first) == 0
    for index in range(5):
        replica.append(entry("a", 1), stamp_ms=index)
    second = replica.snapshot(tmp_path / "s2")
    assert replica.trim_journal(second) == 5
    assert [e.position for e in replica.journal_after(5)] == [6, 7, 8, 9, 10]
    with pytest.raises(CorruptDataError, match="position 6 where 1 is due"):
        list(replica.journal_after(0))
    replica.close()
    replica = open_counters(tmp_path)
    assert replica.position == 10
    replica.close()


def test_trimming_never_takes_the_last_entry(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    replica.append(entry("a", 1), stamp_ms=5)
    for index in range(3):
        replica.trim_journal(replica.snapshot(tmp_path / f"s{index}"))
    replica.close()
    replica = open_counters(tmp_path)
    assert (replica.position, replica.time_ms) == (1, 5)
    replica.close()


def test_a_checkpoint_moves_the_pages_and_changes_nothing_else(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    for index in range(200):
        replica.append(entry(f"counter {index}", 1, padding=1000), stamp_ms=index)
    before = replica.digest()
    size_before = (tmp_path / "db").stat().st_size
    replica.checkpoint()
    assert (tmp_path / "db").stat().st_size > size_before
    assert replica.digest() == before
    assert not replica.checkpoint_due
    replica.close()


def test_local_values_stay_out_of_state(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    before = replica.digest()
    replica.set_local("agent", 7)
    assert replica.local("agent") == 7
    assert replica.local("other") is None
    assert replica.digest() == before
    replica.close()


def test_the_dump_does_not_depend_on_pages(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    for name in ("c", "a", "b"):
        replica.append(entry(name, 1), stamp_ms=1)
    replica.close()
    connection = sqlite3.connect(tmp_path / "db")
    before = list(canonical_dump(connection))
    connection.execute("VACUUM")
    assert list(canonical_dump(connection)) == before
    connection.close()
