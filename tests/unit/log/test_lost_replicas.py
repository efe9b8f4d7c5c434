"""Replicas of a history that the journal has lost are set aside, noted and kept."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.errors import JournalOlderError, RetryableError
from penstock.replica.archive_format import SnapshotName
from penstock.replica.aside import find_aside, find_damaged, set_aside
from penstock.replica.marks import LOCAL_MARK, RowMark
from penstock.replica.replica import Replica
from penstock.state.apply.machine import LogMachine
from penstock.state.rows import LostReason
from support.archives import archive_of, open_order, true_state, write
from support.cluster_rig import Cluster, ClusterAgent
from unit.log.lost_journals import LOST_ROWS, close_history, lose, lost_of


async def replica_of(cluster: Cluster, agent: ClusterAgent) -> tuple[Path, tuple[int, bytes]]:
    """A closed replica of what the agent wrote: its file, its state's position and digest."""
    await write(agent, 6)
    path = cluster.folder / "other" / "replica.sqlite"
    path.parent.mkdir()
    order = await open_order(cluster, path)
    state = order.digest()
    await order.close()
    return path, state


@pytest.mark.slow
async def test_a_replica_of_the_lost_history_is_set_aside_noted_and_archived(
    cluster: Cluster,
) -> None:
    path, (position, digest) = await replica_of(cluster, await cluster.agent(1))
    mark = RowMark.of(cluster.journal.rows()[position - 1])
    await lose(cluster, position)
    with pytest.raises(JournalOlderError):
        await open_order(cluster, path)
    (aside,) = find_aside(path.parent)
    assert aside.mark == mark
    assert not path.exists()
    order = await open_order(cluster, path)
    assert order.digest() == await true_state(cluster.agents[0])
    await order.close()

    survivor = cluster.agents[0]
    lost = lost_of(survivor, path.parent)
    await lost.run_once()
    (history,) = survivor.log._view.open_histories.values()
    assert (history.end, history.stamp_ms, history.crc) == (
        mark.position,
        mark.stamp_ms,
        mark.crc,
    )
    assert history.reason is LostReason.REPLICA
    assert history.start <= position - LOST_ROWS + 1
    (name,) = await archive_of(cluster).lost(1)
    assert isinstance(name, SnapshotName)
    assert name.position == position
    assert digest.hex().startswith(name.digest_hex)
    puts = len(cluster.store.puts)
    await lost.run_once()
    assert len(cluster.store.puts) == puts, "once is enough"
    assert find_aside(path.parent) == [aside]
    await close_history(survivor, 1)
    await lost.run_once()
    assert not find_aside(path.parent)


@pytest.mark.slow
async def test_a_replica_that_cannot_be_set_aside_now_is_not_dropped(cluster: Cluster) -> None:
    """Nothing else may name the acknowledged records of the lost history."""
    path, (position, _) = await replica_of(cluster, await cluster.agent(1))
    await lose(cluster, position)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        # A backup that somebody makes of the file, say.
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM replica").fetchone()
        with pytest.raises(RetryableError, match="set replica aside"):
            await open_order(cluster, path)
    assert path.exists()
    assert not find_aside(path.parent)
    with pytest.raises(JournalOlderError):
        await open_order(cluster, path)
    (aside,) = find_aside(path.parent)
    assert aside.mark.position == position


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["a table", "the mark", "no page"])
async def test_a_damaged_replica_of_the_lost_history_is_kept(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """What it alone names is not lost quietly: the file is renamed, and log and status name it."""
    path, (position, _) = await replica_of(cluster, await cluster.agent(1))
    mark = RowMark.of(cluster.journal.rows()[position - 1])
    spoil(path, damage)
    before = path.read_bytes()
    await lose(cluster, position)
    try:
        order = await open_order(cluster, path)
    except JournalOlderError:
        order = await open_order(cluster, path)
    assert order.digest() == await true_state(cluster.agents[0])
    await order.close()
    (kept,) = path.parent.glob("lost-*.sqlite")
    assert kept.read_bytes()[4096:] == before[4096:], "as it was, but for the first page"
    assert f"kept as {kept}" in caplog.text
    survivor = cluster.agents[0]
    lost = lost_of(survivor, path.parent)
    await lost.run_once()
    assert lost.kept == [kept.name]
    if damage == "a table":
        assert [one.mark for one in find_aside(path.parent)] == [mark]
        (history,) = survivor.log._view.open_histories.values()
        assert history.end == position, "noted by what could be read"
        assert f"can't be archived and stays as {kept}" in caplog.text
        caplog.clear()
        await lost.run_once()
        assert not caplog.text, "said once"
    else:
        assert kept.name == "lost-damaged-0001.sqlite"
    await lost.run_once()
    assert kept.exists()


def spoil(path: Path, damage: str) -> None:
    """Damage a closed replica."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'topics'"
        ).fetchone()
        if damage == "the mark":
            connection.execute("UPDATE local SET value = 'x 1' WHERE name = ?", (LOCAL_MARK,))
            return
    data = bytearray(path.read_bytes())
    start = (page - 1) * page_bytes if damage == "a table" else 0
    data[start : start + page_bytes] = b"\xff" * page_bytes
    path.write_bytes(data)


async def test_a_damaged_replica_whose_last_row_the_journal_holds_is_made_again(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    path, _ = await replica_of(cluster, agent)
    spoil(path, "a table")
    order = await open_order(cluster, path)
    assert order.digest() == await true_state(agent)
    await order.close()
    assert not list(path.parent.glob("lost-*"))


def test_damaged_replicas_that_are_kept_are_bounded(tmp_path: Path) -> None:
    for number in range(5):
        path = tmp_path / "replica.sqlite"
        path.write_bytes(b"no database %d" % number)
        set_aside(path)
    names = [f"lost-damaged-{number:04d}.sqlite" for number in (3, 4, 5)]
    assert [one.name for one in find_damaged(tmp_path)] == names
    assert (tmp_path / names[-1]).read_bytes() == b"no database 4"


def test_replicas_that_are_set_aside_are_bounded(tmp_path: Path) -> None:
    for position in range(1, 7):
        path = tmp_path / "replica.sqlite"
        replica = Replica.open(path, LogMachine(), fsync=False, keeps_journal=False)
        for _ in range(position):
            replica.apply(b"", stamp_ms=1)
        replica.commit()
        replica.close()
        set_aside(path)
    assert [one.mark.position for one in find_aside(tmp_path)] == [4, 5, 6]
    assert len(list(tmp_path.iterdir())) == 3
