"""A pinned state is that of one position, whatever is committed meanwhile; and its digests."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import CorruptDataError, StorageFullError
from penstock.replica import pinned as pinned_module
from penstock.replica.dump import table_digests
from penstock.replica.pinned import PinnedState, digest_file, digest_pinned
from penstock.replica.replica import Replica
from unit.replica.counters import Counters, entry


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica[int]]:
    found = Replica.open(tmp_path / "db", Counters(), fsync=False, keeps_journal=False)
    yield found
    found.close()


def write(replica: Replica[int], count: int) -> None:
    for number in range(count):
        replica.apply(entry(f"c{number % 50}", 1, padding=200), stamp_ms=1)
        replica.commit()


def digests(path: Path) -> dict[str, bytes]:
    connection = sqlite3.connect(path)
    try:
        return table_digests(connection)
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("apart_bytes", [0, 1 << 40], ids=["a process", "here"])
def test_commits_and_checkpoints_meanwhile_change_nothing(
    replica: Replica[int], tmp_path: Path, apart_bytes: int
) -> None:
    write(replica, 60)
    expected = digests(replica.path)
    pinned = PinnedState(replica.path)
    write(replica, 60)
    replica.checkpoint()
    write(replica, 60)
    assert pinned.position == 60
    scratch = tmp_path / "scratch"
    assert digest_pinned(pinned, scratch, apart_bytes=apart_bytes) == expected
    assert digests(replica.path) != expected
    assert list(scratch.iterdir()) == []
    # It was let go: SQLite's WAL is copied whole again.
    replica.checkpoint()
    with sqlite3.connect(replica.path) as connection:
        ((_, log, copied),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection.close()
    assert log == copied


@pytest.mark.slow
@pytest.mark.parametrize("apart_bytes", [0, 1 << 40], ids=["a process", "here"])
def test_a_state_that_cannot_be_read_is_damage(
    replica: Replica[int], tmp_path: Path, apart_bytes: int
) -> None:
    write(replica, 200)
    replica.checkpoint()
    (root,) = (
        sqlite3.connect(replica.path)
        .execute("SELECT rootpage FROM sqlite_master WHERE name = 'counters'")
        .fetchone()
    )
    with replica.path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xff" * 64)
    with pytest.raises(CorruptDataError, match="malformed"):
        digest_pinned(PinnedState(replica.path), tmp_path / "scratch", apart_bytes=apart_bytes)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_copy_without_space_is_not_begun(
    replica: Replica[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(replica, 10)

    def full(directory: str, *, entry_bytes: int, frees_space: bool = False) -> None:
        raise StorageFullError("append", directory, "0 bytes are free")

    monkeypatch.setattr(pinned_module, "check_space", full)
    pinned = PinnedState(replica.path)
    with pytest.raises(StorageFullError):
        digest_pinned(pinned, tmp_path / "scratch")
    with pytest.raises(sqlite3.ProgrammingError):
        pinned.copy(tmp_path / "other")


def test_a_flipped_cell_changes_its_table_alone(replica: Replica[int], tmp_path: Path) -> None:
    write(replica, 10)
    before = digest_pinned(PinnedState(replica.path), tmp_path / "scratch")
    connection = sqlite3.connect(replica.path)
    connection.execute("UPDATE counters SET value = value + 1 WHERE name = 'c3'")
    connection.commit()
    connection.close()
    after = digest_pinned(PinnedState(replica.path), tmp_path / "scratch")
    assert set(before) == set(after) == {"counters"}
    assert before != after
    assert digest_file(replica.path) == after
