"""A replica's damage stays out of the archive: a snapshot must be what the archive gives anyway."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.snapshot_check import SnapshotCheck
from penstock.model.errors import CorruptDataError
from penstock.replica.archive_format import JOURNAL_PREFIX, SNAPSHOTS_PREFIX
from penstock.state.commands import SetFeatureLevel
from penstock.state.schema import INTEGRITY_LEVEL
from support.archives import archive_of, archiver_of, keys, state_of, true_state, write
from support.cluster_rig import Cluster, ClusterAgent
from support.simulated.inline_executor import InlineExecutor

FLIP = 'UPDATE topics SET configs = \'{"a":"b"}\''
UNFLIP = "UPDATE topics SET configs = '{}'"


def change(agent: ClusterAgent, sql: str) -> None:
    """What a disk does to a cell."""
    with closing(sqlite3.connect(agent.queries.path)) as connection, connection:
        connection.execute(sql)


async def begin(cluster: Cluster, level: int = INTEGRITY_LEVEL) -> ClusterAgent:
    agent = await cluster.agent(1)
    await agent.log.commit([SetFeatureLevel(level=level)])
    await write(agent)
    return agent


@pytest.mark.slow
async def test_a_damaged_replica_becomes_no_snapshot(cluster: Cluster) -> None:
    agent = await begin(cluster)
    asked: list[int] = []
    archiver = archiver_of(agent, ask_digest=lambda: asked.append(1))
    for _ in range(2):
        await archiver.snapshot()
        await write(agent)
    before, first = keys(cluster, SNAPSHOTS_PREFIX), cluster.journal.first
    change(agent, FLIP)
    for count in (1, 2):
        with pytest.raises(CorruptDataError, match="give another state in topics"):
            await archiver.snapshot()
        assert archiver.refused_count == len(asked) == count
    assert keys(cluster, SNAPSHOTS_PREFIX) == before
    assert cluster.journal.first == first
    # What a replica is made of is the state as it was, and goes on.
    change(agent, UNFLIP)
    assert await state_of(cluster, "new") == await true_state(agent)
    await archiver.snapshot()
    assert len(keys(cluster, SNAPSHOTS_PREFIX)) == len(before) + 1
    assert archiver.uncompared_count == 0


async def test_the_first_snapshot_is_compared_with_the_rows_alone(cluster: Cluster) -> None:
    agent = await begin(cluster)
    archiver = archiver_of(agent)
    change(agent, FLIP)
    with pytest.raises(CorruptDataError, match="no snapshot and the archived rows"):
        await archiver.snapshot()
    assert keys(cluster, SNAPSHOTS_PREFIX) == []


@pytest.mark.slow
async def test_where_the_agents_are_equal_the_archive_is_wrong(cluster: Cluster) -> None:
    agent = await begin(cluster)
    equal = [agent.order.position]
    archiver = archiver_of(agent, equal_position=lambda: equal[0])
    await archiver.snapshot()
    await write(agent)
    change(agent, FLIP)
    # A round before the difference says nothing of it.
    for _ in range(2):
        with pytest.raises(CorruptDataError):
            await archiver.snapshot()
    equal[0] = agent.order.position
    name = await archiver.snapshot()
    assert name.key in keys(cluster, SNAPSHOTS_PREFIX)
    await write(agent)
    await archiver.snapshot()
    assert archiver.refused_count == 2


async def test_where_no_rows_lead_there_the_snapshot_is_archived_and_counted(
    cluster: Cluster,
) -> None:
    agent = await begin(cluster)
    archiver = archiver_of(agent)
    await archiver.snapshot()
    await write(agent)
    agent.pause_heartbeats()
    await archiver.run_once()
    for key in keys(cluster, JOURNAL_PREFIX):
        del cluster.store.objects[key]
    name = await archiver.snapshot()
    assert name.key in keys(cluster, SNAPSHOTS_PREFIX)
    assert (archiver.uncompared_count, archiver.refused_count) == (1, 0)


async def test_below_the_level_of_digests_nothing_is_compared(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    await write(agent)
    with closing(sqlite3.connect(agent.queries.path)) as connection:
        (level,) = connection.execute(
            "SELECT max(value) FROM meta WHERE name = 'feature_level'"
        ).fetchone()
    archiver = archiver_of(agent)
    change(agent, FLIP)
    if (level or 0) < INTEGRITY_LEVEL:
        await archiver.snapshot()
    else:
        change(agent, "UPDATE meta SET value = 3 WHERE name = 'feature_level'")
        await archiver.snapshot()
    assert archiver.refused_count == archiver.uncompared_count == 0


@pytest.mark.slow
async def test_another_process_finds_the_same(cluster: Cluster, tmp_path: Path) -> None:
    agent = await begin(cluster)
    archiver = archiver_of(agent)
    await archiver.snapshot()
    await write(agent)
    apart = SnapshotCheck(
        journal=agent.journal,
        archive=archive_of(cluster),
        scratch=tmp_path / "apart",
        executor=InlineExecutor(cluster.random),
        apart_bytes=0,
    )
    found = []
    for sql in (UNFLIP, FLIP):
        change(agent, sql)
        path = tmp_path / "snapshot.sqlite"
        path.unlink(missing_ok=True)
        info = agent.order.snapshot(path)
        await archiver._archive_rows(await archiver._current(), until=info.position)
        compared = await apart.compare(path, info)
        assert compared is not None
        assert compared.base.startswith(SNAPSHOTS_PREFIX)
        found.append(compared.tables)
    assert found == [[], ["topics"]]
    assert list((tmp_path / "apart").iterdir()) == []
