"""Replica: entries that are durable elsewhere, applied now and committed behind."""

import _sqlite3
import ctypes
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from penstock.model.errors import CorruptDataError, FatalStorageError, StorageFullError
from penstock.replica import replica as replica_module
from penstock.replica.marks import LOCAL_MARK, RowMark
from penstock.replica.replica import Replica
from unit.replica.counters import Counters, entry

PAGE_BYTES = 4096


def open_counters(directory: Path, **options: Any) -> Replica[int]:
    return Replica.open(directory / "db", Counters(), **options)


def seen(directory: Path) -> dict[str, int]:
    """What another connection sees."""
    connection = sqlite3.connect(directory / "db")
    try:
        return dict(connection.execute("SELECT name, value FROM counters").fetchall())
    finally:
        connection.close()


def pages(replica: Replica[int], more: int | None) -> None:
    (count,) = replica._connection.execute("PRAGMA page_count").fetchone()
    limit = 1 << 30 if more is None else count + more
    replica._connection.execute(f"PRAGMA max_page_count = {limit}").fetchall()


def test_what_is_applied_is_seen_by_others_once_it_is_committed(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    assert replica.apply(entry("a", 2), stamp_ms=10).outcome == 2
    assert replica.apply(entry("a", 3), stamp_ms=5, position=2).outcome == 5
    assert (replica.position, replica.committed_position, replica.time_ms) == (2, 0, 10)
    assert replica.uncommitted_count == 2
    assert seen(tmp_path) == {}
    assert replica.commit() == 2 == replica.committed_position
    assert replica.commit() == 2
    assert seen(tmp_path) == {"a": 5}
    assert [e.position for e in replica.journal_after(0)] == [1, 2]
    replica.close()
    replica = open_counters(tmp_path)
    assert (replica.position, replica.committed_position, replica.time_ms) == (2, 2, 10)
    replica.close()


def test_what_was_not_committed_is_gone_and_is_applied_again(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    replica.apply(entry("a", 2), stamp_ms=1)
    replica.commit()
    replica.apply(entry("a", 3), stamp_ms=2)
    replica._connection.close()  # as the death of a process
    replica = open_counters(tmp_path)
    assert replica.position == 1
    assert replica.apply(entry("a", 3), stamp_ms=2, position=2).outcome == 5
    replica.close()
    assert seen(tmp_path) == {"a": 5}


@pytest.mark.parametrize("position", [1, 3])
def test_only_the_next_position_is_applied(tmp_path: Path, position: int) -> None:
    replica = open_counters(tmp_path)
    replica.apply(entry("a", 1), stamp_ms=1)
    with pytest.raises(CorruptDataError, match=f"position {position} where 2 is due"):
        replica.apply(entry("a", 1), stamp_ms=1, position=position)
    assert replica.apply(entry("a", 1), stamp_ms=1, position=2).outcome == 2
    replica.close()


def test_an_entry_that_fails_takes_nothing_else_with_it(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    replica.apply(entry("a", 1), stamp_ms=1)
    with pytest.raises(ValueError, match="boom"):
        replica.apply(entry("boom", 5), stamp_ms=2)
    assert replica.position == 1
    assert replica.apply(entry("a", 1), stamp_ms=3).outcome == 2
    replica.commit()
    replica.close()
    assert seen(tmp_path) == {"a": 2}


def test_a_commit_that_finds_the_disk_full_is_made_later(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    replica.apply(entry("a", 1), stamp_ms=1)
    replica.commit()
    pages(replica, 0)
    assert replica.apply(entry("a", 1, padding=100_000), stamp_ms=2).outcome == 2
    for _ in range(2):
        with pytest.raises(StorageFullError):
            replica.commit()
        assert (replica.position, replica.committed_position) == (2, 1)
        assert replica.uncommitted_count == 1
    pages(replica, None)
    assert replica.apply(entry("a", 1), stamp_ms=3).outcome == 3
    assert replica.commit() == 3
    assert [e.position for e in replica.journal_after(0)] == [1, 2, 3]
    replica.close()
    assert seen(tmp_path) == {"a": 3}


def test_after_a_full_disk_a_long_transaction_stays_in_memory(tmp_path: Path) -> None:
    """Pages beyond the cache were written before COMMIT, and the transaction was lost to it."""
    replica = open_counters(tmp_path)
    replica.apply(entry("a", 1), stamp_ms=1)
    replica.commit()

    def spill() -> int:
        (pages_max,) = replica._connection.execute("PRAGMA cache_spill").fetchone()
        return int(pages_max)

    assert spill() > 0
    pages(replica, 0)
    replica.apply(entry("a", 1, padding=100_000), stamp_ms=2)
    with pytest.raises(StorageFullError):
        replica.commit()
    assert spill() == 0
    pages(replica, None)
    assert replica.commit() == 2
    assert spill() > 0
    replica.close()


def test_an_entry_that_could_not_be_written_is_taken_back_alone(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    written: list[tuple[int, int]] = []

    def write(position: int, time_ms: int) -> None:
        written.append((position, time_ms))

    def full(position: int, time_ms: int) -> None:
        raise StorageFullError("append", "wal", "no room")

    replica.append(entry("a", 1), stamp_ms=1, write=write)
    with pytest.raises(StorageFullError):
        replica.append(entry("a", 100), stamp_ms=50, write=full)
    assert (replica.position, replica.time_ms, replica.committed_position) == (1, 1, 0)
    assert replica.append(entry("a", 1), stamp_ms=2, write=write).outcome == 2
    assert written == [(1, 1), (2, 2)]
    replica.close()
    assert seen(tmp_path) == {"a": 2}


def test_an_entry_that_may_or_may_not_be_written_is_never_committed(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)

    def broken(position: int, time_ms: int) -> None:
        raise FatalStorageError("sync", "wal", "EIO")

    replica.append(entry("a", 1), stamp_ms=1)
    with pytest.raises(FatalStorageError):
        replica.append(entry("a", 1), stamp_ms=2, write=broken)
    for refused in (replica.commit, replica.sync, replica.checkpoint):
        with pytest.raises(FatalStorageError, match="could not be written"):
            refused()
    replica.close()
    assert seen(tmp_path) == {"a": 1}


def test_an_entry_without_a_writer_is_durable_here_with_all_before_it(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    replica.append(entry("a", 1), stamp_ms=1, write=lambda *_: None)
    assert replica.durable_position == 0
    replica.append(entry("a", 1), stamp_ms=2)
    assert (replica.committed_position, replica.durable_position) == (2, 2)
    assert seen(tmp_path) == {"a": 2}
    replica.close()


@pytest.mark.parametrize("name", ["sync", "checkpoint"])
def test_a_sync_and_a_checkpoint_commit_and_make_durable(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(replica_module, "sync_wal", synced.append)
    replica = open_counters(tmp_path)
    replica.apply(entry("a", 1), stamp_ms=1)
    assert getattr(replica, name)() == 1 == replica.durable_position
    assert synced == [tmp_path / "db"]
    assert seen(tmp_path) == {"a": 1}
    replica.apply(entry("a", 1), stamp_ms=1)
    replica.commit()
    assert replica.durable_position == 1
    replica.close()


def test_sqlites_wal_begins_anew_though_a_transaction_is_always_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages_max, padding = 64, 4 * PAGE_BYTES
    monkeypatch.setattr(replica_module, "_LOG_PAGES_MAX", pages_max)
    replica = open_counters(tmp_path)

    def append_meanwhile(_: Path) -> None:
        replica.apply(entry("b", 1, padding=padding), stamp_ms=1)

    monkeypatch.setattr(replica_module, "sync_wal", append_meanwhile)
    for _ in range(60):
        replica.apply(entry("a", 1, padding=padding), stamp_ms=1)
        replica.checkpoint()
    # One checkpoint finds it long; until the next there are two entries more.
    assert (tmp_path / "db-wal").stat().st_size < 2 * pages_max * PAGE_BYTES
    replica.close()
    assert seen(tmp_path) == {"a": 60, "b": 60}


def test_what_a_long_reader_held_up_is_not_copied_while_appends_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages_max, padding = 64, 4 * PAGE_BYTES
    monkeypatch.setattr(replica_module, "_LOG_PAGES_MAX", pages_max)
    monkeypatch.setattr(replica_module, "_LEFT_PAGES_MAX", pages_max // 2)
    replica = open_counters(tmp_path)
    copied_bytes: list[int] = []
    begin_anew = Replica._begin_log_anew

    def end_reader_and_begin_anew(self: Replica[int], connection: sqlite3.Connection) -> None:
        reader.rollback()
        before_bytes = (tmp_path / "db").stat().st_size
        begin_anew(self, connection)
        copied_bytes.append((tmp_path / "db").stat().st_size - before_bytes)

    monkeypatch.setattr(Replica, "_begin_log_anew", end_reader_and_begin_anew)

    def checkpoint_behind_pages_max() -> None:
        for _ in range(pages_max):
            replica.apply(entry("a", 1, padding=padding), stamp_ms=1)
        replica.checkpoint()

    replica.checkpoint()
    reader = sqlite3.connect(tmp_path / "db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM counters").fetchall()
    checkpoint_behind_pages_max()
    assert copied_bytes == [], "a reader held all of it up"
    reader.rollback()
    checkpoint_behind_pages_max()
    assert copied_bytes == [0], "nothing was left"
    reader.close()
    replica.close()
    assert seen(tmp_path) == {"a": 2 * pages_max}


@pytest.mark.slow
def test_a_checkpoint_gives_back_pages_that_were_used_long_ago(tmp_path: Path) -> None:
    try:
        used_bytes = ctypes.CDLL(_sqlite3.__file__).sqlite3_memory_used
    except (AttributeError, OSError):
        pytest.skip("this build of SQLite doesn't tell how much memory it uses")
    used_bytes.restype = ctypes.c_int64
    replica = open_counters(tmp_path)
    before_bytes = used_bytes()
    for number in range(2000):
        replica.apply(entry(f"counter {number}", 1, padding=PAGE_BYTES), stamp_ms=1)
    replica.commit()
    assert used_bytes() - before_bytes > 8 << 20
    replica.checkpoint()
    assert used_bytes() - before_bytes < 6 << 20
    replica.close()


def test_trimming_commits_what_is_open(tmp_path: Path) -> None:
    replica = open_counters(tmp_path)
    infos = []
    for number in range(2):
        replica.apply(entry("a", 1), stamp_ms=number)
        infos.append(replica.snapshot(tmp_path / f"s{number}"))
        replica.apply(entry("a", 1), stamp_ms=number)
        replica.trim_journal(infos[-1])
    assert replica.committed_position == 4
    assert [e.position for e in replica.journal_after(1)] == [2, 3, 4]
    replica.close()
    assert seen(tmp_path) == {"a": 4}


def test_a_replica_of_a_journal_elsewhere_keeps_the_position_alone(tmp_path: Path) -> None:
    replica = open_counters(tmp_path, keeps_journal=False)
    for number in range(3):
        replica.apply(entry("a", 1), stamp_ms=number)
    replica.commit()
    replica.close()
    replica = open_counters(tmp_path, keeps_journal=False)
    assert (replica.position, replica.time_ms) == (3, 2)
    assert list(replica.journal_after(3)) == []
    replica.close()


def test_a_replica_of_a_journal_elsewhere_keeps_the_mark_of_its_last_row(tmp_path: Path) -> None:
    """Also where a full disk took the transaction, and closing commits it."""
    replica = open_counters(tmp_path, keeps_journal=False)
    replica.apply(entry("a", 1), stamp_ms=1)
    assert replica.local(LOCAL_MARK) is None
    replica.commit()
    assert replica.local(LOCAL_MARK) == RowMark(1, 1, crc32c(entry("a", 1))).text
    pages(replica, 0)
    body = entry("a", 1, padding=100_000)
    replica.apply(body, stamp_ms=2)
    with pytest.raises(StorageFullError):
        replica.commit()
    assert replica.local(LOCAL_MARK) == RowMark(1, 1, crc32c(entry("a", 1))).text
    pages(replica, None)
    assert replica.close()
    replica = open_counters(tmp_path, keeps_journal=False)
    assert (replica.position, replica.local(LOCAL_MARK)) == (2, RowMark(2, 2, crc32c(body)).text)
    replica.close()


def test_a_local_value_is_kept_with_the_entries_whose_commit_finds_the_disk_full(
    tmp_path: Path,
) -> None:
    replica = open_counters(tmp_path)
    replica.apply(entry("a", 1), stamp_ms=1)
    replica.set_local("mark", 1)
    replica.commit()
    pages(replica, 0)
    replica.apply(entry("a", 1, padding=100_000), stamp_ms=2)
    replica.set_local("mark", 2)
    with pytest.raises(StorageFullError):
        replica.commit()
    # Whoever sets one before the entries are applied again finds no transaction.
    replica.set_local("other", 7)
    assert (replica.local("mark"), replica.local("other")) == (1, None)
    pages(replica, None)
    assert replica.close()
    replica = open_counters(tmp_path)
    assert (replica.position, replica.local("mark"), replica.local("other")) == (2, 2, 7)
    replica.close()
