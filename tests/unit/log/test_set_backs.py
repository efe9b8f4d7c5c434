"""A restore to a time, where journal time was ahead and was set back."""

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.log.point_in_time import Moment
from penstock.log.set_backs import last_set_back
from penstock.metadata.commands import SetJournalTime
from penstock.replica.archive_format import JOURNAL_PREFIX, MARKED_HEADER_BYTES
from support.archives import SETTINGS, archive_of, archiver_of, keys
from support.cluster_rig import BELIEVED_AFTER_MS, Cluster, ClusterAgent, passing, run_cluster
from support.restored_clusters import kill, restored
from unit.log.test_wrong_clocks import DAY_MS, AheadClock

NO_SNAPSHOTS = replace(SETTINGS, snapshot_interval_ms=10 * DAY_MS, snapshot_entries=100_000)


async def at_now(agent: ClusterAgent) -> tuple[int, int]:
    """Position and journal time, with no entry after it for a moment."""
    agent.pause_heartbeats()
    await agent.catch_up()
    return agent.order.position, agent.order.time_ms


def beat(agent: ClusterAgent) -> None:
    agent.beating = agent.cluster.loop.create_task(agent.cluster._beat(agent))


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_moments_after_a_setting_back_need_no_snapshot(
    tmp_path: Path, *, has_snapshot: bool
) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        archiver = archiver_of(agent, settings=NO_SNAPSHOTS)
        (key,) = await agent.topic("t")
        await agent.append(key, b"before")
        if has_snapshot:
            await archiver.snapshot()
        await passing(2)
        await agent.append(key, b"before, too")
        marks = [await at_now(agent)]
        real = cluster.journal.clock
        cluster.journal.clock = AheadClock(real, 30 * DAY_MS)
        agent.clock.skew_ms = 30 * DAY_MS
        beat(agent)
        await passing(5)
        await agent.append(key, b"ahead")
        ahead = agent.order.time_ms
        assert ahead > real.now_ms() + 29 * DAY_MS
        cluster.journal.clock = real
        agent.clock.skew_ms = 0
        await passing(BELIEVED_AFTER_MS / 1000 + 10)
        await agent.log.keeper.run_once()
        assert agent.order.time_ms < ahead
        for number in range(3):
            await agent.append(key, b"after %d" % number)
            marks.append(await at_now(agent))
            await archiver.run_once()
            beat(agent)
            await passing(2)
        await archiver.run_once()
        assert len(keys(cluster, "archive/snapshots/")) <= 1
        await kill(cluster)
        for number, (position, time_ms) in enumerate(marks):
            state = await restored(cluster, Moment(time_ms=time_ms), name=f"r{number}")
            assert (state.parent_position, state.time_ms) == (position, time_ms)
        # As of a time at which no clock ever was: all of it is older.
        state = await restored(cluster, Moment(time_ms=ahead), name="ahead")
        assert state.parent_position == state.archived_position

    run_cluster(tmp_path, test)


def test_a_command_that_lowered_nothing_moves_no_moment(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        archiver = archiver_of(agent, settings=NO_SNAPSHOTS)
        (key,) = await agent.topic("t")
        await archiver.snapshot()
        await agent.append(key, b"a")
        position, time_ms = await at_now(agent)
        await passing(2)
        await agent.append(key, b"b")
        await agent.order.commit([SetJournalTime(time_ms=time_ms, rows_max=1, begins=True)])
        assert agent.order.time_ms > time_ms
        end, _ = await at_now(agent)
        await passing(2)
        await archiver.run_once()
        archive = archive_of(cluster, "found")
        assert await last_set_back(archive, after=position, until=end, time_ms=time_ms) == end
        await kill(cluster)
        state = await restored(cluster, Moment(time_ms=time_ms))
        assert (state.parent_position, state.time_ms) == (position, time_ms)

    run_cluster(tmp_path, test)


def test_of_later_stretches_headers_alone_are_read(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        agent = await cluster.agent(1)
        archiver = archiver_of(agent, settings=NO_SNAPSHOTS)
        (key,) = await agent.topic("t")
        await agent.append(key, b"a")
        position, time_ms = await at_now(agent)
        beat(agent)
        await passing(20)
        for _ in range(20):
            await agent.append(key, b"b")
            await passing(2)
            await archiver.run_once()
        stretches = keys(cluster, JOURNAL_PREFIX)
        assert len(stretches) >= 20
        cluster.store.gets.clear()
        archive = archive_of(cluster, "found")
        end = agent.order.position
        assert await last_set_back(archive, after=position, until=end, time_ms=time_ms) is None
        whole = [key for key, start, _ in cluster.store.gets if start]
        assert len(set(whole)) <= 1, "the one with the moment in it"
        assert all(end <= MARKED_HEADER_BYTES for _, start, end in cluster.store.gets if not start)
        assert len(cluster.store.gets) <= len(stretches) + 2

    run_cluster(tmp_path, test)
