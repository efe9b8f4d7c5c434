"""A lost, damaged or older database is made again; where that can't be, the start says so."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.opening.rebuild import SNAPSHOTS_FOLDER, bases
from penstock.log.upkeep import SNAPSHOTS_PREFIX
from penstock.model.errors import CorruptDataError
from penstock.model.ids import partition_key
from penstock.replica.dump import canonical_dump
from penstock.replica.journal_files import JournalFiles
from penstock.state.orders import open_local_journal
from penstock.system.files import PosixDevice
from penstock.system.randomness import SystemRandom
from support.log_rig import NOW, Rig, run_rig
from support.simulated.clock import ManualClock


def dump(path: Path) -> bytes:
    with closing(sqlite3.connect(path)) as connection:
        return b"".join(canonical_dump(connection))


async def fill(rig: Rig) -> None:
    """Records, a producer's sequence, group offsets' worth of state, and a snapshot between."""
    keys = await rig.topic("t", partitions=3)
    for round_ in range(3):
        for key in keys:
            for number in range(5):
                await rig.append(key, b"%d %d" % (round_, number))
        if round_ == 1:
            await rig.drain()
            await rig.upkeep.snapshot()
    await rig.append(keys[0], b"once", producer=(77, 1, 0))


async def check(rig: Rig) -> None:
    """All of it is there, and the producer's repeat is known."""
    topic = rig.view.topic("t")
    assert topic is not None
    expected = [b"%d %d" % (round_, number) for round_ in range(3) for number in range(5)]
    for number in range(3):
        found = await rig.read_all(partition_key(topic.topic_key, number))
        assert [value for _, value in found][: len(expected)] == expected
    key = partition_key(topic.topic_key, 0)
    again = await rig.append(key, b"once", producer=(77, 1, 0))
    assert again.base_offset == len(expected), "a duplicate has its first offset"


def settle(path: Path) -> None:
    """Leave all of a database in its one file: else SQLite has copies of most pages in its WAL."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def another_programs(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id = 7")


def a_newer_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1029")


def without_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE replica")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut in half": cut_in_half,
    "of another program": another_programs,
    "of a newer version": a_newer_version,
    "without a table": without_a_table,
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 512),
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("drained", [False, True])
def test_a_damaged_database_is_made_again_and_kept(
    tmp_path: Path, kind: str, drained: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run_rig(tmp_path, fill, drain=drained)
    path = tmp_path / "metadata.sqlite"
    settle(path)
    DAMAGES[kind](path)
    damaged = path.read_bytes() if path.exists() else b""
    run_rig(tmp_path, check)
    aside = tmp_path / "metadata.sqlite.damaged-1"
    assert (aside.read_bytes() if aside.exists() else b"") == damaged
    assert "is made again of a snapshot and the journal" in caplog.text


@pytest.mark.slow
def test_the_rebuilt_state_is_the_one_that_was_lost(tmp_path: Path) -> None:
    run_rig(tmp_path / "one", fill)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two" / "metadata.sqlite").unlink()

    async def nothing(_: Rig) -> None:
        pass

    for name in ("one", "two"):
        run_rig(tmp_path / name, nothing)
    # Both have registered one epoch more, of the same agent.
    one, two = (dump(tmp_path / name / "metadata.sqlite") for name in ("one", "two"))
    assert one == two


@pytest.mark.slow
def test_an_older_copy_of_the_database_is_brought_to_the_journals_end(tmp_path: Path) -> None:
    kept = tmp_path / "kept.sqlite"
    data = tmp_path / "data"

    async def early(rig: Rig) -> None:
        await rig.topic("early")
        rig.journal.checkpoint()

    run_rig(data, early)
    settle(data / "metadata.sqlite")
    shutil.copyfile(data / "metadata.sqlite", kept)
    run_rig(data, fill)
    settle(data / "metadata.sqlite")
    shutil.copyfile(kept, data / "metadata.sqlite")
    run_rig(data, check)


@pytest.mark.slow
def test_a_copy_older_than_the_journal_files_is_set_aside(tmp_path: Path) -> None:
    kept = tmp_path / "kept.sqlite"
    data = tmp_path / "data"

    async def nothing(_: Rig) -> None:
        pass

    async def late(rig: Rig) -> None:
        await fill(rig)
        for _ in range(2):
            await rig.append(partition_key(rig.view.topic("t").topic_key, 1), b"more")  # type: ignore[union-attr]
            await rig.upkeep.snapshot()

    run_rig(data, nothing)
    settle(data / "metadata.sqlite")
    shutil.copyfile(data / "metadata.sqlite", kept)
    run_rig(data, late)
    assert JournalFiles.open(PosixDevice(data)).floor > 10
    settle(data / "metadata.sqlite")
    shutil.copyfile(kept, data / "metadata.sqlite")
    run_rig(data, check)
    assert (data / "metadata.sqlite.damaged-1").exists()


@pytest.mark.slow
def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    async def twice(rig: Rig) -> None:
        await fill(rig)
        await rig.upkeep.snapshot()

    run_rig(tmp_path, twice)
    newest = max((tmp_path / "objects" / SNAPSHOTS_PREFIX).iterdir())
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 16
    newest.write_bytes(data)
    (tmp_path / "metadata.sqlite").unlink()
    run_rig(tmp_path, check)


def test_without_a_whole_snapshot_the_start_ends_and_leaves_all_as_it_is(tmp_path: Path) -> None:
    async def three(rig: Rig) -> None:
        await fill(rig)
        for _ in range(2):
            await rig.append(partition_key(rig.view.topic("t").topic_key, 1), b"more")  # type: ignore[union-attr]
            await rig.upkeep.snapshot()

    run_rig(tmp_path, three)
    for path in (tmp_path / "objects" / SNAPSHOTS_PREFIX).iterdir():
        path.write_bytes(b"no snapshot")
    path = tmp_path / "metadata.sqlite"
    settle(path)
    path.write_bytes(b"no database" * 1000)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"metadata\.sqlite.*no whole snapshot"):
            run_rig(tmp_path, check)
        assert path.read_bytes() == b"no database" * 1000


def test_a_snapshot_is_a_base_only_where_the_journal_leads_on_from_it(tmp_path: Path) -> None:
    device = PosixDevice(tmp_path)
    journal = JournalFiles.open(device)
    journal.begin_at(11)
    journal.note([(position, 1_000, b"entry") for position in range(11, 21)])
    journal.sync()
    assert (journal.floor, journal.last) == (11, 20)
    folder = tmp_path / SNAPSHOTS_FOLDER
    folder.mkdir(parents=True)
    for position in (9, 10, 15, 20, 21):
        (folder / f"{position:020d}.sqlite").touch()
    found = [position for position, _ in bases(device, journal, 20)]
    assert found == [20, 15, 10]
    assert [position for position, _ in bases(device, journal, 14)] == [10]
    journal.close()


def test_a_snapshot_below_the_journals_first_entry_is_not_made_the_state(tmp_path: Path) -> None:
    """Put back from a copy of the directory, say: the entries between are nowhere."""
    snapshots = tmp_path / "objects" / SNAPSHOTS_PREFIX

    async def three(rig: Rig) -> None:
        await fill(rig)
        shutil.copytree(snapshots, tmp_path / "kept")
        for _ in range(3):
            await rig.append(partition_key(rig.view.topic("t").topic_key, 1), b"more")  # type: ignore[union-attr]
            await rig.upkeep.snapshot()

    run_rig(tmp_path, three)
    (kept,) = (tmp_path / "kept").iterdir()
    for path in snapshots.iterdir():
        path.write_bytes(b"no snapshot")
    assert not (snapshots / kept.name).exists()
    assert int(kept.stem) < JournalFiles.open(PosixDevice(tmp_path)).floor - 1
    shutil.copyfile(kept, snapshots / kept.name)
    (tmp_path / "metadata.sqlite").unlink()
    with pytest.raises(CorruptDataError, match=r"metadata\.sqlite.*no whole snapshot"):
        run_rig(tmp_path, check)
    assert not (tmp_path / "metadata.sqlite.rebuilt").exists()
    assert not (tmp_path / "metadata.sqlite").exists()


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        ([], "snapshots, segment objects, a WAL with entries"),
        (["wal"], "snapshots, segment objects"),
        (["wal", "objects/snapshots"], "segment objects"),
        (["objects"], "a WAL with entries"),
    ],
)
def test_a_log_without_its_database_and_journal_is_no_new_log(
    tmp_path: Path, gone: list[str], left: str
) -> None:
    """A new cluster in its place would free the WAL's files, and delete the objects as orphans."""

    async def twice(rig: Rig) -> None:
        await fill(rig)
        await rig.drain()

    run_rig(tmp_path, twice)
    run_rig(tmp_path, check)
    (tmp_path / "metadata.sqlite").unlink()
    for name in ("journal", *gone):
        shutil.rmtree(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    match = (
        rf"metadata.sqlite is missing, and journal/ is missing: .*: {left}.*\(mount their volume"
    )
    with pytest.raises(CorruptDataError, match=match):
        run_rig(tmp_path, check)
    assert [path for path in before if not path.exists()] == []
    assert not (tmp_path / "metadata.sqlite").exists()


@pytest.mark.slow
def test_entries_that_the_database_alone_holds_force_a_snapshot(tmp_path: Path) -> None:
    """As in a directory of an older release, or a restored one."""

    async def keep(rig: Rig) -> None:
        await rig.upkeep.run_once()

    run_rig(tmp_path, fill)
    # Journaled in the database's own table, as releases before did.
    path = tmp_path / "metadata.sqlite"
    open_local_journal(path, clock=ManualClock(now_ms=NOW), random=SystemRandom()).close()
    run_rig(tmp_path, keep, snapshot_entries=10**9, snapshot_interval_ms=10**12)
    path.unlink()
    run_rig(tmp_path, check)


def test_an_agent_keeps_its_id_without_its_database(tmp_path: Path) -> None:
    ids = []

    async def note(rig: Rig) -> None:
        ids.append((rig.journal.agent_id, rig.journal.epoch, rig.journal.cluster_id))

    run_rig(tmp_path, note)
    (tmp_path / "metadata.sqlite").unlink()
    run_rig(tmp_path, note)
    assert ids[0][0] == ids[1][0]
    assert ids[0][1] < ids[1][1]
    assert ids[0][2] == ids[1][2]
