"""Groups across agents: killed, stopped, drained, joined, cut off. On virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from penstock.groups.errors import GroupError
from penstock.model.errors import FencedError
from penstock.state.cluster_tables import GROUP_SHARDS, group_shard
from penstock.state.commands import ClaimShard
from support.cluster_face import ClusterAgent, World
from support.group_client import GroupClient
from support.waiting import until

STALE_S = 0.75


def owners(agent: ClusterAgent) -> Counter[int | None]:
    return Counter(agent.view.shard_owner(shard) for shard in range(GROUP_SHARDS))


def owner_of(world: World, group_id: str) -> ClusterAgent:
    """The living agent that owns a group's shard."""
    observer = next(one for one in world.agents if not one.dead and not one.node.paused)
    owner = observer.view.shard_owner(group_shard(group_id))
    return next(one for one in reversed(world.agents) if one.agent_id == owner)


async def member(world: World, group_id: str = "g", **options: float) -> GroupClient:
    client = GroupClient(world, group_id)
    await client.join(**options)
    return client


@pytest.mark.slow
async def test_every_shard_has_one_owner_and_all_agree(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(10)
    shares = owners(agents[0])
    assert set(shares) == {1, 2, 3}
    assert min(shares.values()) > 8
    assert all(owners(agent) == shares for agent in agents)
    held = sorted(shard for agent in agents for shard in agent.shards.owned())
    assert held == list(range(GROUP_SHARDS))


async def test_a_group_goes_on_where_its_killed_coordinator_left_it(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    client = await member(world)
    for offset in range(5):
        assert await client.commit(offset) == 0
    owner = owner_of(world, "g")
    generation, member_id = client.generation, client.member_id
    owner.kill()
    started_s = world.loop.time()
    # The member notices nothing but that it has to look for the coordinator.
    assert await client.heartbeat() == 0
    assert world.loop.time() - started_s < 4
    assert (client.generation, client.member_id) == (generation, member_id)
    assert client.owner is not owner
    assert await client.committed() == 4
    assert await client.commit(5) == 0
    assert await client.committed() == 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_a_stopped_coordinator_that_wakes_answers_for_nobody(world: World, seed: int) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    await agents[0].topic("other")
    client = await member(world)
    assert await client.commit(7) == 0
    owner = owner_of(world, "g")
    owner.pause()
    other = next(one for one in agents if one is not owner)
    await until(lambda: owner_of_as_seen(other, "g") not in (None, owner.agent_id), timeout_s=5)
    # A second member joins at the new owner: another generation, with another assignment.
    former = client.generation
    second = GroupClient(world)
    joining = asyncio.ensure_future(second.join())
    await asyncio.sleep(5)
    assert await client.heartbeat() == 27
    await asyncio.gather(client.join(), joining)
    assert client.generation == second.generation > former
    assert await client.commit(8) == 0
    owner.resume()
    # All at once, while it may still believe what it believed.
    late = GroupClient(world)
    late.member_id, late.generation = client.member_id, former
    answers = await asyncio.gather(
        late.heartbeat_at(owner),
        owner.call("offset_commit", 7, **late.commit_fields(1)),
        owner.call("offset_commit", 7, **client.commit_fields(2)),
        return_exceptions=True,
    )
    assert answers[0] in (15, 16), answers
    for answer in answers[1:]:
        assert answer.topics[0].partitions[0].error_code.value in (15, 16), answer
    assert await client.committed() == 8
    assert await client.heartbeat() == 0


@pytest.mark.slow
async def test_a_coordinator_that_lags_serves_no_longer_than_its_head_is_fresh(
    world: World,
) -> None:
    """It is alive and beats, and its rows come late: another has claimed its shard, it doesn't
    know, and what it would write is refused."""
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    client = await member(world)
    assert await client.commit(7) == 0
    owner = owner_of(world, "g")
    owner.journal.lag_s = 6.0
    other = next(one for one in agents if one is not owner)
    await other.on_node(other.membership.drain(owner.agent_id))
    await until(lambda: owner_of_as_seen(other, "g") is not owner.agent_id)
    cut_s = world.loop.time()
    stale = asyncio.ensure_future(owner.call("offset_commit", 7, **client.commit_fields(1)))
    answered: list[float] = []
    while world.loop.time() - cut_s < 5:
        if await client.heartbeat_at(owner) == 0:
            answered.append(world.loop.time() - cut_s)
        await asyncio.sleep(0.1)
    assert not answered or max(answered) < STALE_S
    refused = await stale
    assert refused.topics[0].partitions[0].error_code.value in (15, 16)
    owner.journal.lag_s = 0.0
    client.owner = None
    assert await client.committed() == 7


def owner_of_as_seen(agent: ClusterAgent, group_id: str) -> int | None:
    return agent.view.shard_owner(group_shard(group_id))


@pytest.mark.slow
async def test_what_waits_at_a_drained_coordinator_is_told_to_look_elsewhere(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    client = await member(world)
    assert await client.commit(3) == 0
    owner = owner_of(world, "g")
    # A second member's join waits for the first one to come back.
    second = GroupClient(world)
    joining = asyncio.ensure_future(second.join())
    await asyncio.sleep(1)
    waiting = owner.groups._memory.groups["g"].machine.roster.joined_count
    assert waiting == 1
    other = next(one for one in agents if one is not owner)
    await other.on_node(other.membership.drain(owner.agent_id))
    await until(lambda: other.shards_of(owner.agent_id) == 0, timeout_s=10)
    assert not owner.groups._memory.groups
    await asyncio.sleep(1)
    # At the new coordinator: the join began another rebalance there.
    assert await client.heartbeat() == 27
    await asyncio.gather(client.join(), joining)
    assert client.generation == second.generation
    assert await client.committed() == 3
    # It serves on, and says who coordinates instead of it.
    found = await owner.call("find_coordinator", 3, key="g", key_type=0)
    assert found.error_code.value == 0
    assert found.node_id == owner_of(world, "g").agent_id != owner.agent_id


@pytest.mark.slow
async def test_a_new_agent_gets_its_share_after_a_while_and_in_turns(world: World) -> None:
    agents = await world.cluster(1, 2)
    await asyncio.sleep(10)
    before = {shard: agents[0].view.shard_owner(shard) for shard in range(GROUP_SHARDS)}
    await world.agent(3)
    await asyncio.sleep(2)
    assert agents[0].shards_of(3) == 0
    most = 0
    shares = [0]
    for _ in range(100):
        await asyncio.sleep(0.1)
        shares.append(agents[0].shards_of(3))
        most = max(most, shares[-1] - shares[-2])
    assert 10 < shares[-1] < 35
    assert most <= 8
    after = {shard: agents[0].view.shard_owner(shard) for shard in range(GROUP_SHARDS)}
    assert all(after[shard] in (3, before[shard]) for shard in before)


async def test_an_agent_that_comes_and_goes_moves_nothing(world: World) -> None:
    """A supervisor that starts a failing agent over and over: nobody's groups follow it."""
    agents = await world.cluster(1, 2)
    await asyncio.sleep(10)
    before = [agents[0].view.shard_epoch(shard) for shard in range(GROUP_SHARDS)]
    for _ in range(4):
        flapping = await world.agent(3)
        await asyncio.sleep(2)
        flapping.kill()
        await asyncio.sleep(2.5)
    assert [agents[0].view.shard_epoch(shard) for shard in range(GROUP_SHARDS)] == before


async def test_a_restarted_agent_claims_anew_what_it_had(world: World) -> None:
    agents = await world.cluster(1, 2)
    await agents[0].topic("flights")
    client = await member(world)
    assert await client.commit(9) == 0
    owner = owner_of(world, "g")
    epoch = owner.view.shard_epoch(group_shard("g"))
    await owner.close()
    again = await world.agent(owner.agent_id)
    client.owner = None
    assert await client.heartbeat() == 0
    assert await client.committed() == 9
    await until(lambda: again.view.shard_epoch(group_shard("g")) > epoch)


async def test_an_agent_that_ends_in_order_hands_its_groups_over_first(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    client = await member(world)
    assert await client.commit(4) == 0
    owner = owner_of(world, "g")
    started_s = world.loop.time()
    leaving = owner.membership.leave(lambda: len(owner.shards.owned()), deadline_s=5)
    await owner.on_node(leaving)
    assert world.loop.time() - started_s < 2
    assert not owner.shards.owned()
    # There is somebody to go to before it is gone.
    assert await client.heartbeat() == 0
    await owner.close()
    assert await client.committed() == 4
    # The last one has nobody to hand over to, and does not wait.
    last = [agent for agent in agents if agent is not owner]
    last[0].kill()
    await asyncio.sleep(4)
    started_s = world.loop.time()
    await last[1].on_node(
        last[1].membership.leave(lambda: len(last[1].shards.owned()), deadline_s=5)
    )
    assert world.loop.time() - started_s < 0.1


@pytest.mark.slow
async def test_sessions_do_not_end_while_nobody_can_be_heard(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    client = await member(world, session_s=6.0)
    await asyncio.sleep(4)
    world.journal.go_away()
    await asyncio.sleep(60)
    answer = await client.heartbeat_at(owner_of(world, "g"))
    assert answer == 15
    world.journal.come_back()
    await asyncio.sleep(4)
    # Longer than its session ago, and not its fault.
    assert await client.heartbeat() == 0
    # But a member that stays silent is gone as ever.
    await asyncio.sleep(8)
    assert await client.heartbeat() == 25


async def after_an_outage(world: World) -> None:
    """The journal was away for longer than a session, and groups are served again."""
    world.journal.go_away()
    await asyncio.sleep(20)
    world.journal.come_back()
    owner = owner_of(world, "g")
    await until(lambda: owner.shards.error("g") is GroupError.NONE, timeout_s=5)


@pytest.mark.slow
async def test_clients_that_gave_their_membership_up_in_an_outage_go_on_at_once(
    world: World,
) -> None:
    """As librdkafka does after a session without an answer: it joins under another id. Nobody
    else knows that the former member is gone."""
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    # No shard moves any more.
    await asyncio.sleep(10)
    clients = [GroupClient(world), GroupClient(world)]
    await asyncio.gather(*(client.join(session_s=10.0) for client in clients))
    await after_an_outage(world)
    for client in clients:
        # A retry of what was on its way when the outage began.
        assert await client.commit(3) == 0
        client.member_id = ""
    began_s = world.loop.time()
    await asyncio.gather(*(client.join(session_s=10.0) for client in clients))
    assert world.loop.time() - began_s < 1
    # Both are in one generation, and nothing of before is left.
    assert [await client.heartbeat() for client in clients] == [0, 0]
    machine = owner_of(world, "g").groups._memory.groups["g"].machine
    assert {member.member_id for member in machine.roster} == {
        client.member_id for client in clients
    }


@pytest.mark.slow
async def test_a_newcomer_takes_no_place_of_a_member_that_was_heard_again(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    # No shard moves any more.
    await asyncio.sleep(10)
    heard, silent, newcomer = (GroupClient(world) for _ in range(3))
    await asyncio.gather(*(client.join(session_s=10.0) for client in (heard, silent)))
    await after_an_outage(world)
    assert await heard.heartbeat() == 0
    joining = asyncio.ensure_future(newcomer.join(session_s=10.0))
    await asyncio.sleep(0.5)
    assert await heard.heartbeat() == 27
    assert await silent.heartbeat() == 25
    await asyncio.gather(heard.join(session_s=10.0), joining)


@pytest.mark.slow
async def test_a_newcomer_of_another_client_id_takes_nobodys_place(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    # No shard moves any more.
    await asyncio.sleep(10)
    silent, newcomer = GroupClient(world), GroupClient(world)
    newcomer.client_id = "another"
    await silent.join(session_s=10.0)
    await after_an_outage(world)
    joining = asyncio.ensure_future(newcomer.join(session_s=10.0))
    await asyncio.sleep(1)
    assert not joining.done()
    assert await silent.heartbeat() == 27, "it is a member as ever"
    await asyncio.gather(silent.join(session_s=10.0), joining)


@pytest.mark.slow
async def test_a_member_that_dies_with_its_coordinator_is_missed_by_the_next(world: World) -> None:
    """Its session runs on without anybody asking for the group."""
    agents = await world.cluster(1, 2, 3)
    await member(world, session_s=6.0)
    owner_of(world, "g").kill()
    await asyncio.sleep(5)
    heir = owner_of(world, "g")
    assert len(heir.groups._memory.groups["g"].machine.roster) == 1
    await asyncio.sleep(10)
    row = heir.foundation.queries().group("g")
    assert row is not None
    assert row.empty_since_ms is not None
    assert len(agents) == 3


async def test_tools_see_each_group_once_and_delete_groups_of_many_shards(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    names = {f"group-{number}" for number in range(12)}
    for name in sorted(names):
        client = GroupClient(world, name)
        assert await client.commit(1) == 0
    listed: list[str] = []
    for agent in agents:
        answer = await agent.call("list_groups", 3)
        assert answer.error_code.value == 0
        listed += [group.group_id for group in answer.groups]
    assert sorted(listed) == sorted(names)
    deleted = 0
    for agent in agents:
        answer = await agent.call("delete_groups", 1, groups_names=tuple(sorted(names)))
        codes = Counter(result.error_code.value for result in answer.results)
        assert set(codes) <= {0, 16, 69}
        deleted += codes[0]
    assert deleted == len(names)
    for agent in agents:
        assert not (await agent.call("list_groups", 3)).groups
        (described,) = (await agent.call("describe_groups", 2, groups=("group-1",))).groups
        assert described.error_code.value in (0, 16)
        if described.error_code.value == 0:
            assert described.group_state == "Dead"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_no_committed_offset_is_lost_whatever_becomes_of_coordinators(
    world: World, seed: int
) -> None:
    random = world.journal.random
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    acked = {f"g{number}": -1 for number in range(6)}
    tried = dict(acked)
    ending = asyncio.Event()

    async def consume(group_id: str) -> None:
        client = GroupClient(world, group_id)
        while not ending.is_set():
            tried[group_id] += 1
            offset = tried[group_id]
            if await client.commit(offset, timeout_s=120) == 0:
                acked[group_id] = offset
            seen = await client.committed()
            assert acked[group_id] <= seen <= tried[group_id]
            await asyncio.sleep(random.below(400) / 1000)

    async def disturb() -> None:
        for _ in range(8):
            alive = [agent for agent in world.agents if not agent.dead]
            victim = alive[random.below(len(alive))]
            match random.below(5):
                case 0:
                    victim.kill()
                    await asyncio.sleep(random.below(4000) / 1000)
                    await world.agent(victim.agent_id)
                case 1:
                    victim.pause()
                    await asyncio.sleep(random.below(6000) / 1000)
                    victim.resume()
                    # A fence that was proposed meanwhile may still be under way.
                    await asyncio.sleep(4)
                case 2:
                    asker = next(one for one in alive if one is not victim)
                    # It may itself have been fenced since.
                    with contextlib.suppress(FencedError):
                        await asker.on_node(asker.membership.drain(victim.agent_id))
                        await asyncio.sleep(2)
                        back = asker.membership.drain(victim.agent_id, draining=False)
                        await asker.on_node(back)
                case 3:
                    world.journal.go_away()
                    await asyncio.sleep(random.below(5000) / 1000)
                    world.journal.come_back()
                case _:
                    victim.journal.lag_s = random.below(1500) / 1000
                    await asyncio.sleep(3)
                    victim.journal.lag_s = 0.0
            for agent in [one for one in world.agents if not one.dead]:
                if agent.fatal:
                    await agent.close()
                    await world.agent(agent.agent_id)
            await asyncio.sleep(random.below(3000) / 1000)

    consumers = [asyncio.ensure_future(consume(group_id)) for group_id in acked]
    await disturb()
    for agent in world.agents:
        agent.journal.lag_s = 0.0
    await asyncio.sleep(5)
    ending.set()
    await asyncio.gather(*consumers)
    assert all(offset > 5 for offset in acked.values()), acked


@pytest.mark.slow
async def test_an_agent_that_is_cut_off_names_no_coordinator(world: World) -> None:
    """Neither itself nor another: both may be another's by now. Clients ask another agent."""
    await world.cluster(1, 2, 3)
    await asyncio.sleep(10)
    client = await member(world)
    owner = owner_of(world, "g")
    theirs = next(
        name
        for name in map(str, range(100))
        if owner.view.shard_owner(group_shard(name)) != owner.agent_id
    )
    assert owner.shards.coordinator(theirs) is not None
    assert owner.shards.coordinator("g") == owner.agent_id
    owner.journal.lag_s = 30.0
    # Rows must come for it to lag behind the head.
    await asyncio.sleep(2)
    assert owner.shards.coordinator("g") is None
    assert owner.shards.coordinator(theirs) is None
    assert await client.heartbeat_at(owner) == 15


@pytest.mark.slow
async def test_an_agent_that_is_quiet_is_named_as_no_coordinator(world: World) -> None:
    """A client that is sent to one that is gone loses time with it."""
    agents = await world.cluster(1, 2, 3)
    await asyncio.sleep(10)
    owner = owner_of(world, "g")
    others = [agent for agent in agents if agent is not owner]
    assert all(other.shards.coordinator("g") == owner.agent_id for other in others)
    owner.kill()
    for other in others:
        await until(lambda other=other: bool(other.membership.quiet), timeout_s=1)
        assert owner_of_as_seen(other, "g") == owner.agent_id
        assert other.shards.coordinator("g") is None
    await until(
        lambda: others[0].shards.coordinator("g") not in (None, owner.agent_id), timeout_s=3
    )


@pytest.mark.slow
async def test_a_claim_without_an_answer_says_how_long_it_was_waited_for(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await world.cluster(1, 2)
    await until(lambda: len(second.shards.owned()) > 8)
    real = first.order.commit

    async def hang(commands: Any, **options: Any) -> Any:
        if any(isinstance(command, ClaimShard) for command in commands):
            await asyncio.sleep(60)
        return await real(commands, **options)

    first.order.commit = hang  # type: ignore[method-assign]
    await first.on_node(first.membership.drain(2))
    await until(lambda: "could not claim" in caplog.text, timeout_s=20)
    lines = [line for line in caplog.messages if "could not claim" in line]
    assert all(line.endswith(" shards of groups: no answer in 5 s") for line in lines)
