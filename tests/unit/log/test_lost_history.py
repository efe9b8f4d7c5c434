"""A journal that came back older and grew again: nobody stands on the history that it has lost."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.history.archived_loss import find_loss, first_unproven, set_loss_aside
from penstock.ports.journal import JournalRow
from penstock.replica.archive_format import (
    JOURNAL_PREFIX,
    SNAPSHOTS_PREFIX,
    StretchName,
)
from penstock.replica.bootstrap import bootstrap
from penstock.replica.marks import LOCAL_MARK, RowMark
from penstock.state.apply.machine import LogMachine
from penstock.state.rows import LostReason
from support.archives import archive_of, archiver_of, keys, state_of, true_state, write
from support.cluster_rig import Cluster, passing
from unit.log.lost_journals import LOST_ROWS, lose, lost_of
from unit.log.test_archive import replayed_from_rows


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


async def test_what_a_lost_stretch_has_in_common_with_the_journal_stays_in_the_archive(
    cluster: Cluster,
) -> None:
    """The journal may have trimmed these rows: then only that stretch holds them."""
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


@pytest.mark.slow
@pytest.mark.parametrize("marked", [True, False])
async def test_a_new_agent_does_not_begin_with_a_snapshot_of_the_lost_history(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, marked: bool
) -> None:
    """Without a mark (of an older release) the archived row tells the same."""
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
        assert await state_of(cluster, "late") == truth
    assert "of a history that the journal has lost" in caplog.text


@pytest.mark.slow
async def test_an_older_snapshot_of_both_histories_is_taken_instead(cluster: Cluster) -> None:
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
    truth = await true_state(cluster.agents[0])
    assert await state_of(cluster, "late") == truth


@pytest.mark.slow
async def test_archived_rows_of_the_lost_history_are_not_replayed(cluster: Cluster) -> None:
    """The journal's rows are trimmed into a stretch whose end it has lost."""
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    agent.pause_heartbeats()
    await write(agent, 3)
    await archiver.snapshot()
    start = agent.order.position
    await write(agent, 9)
    archive = archive_of(cluster)
    lost = cluster.journal.rows()[start:]
    await archive.put_stretch(lost)
    await lose(cluster, agent.order.position)
    end = cluster.journal.rows()[-1].position
    # The same positions in the history that is: shorter, so that the other is tried first.
    present = cluster.journal.rows()[start : lost[-1].position - 1]
    await archive.put_stretch(present)
    # Past the row where the histories part, so that rows of either could be replayed.
    cluster.journal.trim(lost[-1].position - 2)
    common = sum(row == other for row, other in zip(lost, present, strict=False))
    assert lost[0].position + common < cluster.journal.first <= lost[-1].position < end
    truth = await true_state(cluster.agents[0])
    assert await state_of(cluster, "late") == truth


async def test_a_replica_of_a_snapshot_goes_on_comparing(cluster: Cluster, tmp_path: Path) -> None:
    """Its mark is the snapshot's, and after a replay the last replayed row's."""
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


async def test_a_first_agent_after_a_loss_of_all_snapshots_replays_the_journal(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1)
    await write(agent, 2)
    await archiver_of(agent).snapshot()
    assert keys(cluster, SNAPSHOTS_PREFIX)
    assert keys(cluster, JOURNAL_PREFIX)
    position = agent.order.position
    await agent.close(0)
    cluster.agents.clear()
    cluster.journal.come_back_older(position - 1)
    position, _ = await state_of(cluster, "late")
    assert position == cluster.journal.head


@pytest.mark.slow
async def test_the_archive_goes_on_after_the_lost_part_was_set_aside(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    archiver = archiver_of(agent)
    agent.pause_heartbeats()
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
    assert await state_of(cluster, "late") == await true_state(survivor)
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
    assert await state_of(cluster, "third") == await true_state(third)


@pytest.mark.slow
async def test_an_archiver_that_goes_on_past_the_loss_looks_again(cluster: Cluster) -> None:
    """Its own replica is older than what was lost, so that its order follows on."""
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


@pytest.mark.slow
async def test_an_archiver_notes_a_loss_before_the_journal_has_grown_past_it(
    cluster: Cluster,
) -> None:
    """The last archived row is in the journal no more, and it was not trimmed."""
    agent = await cluster.agent(1)
    await write(agent, 3)
    two = await cluster.agent(2)
    two.pause_heartbeats()
    await two.catch_up()
    archiver = archiver_of(two, note_lost=lost_of(two).note)
    await archiver.snapshot()
    agent.pause_heartbeats()
    two.journal.cut = True
    await write(agent, 30)
    other = archiver_of(agent)
    await passing(1)
    await other.run_once()
    archived = other.archived_position
    await agent.close(0)
    cluster.agents.remove(agent)
    cluster.journal.come_back_older(two.order.position)
    two.journal.cut = False
    archiver.archived_position = archived  # as if it had looked before it was cut off
    archiver._known.mark = RowMark(archived, 0, 0)  # type: ignore[union-attr]
    await write(two, 1, topic="u")
    assert two.order.position < archived
    await passing(1)
    await archiver.run_once()
    assert list(two.log._view.open_histories) == [1]


async def test_what_is_not_known_to_be_common_begins_at_most_where_the_loss_ends(
    cluster: Cluster,
) -> None:
    """Also where the journal has trimmed all of it."""
    agent = await cluster.agent(1)
    await write(agent, 20)
    await agent.catch_up()
    journal, archive = agent.journal, archive_of(cluster)
    assert await first_unproven(journal, archive, 5) == 1
    await journal.trim(3)
    assert await first_unproven(journal, archive, 5) == 4
    await journal.trim(10)
    assert await first_unproven(journal, archive, 5) == 5
