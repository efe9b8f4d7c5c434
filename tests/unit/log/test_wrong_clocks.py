"""A clock that is wrong for a while deletes nothing, and what it did to journal time heals."""

from pathlib import Path

import pytest

from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey
from penstock.ports.clock import Clock
from penstock.state.answers import Refusal, Refused
from penstock.state.commands import Heartbeat, SetJournalTime
from support.agent_ports import BELIEVED_AFTER_MS
from support.cluster_rig import Cluster, passing
from support.log_rig import NOW, Rig, run_rig
from support.simulated.clock import ManualClock

DAY_MS = 86_400_000


class AheadClock:
    """Another clock, this far ahead."""

    def __init__(self, real: Clock, ahead_ms: int) -> None:
        self._real = real
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return self._real.now_ms() + self._ahead_ms

    def monotonic_s(self) -> float:
        return self._real.monotonic_s()


async def test_a_jump_of_the_databases_clock_deletes_no_record(cluster: Cluster) -> None:
    """For 0.6 s, in which at least one row is stamped: too short for any guard to see."""
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    for number in range(5):
        await agent.append(key, b"v%d" % number)
    real = cluster.journal.clock
    cluster.journal.clock = AheadClock(real, 30 * DAY_MS)
    await passing(0.6)
    await agent.catch_up()
    assert agent.order.time_ms <= real.now_ms() + 5_000
    cluster.journal.clock = real
    await passing(5)
    assert await agent.log.keeper.trim_expired() == 0
    await agent.catch_up()
    assert (agent.log.log_start(key), agent.log.high_watermark(key)) == (0, 5)


async def test_an_embedded_clock_that_jumps_deletes_nothing_by_age(rig: Rig) -> None:
    (key,) = await rig.topic("t", retention_ms=str(7 * DAY_MS))
    await rig.append(key, b"a", producer=(1, 0, 0))
    await rig.drain()
    keeper = rig.log.keeper
    for off_ms in (30 * DAY_MS, -30 * DAY_MS, 0):
        rig.clock.set_wall(NOW + off_ms)
        await rig.append(key, b"b")
        assert await keeper.trim_expired() == 0
        assert await keeper.expire_producers() == 0
        assert await keeper.condemn_orphans() == 0
    assert rig.log.log_start(key) == 0
    # A clock that has stood is believed: what it says is old is old.
    rig.clock.set_wall(NOW + 30 * DAY_MS)
    assert await keeper.trim_expired() == 0
    rig.clock.advance(601)
    await rig.drain()
    assert await keeper.trim_expired() == 1


@pytest.mark.parametrize("limit", ["retention_bytes", "penstock_retention_messages"])
async def test_retention_by_size_and_count_goes_on_while_the_clock_is_in_doubt(
    rig: Rig, limit: str
) -> None:
    (key,) = await rig.topic("t", **{limit: "1"})
    await rig.append(key, b"a")
    await rig.append(key, b"b")
    rig.clock.set_wall(NOW + 30 * DAY_MS)
    assert rig.believed.believed_ms() is None
    assert await rig.log.keeper.trim_expired() == 1


def test_after_a_long_pause_nothing_is_deleted_before_the_clock_has_stood(tmp_path: Path) -> None:
    clock = ManualClock(now_ms=NOW)

    async def write(rig: Rig) -> None:
        (key,) = await rig.topic("t", retention_ms="1000")
        await rig.append(key, b"a")

    async def come_back(rig: Rig) -> None:
        key = PartitionKey(rig.queries().heads()[0][0])
        assert await rig.log.keeper.trim_expired() == 0
        # What is written in doubt is stamped by the later clock: nothing looks older than it is.
        await rig.append(key, b"b")
        assert rig.order.time_ms == NOW + 21 * DAY_MS
        clock.advance(601)
        assert await rig.log.keeper.trim_expired() == 1

    run_rig(tmp_path, write, clock=clock)
    clock.set_wall(NOW + 21 * DAY_MS)
    run_rig(tmp_path, come_back, clock=clock)


@pytest.mark.slow
async def test_a_skew_that_was_seen_is_not_forgotten_at_once(cluster: Cluster) -> None:
    """Between the database's clock and this host's: one of them is wrong, and may be again."""
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t", retention__ms="1000")
    await agent.append(key, b"a")
    real = cluster.journal.clock
    cluster.journal.clock = AheadClock(real, DAY_MS)
    await passing(3)
    assert agent.order.clock_skew_ms
    cluster.journal.clock = real
    await passing(3)
    assert not agent.order.clock_skew_ms
    assert await agent.log.keeper.trim_expired() == 0
    await passing(BELIEVED_AFTER_MS / 1000)
    assert await agent.log.keeper.trim_expired() == 1


async def test_an_entry_by_a_clock_ten_years_ahead_keeps_nothing_for_ten_years(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"a")
    await rig.drain()
    rig.clock.set_wall(NOW + 3_650 * DAY_MS)
    await rig.append(key, b"b")
    assert rig.journal.time_ms == NOW + 3_650 * DAY_MS
    rig.clock.set_wall(NOW)
    await rig.append(key, b"c")
    await rig.drain()
    await rig.log.delete_records([(key, -1)])
    assert await rig.log.keeper.condemn_unreferenced() == 2
    assert rig.journal.time_ms < NOW + 10_000
    assert await rig.log.keeper.delete_condemned() == 0, "the grace has just begun"
    rig.clock.advance(30 * 86_400)
    assert await rig.log.keeper.delete_condemned() == 2


async def test_times_that_a_believed_clock_put_ahead_come_down_with_journal_time(rig: Rig) -> None:
    """Ten years ahead for an hour: all clocks are wrong together, and what it left heals."""
    (key,) = await rig.topic("t")
    await rig.append(key, b"a", producer=(1, 0, 0))
    await rig.drain()
    rig.clock.set_wall(NOW + 3_650 * DAY_MS)
    rig.believed.look()
    rig.clock.advance(3_600)
    await rig.append(key, b"b", producer=(2, 0, 0))
    await rig.drain()
    await rig.log.delete_records([(key, -1)])
    assert await rig.log.keeper.condemn_unreferenced() == 2
    await rig.log.let_queries_find()
    assert all(row.condemned_ms > NOW + DAY_MS for row in rig.queries().objects("", 9))
    rig.clock.set_wall(NOW + 3_600_000)
    await rig.log.keeper.run_once()
    assert rig.journal.time_ms > NOW + DAY_MS, "the clock has just been set: it is in doubt"
    rig.clock.advance(601)
    await rig.log.keeper.run_once()
    await rig.log.let_queries_find()
    assert rig.journal.time_ms == rig.clock.now_ms()
    assert [row.condemned_ms for row in rig.queries().objects("", 9)] == [rig.journal.time_ms] * 2
    assert {seen for _, _, seen in rig.queries().producers_page((-1, -1), limit=9)} <= {
        NOW,
        rig.journal.time_ms,
    }
    rig.clock.advance(61)
    await rig.log.keeper.run_once()
    assert not rig.queries().objects("", 9)


def test_a_time_that_was_set_back_is_set_back_after_a_crash_too(tmp_path: Path) -> None:
    """What only WAL and journal files hold is applied again, with journal times for stamps."""
    clock = ManualClock(now_ms=NOW)
    left: list[tuple[int, int, bytes]] = []

    async def write(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        rig.clock.set_wall(NOW + 3_650 * DAY_MS)
        await rig.append(key, b"a", producer=(1, 0, 0))
        rig.clock.set_wall(NOW)
        await rig.log.keeper.run_once()
        await rig.append(key, b"b")
        left.append((rig.journal.position, rig.journal.time_ms, rig.journal.digest()[1]))
        assert rig.journal.time_ms == NOW

    async def look(rig: Rig) -> None:
        entries = {entry.position: entry.time_ms for entry in rig.journal.journal_after(0)}
        position, time_ms, _ = left[0]
        assert entries[position] == time_ms
        assert max(entries.values()) == NOW + 3_650 * DAY_MS
        assert rig.journal.time_ms == NOW
        (seen,) = (seen for _, _, seen in rig.queries().producers_page((-1, -1), limit=9))
        assert seen == NOW

    run_rig(tmp_path, write, clock=clock)
    for name in ("metadata.sqlite", "metadata.sqlite-wal", "metadata.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    run_rig(tmp_path, look, clock=clock)


@pytest.mark.slow
async def test_clocks_of_a_cluster_that_were_ahead_together_heal(cluster: Cluster) -> None:
    """The database's and all agents': journal time follows them, and comes back with them."""
    one, two = await cluster.agent(1), await cluster.agent(2)
    (key,) = await one.topic("t", retention__ms=str(7 * DAY_MS))
    await one.append(key, b"a")
    real = cluster.journal.clock
    cluster.journal.clock = AheadClock(real, 30 * DAY_MS)
    one.clock.skew_ms = two.clock.skew_ms = 30 * DAY_MS
    await passing(5)
    await one.append(key, b"b", producer=(1, 0, 0))
    assert one.order.time_ms > real.now_ms() + 29 * DAY_MS
    # In doubt, so that nothing goes by age: five of five would have gone.
    for agent in (one, two):
        assert await agent.log.keeper.trim_expired() == 0
    await one.log.delete_records([(key, 1)])
    assert await one.log.keeper.condemn_unreferenced() == 0
    cluster.journal.clock = real
    one.clock.skew_ms = two.clock.skew_ms = 0
    await passing(5)
    await one.append(key, b"c")
    assert one.order.time_ms > real.now_ms() + 29 * DAY_MS
    # They were apart while one was set and the other not: that is remembered for a while.
    await passing(BELIEVED_AFTER_MS / 1000 + 5)
    keepers = [agent.log.keeper for agent in (one, two)]
    for keeper in keepers:
        await keeper.run_once()
    for agent in (one, two):
        await agent.catch_up()
        assert abs(agent.order.time_ms - real.now_ms()) <= 5_000
        assert agent.log.keeper.time_setting.ahead_ms() <= 5_000
    producers = one.queries.producers_page((-1, -1), limit=9)
    assert all(seen <= one.order.time_ms for _, _, seen in producers)
    one.pause_heartbeats()
    two.pause_heartbeats()
    await passing(1)
    for agent in (one, two):
        await agent.catch_up()
    assert one.order.digest() == two.order.digest()
    assert [value for _, value in await two.read_all(key)] == [b"b", b"c"]


async def test_one_agents_clock_can_not_set_journal_time_back(cluster: Cluster) -> None:
    """Were its clock a day behind for so long that it believes it, the database's is not."""
    one = await cluster.agent(1)
    (key,) = await one.topic("t")
    await one.append(key, b"a")
    before = one.order.time_ms
    (answer,) = await one.order.commit(
        [SetJournalTime(time_ms=before - DAY_MS, rows_max=100, begins=True)]
    )
    assert isinstance(answer, Refused), answer
    assert answer.reason is Refusal.CLOCKS_DISAGREE
    assert one.order.time_ms >= before


async def test_an_agent_whose_clock_steps_back_refuses_writes_at_once(cluster: Cluster) -> None:
    """Its stamps go on by the believed clock; the machine is to be repaired all the same."""
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"a")
    agent.clock.skew_ms = -3_600_000
    await passing(3)
    assert -3_601_000 < agent.order.clock_skew_ms < -3_599_000
    with pytest.raises(RetryableError, match="behind the journal's"):
        await agent.order.commit([Heartbeat()])


async def test_a_setting_back_that_was_left_half_way_is_gone_on_with(rig: Rig) -> None:
    """The agent that began it ended: journal time is right by then, and times in rows are ahead."""
    (key,) = await rig.topic("t")
    rig.clock.set_wall(NOW + 3_650 * DAY_MS)
    for producer in range(1, 6):
        await rig.append(key, b"a", producer=(producer, 0, 0))
    rig.clock.set_wall(NOW)
    await rig.log.commit([SetJournalTime(time_ms=NOW, rows_max=2, begins=True)])
    await rig.log.let_queries_find()
    assert rig.log.keeper.time_setting.ahead_ms() == 0
    assert rig.queries().is_time_walked()
    assert await rig.log.keeper.time_setting.run_once() > 0
    await rig.log.let_queries_find()
    assert not rig.queries().is_time_walked()
    times = [row.last_timestamp for row in rig.queries().producers_of(key)]
    assert len(times) == 5
    assert max(times) <= NOW
