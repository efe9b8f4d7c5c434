"""A state that is not what the journal gives is found, named by table, and made again."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random as Chance

import pytest

from penstock.log.opening import state_check
from penstock.log.opening.left import is_as_left, note_left
from penstock.log.opening.rebuild import suspect_path
from penstock.log.opening.state_check import StateChecker, StateDamagedError, fault_at_start
from penstock.log.upkeep import SNAPSHOTS_PREFIX, Upkeep
from penstock.model.ids import partition_key
from penstock.replica.dump import table_digests
from penstock.replica.journal_files import JournalFiles
from penstock.system.files import PosixDevice
from support.log_rig import Rig, run_rig
from unit.log.opening.test_rebuild import check, fill, settle

DAY_MS = 86_400_000


def with_checker(rig: Rig, **limits: int) -> Upkeep:
    """Upkeep as a server has it."""
    return Upkeep(
        journal=rig.journal,
        store=rig.store,
        scratch=rig.path / "scratch",
        clock=rig.clock,
        pool=rig.pool,
        limits=replace(rig.upkeep._limits, **{"state_check_interval_ms": DAY_MS, **limits}),
        checker=StateChecker(
            root=rig.path,
            database=rig.path / "metadata.sqlite",
            scratch=rig.path / "scratch" / "state-check",
        ),
    )


def change(statement: str) -> Callable[[Path], None]:
    """Change a value, as SQLite sees it; its structure stays whole."""

    def changed(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            assert connection.execute(statement).rowcount
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    return changed


CHANGES = {
    "partitions": change("UPDATE partitions SET next_offset = next_offset + 1024"),
    "wal_runs": change("UPDATE wal_runs SET max_timestamp = max_timestamp + 64"),
    "producers": change("UPDATE producers SET epoch = epoch + 1"),
    "meta": change("UPDATE meta SET value = value + 2 WHERE name = 'next_topic_key'"),
    "topics": change("UPDATE topics SET name = 'u' WHERE name = 't'"),
    "agents": change("UPDATE agents SET software = 'x'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("table", CHANGES)
def test_a_flipped_cell_of_a_stopped_server_is_found_by_its_start(
    tmp_path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was served: SQLite's integrity_check sees structure alone."""
    run_rig(tmp_path, fill)
    CHANGES[table](tmp_path / "metadata.sqlite")
    run_rig(tmp_path, check)
    assert (tmp_path / "metadata.sqlite.damaged-1").exists()
    assert f"its tables {table} are not what the journal's entries past" in caplog.text


@pytest.mark.slow
def test_any_flipped_bit_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """600 bits of the file, drawn from a seed: the state is the one that was acknowledged."""
    run_rig(tmp_path / "kept", fill)
    path = tmp_path / "data" / "metadata.sqlite"
    settle(tmp_path / "kept" / "metadata.sqlite")
    states = []

    async def look(rig: Rig) -> None:
        rig.journal.commit()
        with closing(sqlite3.connect(path)) as connection:
            states.append(table_digests(connection))

    chance = Chance(7)
    rebuilt = 0
    for turn in range(41):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        shutil.copytree(tmp_path / "kept", tmp_path / "data")
        if turn:
            data = bytearray(path.read_bytes())
            for _ in range(15):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
        run_rig(tmp_path / "data", look)
        rebuilt += path.with_name("metadata.sqlite.damaged-1").exists()
    assert all(state == states[0] for state in states)
    assert rebuilt > 10


@pytest.mark.slow
def test_a_flipped_cell_of_a_running_server_is_found_by_the_check_that_is_due(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        upkeep = with_checker(rig, state_check_entries=1000, snapshot_entries=40)
        await fill(rig)
        await upkeep.run_once()
        assert (upkeep.check_count, upkeep.checked_position) == (0, 0)
        rig.clock.advance(86_400)
        await upkeep.run_once()
        assert (upkeep.check_count, upkeep.checked_position) == (1, rig.journal.position)
        CHANGES["producers"](rig.path / "metadata.sqlite")
        await upkeep.run_once()
        assert upkeep.check_count == 1
        rig.clock.advance(86_400)
        with pytest.raises(StateDamagedError, match="its tables producers are not what"):
            await upkeep.run_once()
        assert suspect_path(rig.path / "metadata.sqlite").exists()

    run_rig(tmp_path, test)
    run_rig(tmp_path, check)
    assert not suspect_path(tmp_path / "metadata.sqlite").exists()
    assert (tmp_path / "metadata.sqlite.damaged-1").exists()


@pytest.mark.slow
def test_a_cell_that_is_in_an_unchecked_snapshot_is_not_made_again_of_it(tmp_path: Path) -> None:
    async def flip(rig: Rig) -> None:
        upkeep = with_checker(rig, state_check_entries=10**9)
        await fill(rig)
        rig.journal.commit()
        CHANGES["producers"](rig.path / "metadata.sqlite")
        await upkeep.snapshot()
        rig.clock.advance(86_400)
        with pytest.raises(StateDamagedError, match="producers"):
            await upkeep.snapshot()

    async def again(rig: Rig) -> None:
        await check(rig)
        rig.clock.advance(86_400)
        upkeep = with_checker(rig)
        await upkeep.snapshot()
        rig.clock.advance(86_400)
        await upkeep.snapshot()
        assert upkeep.check_count > 0

    run_rig(tmp_path, flip)
    run_rig(tmp_path, again)
    assert list((tmp_path / "objects" / SNAPSHOTS_PREFIX).glob("*.suspect"))


def test_a_damaged_state_is_in_no_snapshot_that_is_checked(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        upkeep = with_checker(rig, state_check_entries=1)
        await fill(rig)
        before = {info.key async for info in rig.store.list(SNAPSHOTS_PREFIX)}
        rig.journal.commit()
        CHANGES["topics"](rig.path / "metadata.sqlite")
        with pytest.raises(StateDamagedError, match="topics"):
            await upkeep.snapshot()
        assert {info.key async for info in rig.store.list(SNAPSHOTS_PREFIX)} == before

    run_rig(tmp_path, test)
    run_rig(tmp_path, check)


@pytest.mark.slow
async def test_after_so_many_entries_the_state_is_checked_and_the_journal_trimmed(rig: Rig) -> None:
    upkeep = with_checker(rig, state_check_entries=50, snapshot_entries=20)
    (key,) = await rig.topic("t")
    floors = []
    for _ in range(200):
        await rig.append(key, b"value")
        rig.clock.advance(61)
        await upkeep.run_once()
        floors.append(rig.journal.base_position)
        kept = sorted([info.key async for info in rig.store.list(SNAPSHOTS_PREFIX)])
        assert len(kept) <= 4
        assert rig.journal.base_position <= upkeep.checked_position
    assert upkeep.check_count >= 3
    assert floors[45] == 0, "entries from the first on are kept for the first check"
    assert 0 < floors[-1] < rig.journal.position


@pytest.mark.slow
def test_a_check_in_a_process_of_its_own_finds_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_check, "APART_BYTES", 0)

    async def test(rig: Rig) -> None:
        upkeep = with_checker(rig, state_check_entries=1)
        await fill(rig)
        await upkeep.snapshot()
        assert upkeep.check_count == 1
        topic = rig.view.topic("t")
        assert topic is not None
        await rig.append(partition_key(topic.topic_key, 0), b"more")
        rig.journal.commit()
        CHANGES["partitions"](rig.path / "metadata.sqlite")
        with pytest.raises(StateDamagedError, match="partitions"):
            await upkeep.snapshot()

    run_rig(tmp_path, test)


async def test_never_means_never(rig: Rig) -> None:
    upkeep = with_checker(rig, state_check_interval_ms=0, state_check_entries=1)
    await fill(rig)
    await upkeep.snapshot()
    await upkeep.snapshot()
    assert upkeep.check_count == 0


def test_what_is_the_same_bit_by_bit_is_as_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.write_bytes(b"some content")
    assert not is_as_left(path)
    note_left(path)
    assert is_as_left(path)
    path.with_name("db-wal").write_bytes(b"")
    assert is_as_left(path)
    path.with_name("db-wal").write_bytes(b"more")
    assert not is_as_left(path)
    path.with_name("db-wal").unlink()
    path.write_bytes(b"some c0ntent")
    assert not is_as_left(path)
    path.with_name("db.left").write_bytes(b"\xff\xfe")
    assert not is_as_left(path)


@pytest.mark.slow
def test_a_damaged_base_is_named_and_the_next_check_begins_after_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        upkeep = with_checker(rig, state_check_entries=5)
        await fill(rig)
        topic = rig.view.topic("t")
        assert topic is not None
        for turn in range(4):
            for _ in range(10):
                await rig.append(partition_key(topic.topic_key, 0), b"more")
            await upkeep.snapshot()
            if turn == 1:
                newest = max((rig.path / "objects" / SNAPSHOTS_PREFIX).iterdir())
                newest.write_bytes(newest.read_bytes()[:-4096])
        assert (upkeep.check_count, upkeep.failed_check_count) == (3, 1)
        assert upkeep.checked_position == rig.journal.position

    run_rig(tmp_path, test)
    assert "the state can't be checked from position" in caplog.text


def damage_an_index(path: Path) -> None:
    """Flip a bit of a key in the index of objects; the table's rows stay as they are."""
    with closing(sqlite3.connect(path)) as connection, connection:
        (root, size) = connection.execute(
            "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_master"
            " WHERE type = 'index' AND tbl_name = 'objects'"
        ).fetchone()
    settle(path)
    data = bytearray(path.read_bytes())
    page = data[(root - 1) * size : root * size]
    at = page.find(b"segments/")
    assert at > 0
    data[(root - 1) * size + at + 10] ^= 1
    path.write_bytes(data)


def test_a_damaged_index_is_found_by_the_check(tmp_path: Path) -> None:
    """A look-up by key would find nothing: the keeper would take a live object for an orphan."""

    async def test(rig: Rig) -> None:
        upkeep = with_checker(rig, state_check_entries=1)
        await fill(rig)
        rig.journal.checkpoint()
        damage_an_index(rig.path / "metadata.sqlite")
        with pytest.raises(StateDamagedError, match="index"):
            await upkeep.snapshot()

    run_rig(tmp_path, test)
    run_rig(tmp_path, check)


@pytest.mark.slow
def test_a_check_looks_at_the_database_too_and_not_only_at_the_snapshot_of_it(
    tmp_path: Path,
) -> None:
    """A snapshot has indexes of its own: a whole one says nothing of the database's."""

    async def test(rig: Rig) -> None:
        await fill(rig)
        snapshot, path = rig.path / "whole.sqlite", rig.path / "metadata.sqlite"
        info = rig.journal.snapshot(snapshot)
        assert rig.journal.base_position == 0
        checker = StateChecker(root=rig.path, database=path, scratch=rig.path / "scratch")
        checker.check(snapshot, base=0, position=info.position)
        rig.journal.checkpoint()
        damage_an_index(path)
        with pytest.raises(StateDamagedError, match="index"):
            checker.check(snapshot, base=0, position=info.position)

    run_rig(tmp_path, test)
    run_rig(tmp_path, check)


def test_a_position_that_is_not_that_of_its_state_is_found_by_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tables are those of the journal's end: entries would be passed over that come next."""
    run_rig(tmp_path, fill)
    change("UPDATE replica SET position = position + 4")(tmp_path / "metadata.sqlite")
    run_rig(tmp_path, check)
    assert (tmp_path / "metadata.sqlite.damaged-1").exists()
    assert "is not that of its state" in caplog.text


def test_a_state_that_alone_has_the_newest_entries_is_no_damaged_one(tmp_path: Path) -> None:
    """The journal files ended earlier, as where a power cut took what was not synced: made again of
    them the state would lose what it acknowledged."""
    run_rig(tmp_path, fill)
    shutil.copytree(tmp_path / "journal", tmp_path / "older")
    older = JournalFiles.open(PosixDevice(tmp_path)).last

    async def more(rig: Rig) -> None:
        topic = rig.view.topic("t")
        assert topic is not None
        await rig.append(partition_key(topic.topic_key, 1), b"more")

    run_rig(tmp_path, more)
    shutil.rmtree(tmp_path / "journal")
    (tmp_path / "older").rename(tmp_path / "journal")
    device = PosixDevice(tmp_path)
    journal = JournalFiles.open(device)
    with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection:
        (position,) = connection.execute("SELECT position FROM replica").fetchone()
    assert journal.last == older < position
    assert fault_at_start(tmp_path / "metadata.sqlite", device, journal) == ""
