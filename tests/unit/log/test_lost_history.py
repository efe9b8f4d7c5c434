"""A journal that came back older and grew again: nobody stands on the history that it has lost."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.metadata.apply import LogMachine
from penstock.replica.archive_format import JOURNAL_PREFIX, SNAPSHOTS_PREFIX
from penstock.replica.bootstrap import bootstrap
from penstock.replica.marks import LOCAL_MARK, RowMark
from support.cluster_rig import Cluster, run_cluster
from unit.log.test_archive import archive_of, archiver_of, keys, open_order, true_state, write

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
