"""The keeper in a cluster: one proposes, nobody's live objects are touched, nothing named goes."""

import pytest

from penstock.model.errors import FencedError, RetryableError
from penstock.segment import object_key
from penstock.state.answers import BatchStatus, Done
from penstock.state.commands import Fence
from support.cluster_rig import Cluster, ClusterAgent, passing

STORED = BatchStatus.STORED
GRACE_S = 60


async def fence(by: ClusterAgent, victim: ClusterAgent) -> None:
    victim.pause_heartbeats()
    await passing(0.1)
    await by.catch_up()
    (answer,) = await by.log.commit(
        [Fence(agent=victim.agent_id, epoch=victim.order.epoch, seen_position=by.order.position)]
    )
    assert isinstance(answer, Done), answer


async def test_one_agent_keeps_and_another_does_when_it_is_gone(cluster: Cluster) -> None:
    agents = [await cluster.agent(number) for number in (1, 2, 3)]
    for agent in agents:
        await agent.catch_up()
    (keeper,) = [agent for agent in agents if agent.is_keeper()]
    others = [agent for agent in agents if agent is not keeper]
    await fence(others[0], keeper)
    await others[1].catch_up()
    assert len([agent for agent in others if agent.is_keeper()]) == 1


async def test_retention_by_count_is_what_one_agent_proposes_and_all_follow(
    cluster: Cluster,
) -> None:
    one, two = await cluster.agent(1), await cluster.agent(2)
    (key,) = await one.topic("t", penstock__retention__messages="4")
    for number in range(7):
        await one.append(key, b"%d" % number)
    await two.catch_up()
    await two.append(key, b"7")
    await one.catch_up()
    keeper = one if one.is_keeper() else two
    assert await keeper.log.keeper.trim_expired() == 1
    for agent in (one, two):
        await agent.catch_up()
        assert (agent.log.log_start(key), agent.log.high_watermark(key)) == (4, 8)


@pytest.mark.slow
async def test_what_a_live_agent_may_still_name_stays_and_its_failures_it_condemns_itself(
    cluster: Cluster,
) -> None:
    one, two = await cluster.agent(1), await cluster.agent(2)
    (key,) = await one.topic("t")
    store = cluster.store
    stalled = cluster.loop.create_future()

    async def stall(name: str) -> None:
        if name == store.puts[0]:
            await stalled

    store.after_put = stall
    answer = one.send((key, b"a"), timeout_ms=60_000)
    await passing(1)
    assert len(store.objects) == 1
    await passing(8)
    for agent in (one, two):
        assert await agent.log.keeper.condemn_orphans() == 0
    # It gives up after 10 s: nothing will name the object.
    with pytest.raises(RetryableError):
        await answer
    await passing(2 * GRACE_S)
    assert await two.log.keeper.condemn_orphans() == 0, "only its own agent knows"
    assert await one.log.keeper.condemn_failed() == 1
    await passing(GRACE_S + 1)
    assert await two.log.keeper.delete_condemned() == 1
    assert not store.objects


@pytest.mark.slow
async def test_an_object_of_a_fenced_agent_is_condemned_and_its_stalled_flush_never_commits(
    cluster: Cluster,
) -> None:
    one = await cluster.agent(1, append_wait_ms_max=1_000_000)
    two = await cluster.agent(2)
    (key,) = await one.topic("t")
    stalled = cluster.loop.create_future()

    async def stall(_: str) -> None:
        await stalled

    cluster.store.after_put = stall
    answer = one.send((key, b"a"), timeout_ms=1_000_000)
    await passing(1)
    cluster.store.after_put = None
    (name,) = cluster.store.objects
    await fence(two, one)
    assert await two.log.keeper.condemn_orphans() == 0, "younger than the grace"
    await passing(GRACE_S + 1)
    assert await two.log.keeper.condemn_orphans() == 1
    assert await two.log.keeper.delete_condemned() == 0, "condemned just now"
    await passing(GRACE_S + 1)
    assert await two.log.keeper.delete_condemned() == 1
    assert cluster.store.deleted == [name]
    stalled.set_result(None)
    with pytest.raises(FencedError):
        await answer
    assert await two.read_all(key) == []


async def test_a_condemned_key_cannot_be_committed_by_an_agent_that_is_live_either(
    cluster: Cluster,
) -> None:
    from penstock.state.commands import CondemnObjects

    one, two = await cluster.agent(1), await cluster.agent(2)
    (key,) = await one.topic("t")
    stalled = cluster.loop.create_future()

    async def stall(_: str) -> None:
        await stalled

    cluster.store.after_put = stall
    answer = one.send((key, b"a"), producer=(7, 0, 0))
    await passing(1)
    cluster.store.after_put = None
    (name,) = cluster.store.objects
    await two.log.commit([CondemnObjects(keys=[name])])
    stalled.set_result(None)
    with pytest.raises(RetryableError, match="OBJECT_CONDEMNED"):
        await answer
    assert await one.append(key, b"a", producer=(7, 0, 0)) == (STORED, 0)
    assert await two.read_all(key) == [(0, b"a")]


async def test_nothing_that_is_named_is_ever_deleted_whoever_proposes(cluster: Cluster) -> None:
    agents = [await cluster.agent(number, flush_interval_ms=10) for number in (1, 2)]
    (key,) = await agents[0].topic("t")
    await agents[1].catch_up()
    for number in range(6):
        await agents[number % 2].append(key, b"%d" % number)
    await agents[0].log.delete_records([(key, 3)])
    await passing(2 * GRACE_S)
    for agent in agents:  # both at once, whatever rendezvous hashing says
        await agent.log.keeper.condemn_unreferenced()
        await agent.log.keeper.condemn_orphans()
    await passing(GRACE_S + 1)
    for agent in agents:
        await agent.log.keeper.delete_condemned()
    assert len(cluster.store.objects) == 3
    for agent in agents:
        agent.forget_memory()
        assert [offset for offset, _ in await agent.read_all(key)] == [3, 4, 5]


@pytest.mark.slow
async def test_a_reader_outside_holds_deletion_back(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"a")
    held_ms = agent.order.time_ms
    keeper = agent.log.keeper
    keeper._held_since_ms = lambda: held_ms
    await agent.log.delete_records([(key, -1)])
    assert await keeper.condemn_unreferenced() == 1
    ((_, condemned_ms),) = agent.queries.deletable_objects(limit=10)
    await passing(3 * GRACE_S)
    assert await keeper.delete_condemned() == 0
    keeper._held_since_ms = lambda: condemned_ms
    assert await keeper.delete_condemned() == 0, "condemned at that very moment"
    keeper._held_since_ms = lambda: None
    assert await keeper.delete_condemned() == 1


async def test_a_clock_that_is_ahead_ends_no_grace(cluster: Cluster) -> None:
    agent = await cluster.agent(1)
    (key,) = await agent.topic("t")
    await agent.append(key, b"a")
    await agent.log.delete_records([(key, -1)])
    assert await agent.log.keeper.condemn_unreferenced() == 1
    agent.clock.skew_ms = 3_600_000
    assert await agent.log.keeper.delete_condemned() == 0


@pytest.mark.slow
async def test_keys_of_epochs_that_are_not_known_here_are_left_alone(cluster: Cluster) -> None:
    one, two = await cluster.agent(1), await cluster.agent(2)
    await one.catch_up()
    old = object_key(agent=2, epoch=two.order.epoch - 1, n=1)
    new = object_key(agent=2, epoch=two.order.epoch + 1, n=1)
    for name in (old, new):
        await cluster.store.put(name, [b"x"])
    await passing(GRACE_S + 1)
    assert await one.log.keeper.condemn_orphans() == 1
    await passing(GRACE_S + 1)
    await one.log.keeper.delete_condemned()
    assert list(cluster.store.objects) == [new]


@pytest.mark.slow
async def test_an_agent_leaves_its_own_flush_alone_however_long_that_takes(
    cluster: Cluster,
) -> None:
    agent = await cluster.agent(1, append_wait_ms_max=1_000_000)
    (key,) = await agent.topic("t")
    stalled = cluster.loop.create_future()

    async def stall(_: str) -> None:
        await stalled

    cluster.store.after_put = stall
    answer = agent.send((key, b"a"), timeout_ms=1_000_000)
    await passing(2 * GRACE_S)
    assert await agent.log.keeper.condemn_orphans() == 0
    stalled.set_result(None)
    assert (await answer)[0].status is STORED
