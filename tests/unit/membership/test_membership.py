"""Beats, silence and fences on virtual time: who is declared dead, and who must not be."""

import asyncio
import logging

import pytest

from penstock.membership.membership import MembershipSettings
from penstock.model.errors import ConflictError, FencedError, InDoubtError, PenstockError
from penstock.state.answers import Done
from penstock.state.commands import DrainAgent, Fence, Noop
from penstock.state.rows import AgentStatus
from support.cluster_face import ClusterAgent, World
from support.slow import slow_unless
from support.waiting import until


def status(world: World, agent_id: int) -> AgentStatus:
    """As the first living agent sees it."""
    observer = next(one for one in world.agents if not one.dead and not one.node.paused)
    agent = observer.view.agent(agent_id)
    assert agent is not None
    return agent.status


async def test_idle_agents_beat_and_nobody_is_fenced(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    before = world.journal.head
    await asyncio.sleep(60)
    assert all(status(world, agent.agent_id) is AgentStatus.LIVE for agent in agents)
    beats = world.journal.head - before
    # Two a second each, and not many more.
    assert 300 < beats < 600


@pytest.mark.slow
async def test_an_agent_with_much_to_say_does_not_beat(world: World) -> None:
    (agent,) = await world.cluster(1)
    before = world.journal.head
    for _ in range(100):
        await agent.commit(Noop())
        await asyncio.sleep(0.2)
    assert world.journal.head - before <= 102


@pytest.mark.slow
async def test_a_killed_agent_is_fenced_soon_and_only_it(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(5)
    agents[1].kill()
    took_s = await until(lambda: status(world, 2) is AgentStatus.FENCED, timeout_s=3)
    # No sooner than its silence was too long.
    assert took_s > 1.0
    await asyncio.sleep(10)
    assert status(world, 1) is AgentStatus.LIVE
    assert status(world, 3) is AgentStatus.LIVE


@pytest.mark.slow
async def test_a_silent_agent_is_quiet_before_it_is_fenced_and_one_that_beats_never_is(
    world: World,
) -> None:
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(5)
    for _ in range(600):
        await asyncio.sleep(0.05)
        assert not any(agent.membership.quiet for agent in agents)
    agents[1].kill()
    others = (agents[0], agents[2])

    def are_told() -> bool:
        return all(agent.membership.quiet == {2} for agent in others)

    await until(are_told, timeout_s=1)
    assert status(world, 2) is AgentStatus.LIVE
    await until(lambda: status(world, 2) is AgentStatus.FENCED, timeout_s=3)
    await until(lambda: not any(agent.membership.quiet for agent in others), timeout_s=1)


@pytest.mark.slow
async def test_an_agent_that_says_that_it_is_alone_is_fenced_sooner_once_it_is_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(5)
    one, two, three = agents
    alone = {(2, two.order.epoch), (3, three.order.epoch - 1)}
    assert one.company.cut_off is not None
    monkeypatch.setattr(
        one.company.cut_off, "says_it_is_alone", lambda agent, epoch: (agent, epoch) in alone
    )
    # Its beats come, whatever it says: clients leave it, and it stays.
    await until(lambda: one.membership.quiet == {2}, timeout_s=1)
    await asyncio.sleep(10)
    assert [status(world, agent) for agent in (1, 2, 3)] == [AgentStatus.LIVE] * 3
    two.kill()
    three.kill()
    took_s = await until(lambda: status(world, 2) is AgentStatus.FENCED, timeout_s=3)
    assert took_s < 1.4
    # What was said of another epoch is not believed of this one.
    assert status(world, 3) is AgentStatus.LIVE
    await until(lambda: status(world, 3) is AgentStatus.FENCED, timeout_s=3)
    await until(lambda: not one.membership.quiet, timeout_s=1)


@pytest.mark.slow
async def test_a_paused_agent_is_fenced_by_the_journal_and_accuses_nobody_when_it_wakes(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    agents = await world.cluster(1, 2, 3)
    sleeper = agents[2]
    await asyncio.sleep(3)
    sleeper.pause()
    await asyncio.sleep(30)
    assert status(world, 3) is AgentStatus.FENCED
    head = world.journal.head
    sleeper.resume()
    await until(lambda: bool(sleeper.fatal), timeout_s=3)
    assert isinstance(sleeper.fatal[0], FencedError)
    await until(lambda: bool(sleeper.fenced), timeout_s=3)
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR], (
        "the end of the process says so, once"
    )
    await asyncio.sleep(10)
    assert status(world, 1) is AgentStatus.LIVE
    assert status(world, 2) is AgentStatus.LIVE
    assert head < world.journal.head


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.4, 0.7])
async def test_a_short_pause_costs_nobody_anything(world: World, pause_s: float) -> None:
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(2)
    for _ in range(10):
        agents[0].pause()
        await asyncio.sleep(pause_s)
        agents[0].resume()
        await asyncio.sleep(1)
    assert all(status(world, agent.agent_id) is AgentStatus.LIVE for agent in agents)


@pytest.mark.parametrize(
    ("away_s", "seed"),
    slow_unless(
        lambda away_s, seed: (away_s, seed) == (0.5, 10),
        [
            *((0.35, seed) for seed in (10, 12, 15, 17)),
            *((0.5, seed) for seed in (1, 3, 10, 17)),
            *((1.2, seed) for seed in (3, 4, 5)),
            (3.0, 6),
            (60.0, 7),
        ],
    ),
)
async def test_nobody_is_fenced_because_the_journal_was_away(
    world: World, away_s: float, seed: int
) -> None:
    agents = await world.cluster(1, 2, 3, 4)
    await asyncio.sleep(2 + seed * 0.137 % 1)
    for _ in range(3 if away_s < 60 else 1):
        world.journal.go_away()
        await asyncio.sleep(away_s)
        world.journal.come_back()
        await asyncio.sleep(8)
    assert all(status(world, agent.agent_id) is AgentStatus.LIVE for agent in agents)
    # And what is dead is still found.
    agents[3].kill()
    await until(lambda: status(world, 4) is AgentStatus.FENCED, timeout_s=3)


@pytest.mark.slow
async def test_an_agent_that_reconnects_later_than_others_is_not_accused_of_it(
    world: World,
) -> None:
    _, late = await world.cluster(1, 2)
    await asyncio.sleep(2)
    connected = asyncio.Event()
    append = late.journal._journal.append

    async def reconnecting(body: bytes) -> int:
        await connected.wait()
        return await append(body)

    late.journal.append = reconnecting
    world.journal.go_away()
    await asyncio.sleep(5)
    world.journal.come_back()
    await asyncio.sleep(3.5)
    connected.set()
    await asyncio.sleep(10)
    assert status(world, 2) is AgentStatus.LIVE


@pytest.mark.parametrize(("away_s", "timeout_ms"), [(0.7, 1_500), (1.1, 2_000), (6.0, 8_000)])
async def test_an_agent_that_reconnects_later_is_not_accused_after_an_outage_below_the_timeout(
    world: World, monkeypatch: pytest.MonkeyPatch, away_s: float, timeout_ms: int
) -> None:
    """It says that it is alone, which is true for as long as its pause goes on."""
    settings = MembershipSettings(agent_timeout_ms=timeout_ms)
    first, late = await world.cluster(1, 2, membership=settings)
    await asyncio.sleep(2)
    connected = asyncio.Event()
    append = late.journal._journal.append

    async def reconnecting(body: bytes) -> int:
        await connected.wait()
        return await append(body)

    assert first.company.cut_off is not None
    for _ in range(3):
        connected.clear()
        late.journal.append = reconnecting
        world.journal.go_away()
        await asyncio.sleep(away_s)
        monkeypatch.setattr(first.company.cut_off, "says_it_is_alone", lambda *_: True)
        world.journal.come_back()
        await asyncio.sleep(min(away_s, 1.0))
        connected.set()
        monkeypatch.undo()
        await asyncio.sleep(8)
        assert status(world, 2) is AgentStatus.LIVE
    late.kill()
    await until(lambda: status(world, 2) is AgentStatus.FENCED, timeout_s=timeout_ms / 1000 + 1)


@pytest.mark.slow
async def test_nobody_is_fenced_because_the_journal_took_no_entries(world: World) -> None:
    """It can be read all the time: silence is everybody's."""
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(2)
    gate = asyncio.Event()

    for agent in agents:
        append = agent.journal._journal.append

        async def held(body: bytes, append=append) -> int:
            await gate.wait()
            return await append(body)

        agent.journal.append = held
    await asyncio.sleep(20)
    gate.set()
    await asyncio.sleep(10)
    assert all(status(world, agent.agent_id) is AgentStatus.LIVE for agent in agents)


@pytest.mark.slow
async def test_an_agent_whose_clock_is_an_hour_off_harms_nobody(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(2)
    before_ms = agents[0].order.time_ms
    agents[2].clock.skew_ms = 3_600_000
    await asyncio.sleep(30)
    assert status(world, 1) is AgentStatus.LIVE
    assert status(world, 2) is AgentStatus.LIVE
    # It may not write, so that it is fenced in time; journal time went on as before.
    assert 0 < agents[0].order.time_ms - before_ms < 40_000


@pytest.mark.slow
async def test_two_that_propose_the_same_fence_end_one_epoch(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(2)
    agents[2].kill()
    await until(lambda: status(world, 3) is AgentStatus.FENCED)
    again = await world.agent(3)
    # A fence of the former epoch that comes late does not end the new one.
    for agent in agents[:2]:
        await agent.commit(Fence(agent=3, epoch=1, seen_position=1 << 40))
    await asyncio.sleep(5)
    assert status(world, 3) is AgentStatus.LIVE
    assert not again.fenced


@pytest.mark.slow
async def test_an_agent_learns_of_a_fence_without_saying_anything(world: World) -> None:
    """Proposed by hand, say: the view tells it before its next beat is refused."""
    quiet = MembershipSettings(heartbeat_ms=10_000, agent_timeout_ms=60_000)
    first, second = await world.cluster(1, 2, membership=quiet)
    # Until shards move no more: a beat or a claim in between would save it.
    await asyncio.sleep(15.5)
    position = first.view.last_position(2)
    fence = Fence(agent=2, epoch=second.order.epoch, seen_position=position)
    assert await first.commit(fence) == [Done()]
    await until(lambda: bool(second.fenced), timeout_s=5)
    assert isinstance(second.fenced[0], FencedError)
    await asyncio.sleep(20)
    assert len(second.fenced) == 1


@pytest.mark.slow
async def test_the_level_rises_when_all_know_it(world: World) -> None:
    old = await world.agent(1, level_max=1)
    new = await world.agent(2)
    await asyncio.sleep(20)
    assert new.view.feature_level == 1
    # Nobody is fenced before it: there are no beats yet either.
    assert status(world, 1) is AgentStatus.LIVE
    await old.close()
    upgraded = await world.agent(1)
    await until(lambda: new.view.feature_level == upgraded.view.feature_level == 2, timeout_s=10)


async def test_the_level_rises_when_the_one_whose_turn_it_is_is_dead(world: World) -> None:
    first = await world.agent(1)
    first.kill()
    second = await world.agent(2)
    await until(lambda: second.view.feature_level == 2, timeout_s=10)
    await until(lambda: status(world, 1) is AgentStatus.FENCED, timeout_s=10)


async def test_an_agent_is_drained_and_taken_back_and_removed(world: World) -> None:
    first, second = await world.cluster(1, 2)
    await first.on_node(first.membership.drain(2))
    assert status(world, 2) is AgentStatus.DRAINING
    await first.on_node(first.membership.drain(2, draining=False))
    assert status(world, 2) is AgentStatus.LIVE
    with pytest.raises(ConflictError, match="UNKNOWN_AGENT"):
        await first.on_node(first.membership.drain(9))
    with pytest.raises(ConflictError, match="AGENT_IS_ALIVE"):
        await first.on_node(first.membership.remove(2))
    second.kill()
    await until(lambda: status(world, 2) is AgentStatus.FENCED)
    await asyncio.sleep(1)
    assert first.membership.silent_s(2) == 0.0
    await first.on_node(first.membership.remove(2))
    assert [known.agent_id for known in first.view.agents()] == [1]


@pytest.mark.slow
async def test_an_agent_whose_replica_lags_is_not_taken_for_dead(world: World) -> None:
    agents = await world.cluster(1, 2)
    agents[1].journal.lag_s = 1.4
    await asyncio.sleep(30)
    assert status(world, 2) is AgentStatus.LIVE


async def test_a_beat_that_fails_is_followed_by_the_next(world: World) -> None:
    (agent,) = await world.cluster(1)
    real = agent.order.commit

    async def refuse(commands, **options):
        raise PenstockError("commit", "journal", "no")

    agent.order.commit = refuse
    await asyncio.sleep(2)
    agent.order.commit = real
    before = agent.view.last_position(1)
    await asyncio.sleep(2)
    assert agent.view.last_position(1) > before
    await agent.commit(DrainAgent(agent=1, draining=True))
    assert next(iter(agent.view.agents())).status is AgentStatus.DRAINING


async def end_in_order(agent: ClusterAgent) -> None:
    """As `ClusterParts` does at SIGTERM."""
    owned = agent.shards.owned
    await agent.membership.leave(lambda: len(owned()), deadline_s=5)
    await agent.membership.end(agent.order.end_epoch)
    with pytest.raises(InDoubtError, match="this agent is ending"):
        await agent.order.commit([Noop()])
    await agent.order.close()


@pytest.mark.slow
async def test_the_others_neither_wait_for_nor_warn_of_an_agent_that_ends_in_order(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        agents = await world.cluster(1, 2, 3, level_max=4)
        # Without the entries that raise the level and claim shards, which may still be out.
        await asyncio.sleep(5)
        ending, others = agents[1], (agents[0], agents[2])
        await ending.on_node(end_in_order(ending))
        await until(lambda: status(world, 2) is AgentStatus.FENCED, timeout_s=0.1)
        assert not any(agent.shards_of(2) for agent in others)
        for _ in range(200):
            await asyncio.sleep(0.05)
            assert not any(agent.membership.quiet for agent in others)
        assert status(world, 1) is status(world, 3) is AgentStatus.LIVE
        # It was not fenced by others, so that nothing ends its process.
        assert not ending.fenced
        assert not ending.fatal
    assert not [line for line in caplog.messages if "silent" in line or "fence" in line]


async def test_below_level_4_an_agent_that_ends_in_order_is_fenced_by_the_others(
    world: World,
) -> None:
    first, second = await world.cluster(1, 2)
    before = world.journal.head
    await second.on_node(second.membership.end(second.order.end_epoch))
    assert world.journal.head == before, "older releases would refuse it"
    await second.on_node(second.order.close())
    await until(lambda: status(world, 2) is AgentStatus.FENCED, timeout_s=3)
    assert first.membership.silent_s(2) >= 0


async def test_an_agent_that_ends_while_the_journal_is_away_says_so_and_ends(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        _, second = await world.cluster(1, 2, level_max=4)
        world.journal.go_away()
        began_s = world.loop.time()
        await second.on_node(second.membership.end(second.order.end_epoch))
        assert world.loop.time() - began_s < 3
        await second.on_node(second.order.close())
    assert "the others will find this agent silent: end epoch agent 2" in caplog.text
