"""A journal that came back older and grew again: nobody stands on the history that it has lost."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.archive import ArchiveSettings
from penstock.log.archived_loss import find_loss, set_loss_aside
from penstock.log.lost_histories import ASIDE_WAL, LostHistories
from penstock.metadata.answers import BatchStatus, Condemned, Done
from penstock.metadata.apply import LogMachine
from penstock.metadata.commands import CloseHistory, CondemnObjects, Fence
from penstock.metadata.rows import LostReason
from penstock.model.errors import JournalOlderError
from penstock.ports.journal import JournalRow
from penstock.replica import Replica
from penstock.replica.archive_format import (
    JOURNAL_PREFIX,
    SNAPSHOTS_PREFIX,
    SnapshotName,
    StretchName,
)
from penstock.replica.aside import find_aside, set_aside
from penstock.replica.bootstrap import bootstrap
from penstock.replica.marks import LOCAL_MARK, RowMark
from penstock.testing.inline_executor import InlineExecutor
from support.cluster_rig import Cluster, ClusterAgent, passing, run_cluster
from unit.log.test_archive import (
    archive_of,
    archiver_of,
    keys,
    open_order,
    replayed_from_rows,
    true_state,
    write,
)

LOST_ROWS = 4


async def lose(cluster: Cluster, position: int) -> None:
    """The journal comes back without its last rows; an older replica goes on and grows past."""
    for agent in cluster.agents:
        await agent.close(0)
    cluster.agents.clear()
    cluster.journal.come_back_older(position - LOST_ROWS)
    survivor = await cluster.agent(2)
    await write(survivor, 8, topic="u")
    assert survivor.order.position > position


async def made_anew(cluster: Cluster, name: str = "late") -> tuple[int, bytes]:
    order = await open_order(cluster, cluster.folder / f"{name}.sqlite")
    try:
        return order.digest()
    finally:
        await order.close()


def test_a_mark_tells_rows_apart_by_each_of_its_parts() -> None:
    row = JournalRow(position=7, stamp_ms=1_000, body=b"a row")
    mark = RowMark.of(row)
    assert RowMark.parse(mark.text) == mark
    others = [
        JournalRow(position=8, stamp_ms=1_000, body=b"a row"),
        JournalRow(position=7, stamp_ms=1_001, body=b"a row"),
        JournalRow(position=7, stamp_ms=1_000, body=b"b row"),
    ]
    assert len({mark, *map(RowMark.of, others)}) == 4


def test_what_a_lost_stretch_has_in_common_with_the_journal_stays_in_the_archive(
    tmp_path: Path,
) -> None:
    """The journal may have trimmed these rows: then only that stretch holds them."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        await write(agent, 6)
        await archiver_of(agent).snapshot()
        common = cluster.journal.rows()[:-LOST_ROWS]
        await lose(cluster, agent.order.position)
        archive = archive_of(cluster)
        loss = await find_loss(
            cluster.agents[0].journal,
            archive,
            snapshots=await archive.snapshots(),
            stretches=await archive.stretches(),
        )
        assert loss is not None
        assert loss.start == len(common) + 1
        await set_loss_aside(archive, loss, 1)
        until = loss.start - 1
        found = [row async for rows in archive.rows(after=0, until=until) for row in rows]
        assert found == common

    run_cluster(tmp_path, test)


@pytest.mark.parametrize("marked", [True, False])
def test_a_new_agent_does_not_begin_with_a_snapshot_of_the_lost_history(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, marked: bool
) -> None:
    """Without a mark (of an older release) the archived row tells the same."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        await write(agent, 6)
        if not marked:
            path = cluster.folder / "agent1/replica.sqlite"
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("DELETE FROM local")
        await archiver_of(agent).snapshot()
        (name,) = await archive_of(cluster).snapshots()
        header = await archive_of(cluster).header(name)
        assert (header.mark is not None) == marked
        await lose(cluster, agent.order.position)
        truth = await true_state(cluster.agents[0])
        with caplog.at_level(logging.ERROR):
            assert await made_anew(cluster) == truth
        assert "of a history that the journal has lost" in caplog.text

    run_cluster(tmp_path, test)


def test_an_older_snapshot_of_both_histories_is_taken_instead(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        archiver = archiver_of(agent)
        await write(agent, 6)
        common = await archiver.snapshot()
        # It has a replica that is older than what will be lost, and no older than the snapshot.
        await (await cluster.agent(2)).close(0)
        cluster.agents.pop()
        await write(agent, 6)
        await archiver.snapshot()
        await lose(cluster, agent.order.position)
        # Only what the archive still holds can give the rows up to the common snapshot.
        cluster.journal.trim(common.position)
        assert cluster.journal.first > 1
        assert await made_anew(cluster) == await true_state(cluster.agents[0])

    run_cluster(tmp_path, test)


def test_archived_rows_of_the_lost_history_are_not_replayed(tmp_path: Path) -> None:
    """The journal's rows are trimmed into a stretch whose end it has lost."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        archiver = archiver_of(agent)
        await write(agent, 3)
        await archiver.snapshot()
        start = agent.order.position
        await write(agent, 9)
        archive = archive_of(cluster)
        lost = cluster.journal.rows()[start:]
        await archive.put_stretch(lost)
        await lose(cluster, agent.order.position)
        end = cluster.journal.rows()[-1].position
        # The same rows in the history that is: shorter, so that the other is tried first.
        present = cluster.journal.rows()[start : lost[-1].position - 1]
        await archive.put_stretch(present)
        cluster.journal.trim(start + 2)
        assert cluster.journal.first == start + 3
        assert lost[-1].position < end
        assert await made_anew(cluster) == await true_state(cluster.agents[0])

    run_cluster(tmp_path, test)


def test_a_replica_of_a_snapshot_goes_on_comparing(tmp_path: Path) -> None:
    """Its mark is the snapshot's, and after a replay the last replayed row's."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        archiver = archiver_of(agent)
        await write(agent, 3)
        name = await archiver.snapshot()
        await write(agent, 3)
        rows = {row.position: row for row in cluster.journal.rows()}
        await archiver.snapshot()
        for until in (None, name.position + 2):
            path = tmp_path / f"made{until}.sqlite"
            await bootstrap(
                archive_of(cluster),
                path,
                LogMachine,
                executor=None,
                at_most=name.position,
                apply_to=until,
            )
            with closing(sqlite3.connect(path)) as connection:
                (text,) = connection.execute(
                    "SELECT value FROM local WHERE name = ?", (LOCAL_MARK,)
                ).fetchone()
            assert RowMark.parse(text) == RowMark.of(rows[until or name.position])

    run_cluster(tmp_path, test)


def test_a_first_agent_after_a_loss_of_all_snapshots_replays_the_journal(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        await write(agent, 2)
        await archiver_of(agent).snapshot()
        assert keys(cluster, SNAPSHOTS_PREFIX)
        assert keys(cluster, JOURNAL_PREFIX)
        position = agent.order.position
        await agent.close(0)
        cluster.agents.clear()
        cluster.journal.come_back_older(position - 1)
        position, _ = await made_anew(cluster)
        assert position == cluster.journal.head

    run_cluster(tmp_path, test)


# -- what is noted, and kept until an operator closes it ---------------------------------------


def lost_of(agent: ClusterAgent, folder: Path | None = None) -> LostHistories:
    """An agent's part, as the app makes it."""
    cluster = agent.cluster
    return LostHistories(
        journal=agent.journal,
        archive=archive_of(cluster, f"lost{agent.agent_id}"),
        committer=agent.order,
        view=agent.log._view,
        queries=lambda: agent.queries,
        folder=folder or cluster.folder / f"agent{agent.agent_id}",
        scratch=cluster.folder / f"lostscratch{agent.agent_id}",
        executor=InlineExecutor(cluster.random),
    )


async def close_history(agent: ClusterAgent, history: int) -> None:
    position = agent.order.position
    command = CloseHistory(history=history, seen_position=position, give_up=True)
    assert await agent.log.commit([command]) == [Done()]


def test_the_archive_goes_on_after_the_lost_part_was_set_aside(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        archiver = archiver_of(agent)
        await write(agent, 3)
        await archiver.snapshot()
        for number in (2, 3):
            await (await cluster.agent(number)).close(0)
            cluster.agents.pop()
        await write(agent, 6)
        await archiver.snapshot()
        start = agent.order.position
        before = {key: data for key, (data, _) in cluster.store.objects.items()}
        lost_rows = cluster.journal.rows()[-LOST_ROWS:]
        await lose(cluster, start)
        survivor = cluster.agents[0]
        again = archiver_of(survivor, note_lost=lost_of(survivor).note)
        await again.snapshot()
        await (await cluster.agent(3)).close(0)
        cluster.agents.pop()
        (history,) = survivor.log._view.open_histories.values()
        assert (history.start, history.end) == (start - LOST_ROWS + 1, start)
        assert history.crc == RowMark.of(lost_rows[-1]).crc
        assert history.reason is LostReason.STRETCH
        archive = archive_of(cluster)
        # Nothing is gone: each lost object lies under another name, byte for byte.
        aside = {cluster.store.objects[name.key][0] for name in await archive.lost(1)}
        present = {key for key in cluster.store.objects if key.startswith("archive/")}
        gone = [key for key in before if key.startswith("archive/") and key not in present]
        assert gone
        assert {before[key] for key in gone} <= aside
        kept = [name for name in await archive.lost(1) if isinstance(name, StretchName)]
        rows = [row for name in kept for row in await archive.read_stretch(name)]
        assert set(lost_rows) <= set(rows)
        # The archive is whole again, of the present rows alone.
        await write(survivor, 3, topic="u")
        await again.snapshot()
        await replayed_from_rows(cluster, survivor)
        assert [row async for some in archive.rows(after=0, until=start) for row in some][
            -LOST_ROWS:
        ] != lost_rows
        assert await made_anew(cluster) == await true_state(survivor)
        # It happens again while the first is open.
        await (await cluster.agent(3)).close(0)
        cluster.agents.pop()
        position = cluster.journal.head
        await write(survivor, 4, topic="u")
        await passing(1)
        await again.run_once()
        end = again.archived_position
        await survivor.close(0)
        cluster.agents.clear()
        cluster.journal.come_back_older(position)
        third = await cluster.agent(3)
        await write(third, 12, topic="v")
        await archiver_of(third, note_lost=lost_of(third).note).snapshot()
        found = third.log._view.open_histories
        assert [(one.start > position, one.end) for one in found.values()] == [
            (False, start),
            (True, end),
        ]
        assert await archive.lost(2)
        assert await made_anew(cluster, "third") == await true_state(third)

    run_cluster(tmp_path, test)


def test_an_archiver_that_goes_on_past_the_loss_looks_again(tmp_path: Path) -> None:
    """Its own replica is older than what was lost, so that its order follows on."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        await write(agent, 3)
        two = await cluster.agent(2)
        two.pause_heartbeats()
        await write(agent, 3)
        archiver = archiver_of(two, note_lost=lost_of(two).note)
        await archiver_of(agent).snapshot()
        await two.catch_up()
        await archiver.snapshot()
        position = two.order.position
        agent.pause_heartbeats()
        two.journal.cut = True
        await write(agent, 5)
        other = archiver_of(agent)
        await passing(1)
        await other.run_once()
        archived = other.archived_position
        assert archived > position
        await agent.close(0)
        cluster.agents.remove(agent)
        cluster.journal.come_back_older(position + 1)
        two.journal.cut = False
        archiver.archived_position = archived  # as if it had looked before it was cut off
        archiver._known.mark = RowMark(archived, 0, 0)  # type: ignore[union-attr]
        await write(two, 9, topic="u")
        await passing(1)
        await archiver.run_once()
        assert list(two.log._view.open_histories) == [1]
        await archiver.snapshot()
        await replayed_from_rows(cluster, two)

    run_cluster(tmp_path, test)


def test_a_replica_of_the_lost_history_is_set_aside_noted_and_archived(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        await write(agent, 6)
        path = cluster.folder / "other" / "replica.sqlite"
        path.parent.mkdir()
        order = await open_order(cluster, path)
        state = order.digest()
        await order.close()
        position = state[0]
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
        assert state[1].hex().startswith(name.digest_hex)
        puts = len(cluster.store.puts)
        await lost.run_once()
        assert len(cluster.store.puts) == puts, "once is enough"
        assert find_aside(path.parent) == [aside]
        await close_history(survivor, 1)
        await lost.run_once()
        assert not find_aside(path.parent)

    run_cluster(tmp_path, test)


def test_replicas_that_are_set_aside_are_bounded(tmp_path: Path) -> None:
    for position in range(1, 7):
        path = tmp_path / "replica.sqlite"
        replica = Replica.open(path, LogMachine(), fsync=False, keeps_journal=False)
        for _ in range(position):
            replica.apply(b"", stamp_ms=1)
        replica.set_local(LOCAL_MARK, RowMark(position, 1, 5).text)
        replica.commit()
        replica.close()
        assert set_aside(path) is not None
    assert [one.mark.position for one in find_aside(tmp_path)] == [4, 5, 6]
    assert len(list(tmp_path.iterdir())) == 3


def test_objects_of_the_lost_history_are_kept_until_it_is_closed(tmp_path: Path) -> None:
    """To the state that is left they are orphans of an epoch that is over."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        (key,) = await agent.topic("t")
        await agent.append(key, b"common")
        position = agent.order.position
        known = {one for one in cluster.store.objects if one.startswith("segments/")}
        assert await agent.append(key, b"lost") == (BatchStatus.STORED, 1)
        lost_objects = {one for one in cluster.store.objects if one.startswith("segments/")} - known
        assert lost_objects
        path = cluster.folder / "agent1" / "replica.sqlite"
        await agent.close(0)
        cluster.agents.clear()
        assert set_aside(path) is not None
        cluster.journal.come_back_older(position)
        survivor = await cluster.agent(2)
        # An orphan that was condemned before the loss was noted is not deleted either.
        (early,) = await survivor.log.commit([CondemnObjects(keys=sorted(lost_objects))])
        assert early == Condemned(sorted(lost_objects))
        lost = lost_of(survivor, path.parent)
        await lost.run_once()
        # An agent that never comes back: fenced, so that its epochs are over.
        await survivor.log.commit(
            [Fence(agent=1, epoch=agent.order.epoch, seen_position=survivor.order.position)]
        )
        for _ in range(4):
            await passing(100)
            await survivor.log.keeper.run_once()
        assert lost_objects <= cluster.store.objects.keys()
        await close_history(survivor, 1)
        for _ in range(4):
            await passing(100)
            await survivor.log.keeper.run_once()
        assert not lost_objects & cluster.store.objects.keys()

    run_cluster(tmp_path, test)


def test_what_an_open_history_holds_back_is_condemned_once_it_is_closed(tmp_path: Path) -> None:
    """Apply leaves such keys out: an agent that gave them up, or counted their epoch as swept,
    would leave their objects to whoever walks the whole store."""

    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        await write(agent, 3)
        await archiver_of(agent).snapshot()
        await lose(cluster, agent.order.position)
        survivor = cluster.agents[0]
        gone = await cluster.agent(3)
        gone.pause_heartbeats()
        await survivor.catch_up()
        seen = survivor.order.position
        fence = Fence(agent=3, epoch=gone.order.epoch, seen_position=seen)
        assert await survivor.log.commit([fence]) == [Done()]
        await archiver_of(survivor, note_lost=lost_of(survivor).note).snapshot()
        assert survivor.log._view.open_histories
        keeper = survivor.log.keeper
        numbers = keeper._numbers
        number = numbers.begin()
        numbers.end(number, named=False)
        assert await keeper.condemn_failed() == 0
        for _ in range(3):
            await passing(100)
            assert await keeper.condemn_orphans() == 0
        assert not keeper._orphans._swept
        await close_history(survivor, 1)
        assert await keeper.condemn_failed() == 1
        for _ in range(3):
            await passing(100)
            await keeper.condemn_orphans()
        assert (3, gone.order.epoch) in keeper._orphans._swept

    run_cluster(tmp_path, test)


def test_a_wal_is_copied_before_it_is_opened_while_a_lost_history_is_open(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1, wal=True, durability="wal")
        (key,) = await agent.topic("t")
        await agent.append(key, b"common")
        position = agent.order.position
        assert await agent.append(key, b"of the lost history") == (BatchStatus.STORED, 1)
        folder = cluster.folder / "agent1"
        files = {
            path.name: path.read_bytes() for path in (folder / "wal").iterdir() if path.is_file()
        }
        await agent.close(0)
        cluster.agents.clear()
        assert set_aside(folder / "replica.sqlite") is not None
        cluster.journal.come_back_older(position)
        survivor = await cluster.agent(2)
        lost = lost_of(survivor, folder)
        await lost.prepare()
        (copied,) = folder.glob(f"{ASIDE_WAL}1-*/wal")
        found = {path.name: path.read_bytes() for path in copied.iterdir()}
        assert b"of the lost history" in b"".join(found.values())
        assert found.keys() == files.keys()
        await lost.run_once()
        assert copied.exists(), "while the history is open"
        await close_history(survivor, 1)
        await lost.run_once()
        assert not copied.exists()
        assert (folder / "wal").exists()

    run_cluster(tmp_path, test)


def test_what_is_archived_of_a_closed_history_goes_with_the_restore_window(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        await write(agent, 3)
        await archiver_of(agent).snapshot()
        await lose(cluster, agent.order.position)
        survivor = cluster.agents[0]
        lost = lost_of(survivor)
        archiver = archiver_of(
            survivor,
            settings=ArchiveSettings(keep_ms=60_000),
            note_lost=lost.note,
            drop_lost=lost.drop_archived,
        )
        await archiver.snapshot()
        await cluster.store.put("archive/lost/00000001/appended/t-0-1-0", [b"[]"])
        for _ in range(2):
            await passing(100)
            await archiver.snapshot()
        assert len(keys(cluster, "archive/lost/")) >= 3, "open, however old"
        await close_history(survivor, 1)
        await passing(30)
        await archiver.snapshot()
        assert len(keys(cluster, "archive/lost/")) >= 3
        await passing(100)
        await archiver.snapshot()
        assert not keys(cluster, "archive/lost/")

    run_cluster(tmp_path, test)
