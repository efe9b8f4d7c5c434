"""Snapshots: equal to the original, checked, and enough to make it again with the tail."""

from pathlib import Path

import pytest

from penstock.model.errors import CorruptDataError, InvalidRequestError, NotFoundError
from penstock.replica.replica import Replica
from penstock.replica.snapshot import JournalEntry, restore_snapshot, verify_snapshot
from unit.replica.counters import APPLICATION_ID, Counters, entry


def filled(directory: Path, count: int = 20) -> Replica[int]:
    replica = Replica.open(directory / "db", Counters())
    for index in range(count):
        replica.append(entry(f"counter {index % 7}", index), stamp_ms=index * 10)
    return replica


def restored(directory: Path, snapshot: Path, tail: list[JournalEntry]) -> Replica[int]:
    target = directory / "restored"
    restore_snapshot(snapshot, target, application_id=APPLICATION_ID, format_version=1, tail=tail)
    return Replica.open(target, Counters())


def test_a_snapshot_has_the_states_digest_and_no_journal(tmp_path: Path) -> None:
    replica = filled(tmp_path)
    info = replica.snapshot(tmp_path / "snapshot")
    assert (info.position, info.digest) == replica.digest()
    assert info.time_ms == 190
    assert verify_snapshot(tmp_path / "snapshot") == info
    assert not (tmp_path / "snapshot.partial").exists()
    assert (tmp_path / "snapshot").stat().st_size < (tmp_path / "db-wal").stat().st_size
    replica.close()


@pytest.mark.slow
def test_snapshot_and_tail_make_the_same_state(tmp_path: Path) -> None:
    replica = filled(tmp_path)
    info = replica.snapshot(tmp_path / "snapshot")
    for index in range(600):
        replica.append(entry(f"later {index % 5}", index), stamp_ms=1000 + index)
    tail = list(replica.journal_after(info.position))
    copy = restored(tmp_path, tmp_path / "snapshot", tail)
    assert (copy.position, copy.time_ms) == (replica.position, replica.time_ms)
    assert copy.digest() == replica.digest()
    # And they go on alike.
    copy.append(entry("a", 1), stamp_ms=0)
    replica.append(entry("a", 1), stamp_ms=0)
    assert copy.digest() == replica.digest()
    assert [e.position for e in copy.journal_after(info.position)] == list(range(21, 622))
    copy.close()
    replica.close()


def test_entries_that_the_snapshot_covers_are_left_out(tmp_path: Path) -> None:
    replica = filled(tmp_path)
    replica.snapshot(tmp_path / "snapshot")
    copy = restored(tmp_path, tmp_path / "snapshot", list(replica.journal_after(0)))
    assert copy.digest() == replica.digest()
    copy.close()
    replica.close()


def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    replica = filled(tmp_path)
    replica.snapshot(tmp_path / "snapshot")
    for _ in range(3):
        replica.append(entry("a", 1), stamp_ms=0)
    tail = list(replica.journal_after(20))
    del tail[1]
    with pytest.raises(CorruptDataError, match="position 23 where 22 is due"):
        restored(tmp_path, tmp_path / "snapshot", tail)
    assert not (tmp_path / "restored").exists()
    replica.close()


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    replica = filled(tmp_path)
    replica.snapshot(tmp_path / "snapshot")
    replica.close()
    original = (tmp_path / "snapshot").read_bytes()
    place = original.index(b"counter 3")
    (tmp_path / "snapshot").write_bytes(
        original[:place] + b"counter 9" + original[place + len(b"counter 9") :]
    )
    with pytest.raises(CorruptDataError, match="snapshot"):
        verify_snapshot(tmp_path / "snapshot")


def test_other_files_are_refused(tmp_path: Path) -> None:
    replica = filled(tmp_path)
    replica.snapshot(tmp_path / "snapshot")
    with pytest.raises(NotFoundError):
        verify_snapshot(tmp_path / "nothing")
    with pytest.raises(CorruptDataError, match="no such table"):
        verify_snapshot(tmp_path / "db")
    with pytest.raises(InvalidRequestError, match="another program"):
        restore_snapshot(tmp_path / "snapshot", tmp_path / "x", application_id=1, format_version=1)
    with pytest.raises(InvalidRequestError, match="format version 1, this release knows 0"):
        restore_snapshot(
            tmp_path / "snapshot",
            tmp_path / "x",
            application_id=APPLICATION_ID,
            format_version=0,
        )
    replica.close()


def test_a_snapshot_is_of_one_moment_while_appends_go_on(tmp_path: Path) -> None:
    replica = filled(tmp_path)
    replica.snapshot(tmp_path / "before")
    replica.append(entry("a", 1), stamp_ms=0)
    info = replica.snapshot(tmp_path / "after")
    assert info.position == 21
    assert verify_snapshot(tmp_path / "before").position == 20
    replica.close()
