"""Groups of a cluster's agent whose disk has no room for its replica."""

import asyncio

import pytest

from penstock.groups.errors import GroupError
from penstock.groups.ownership import NotServedError
from penstock.model.errors import StorageFullError
from penstock.replica.transaction import Transaction
from penstock.state.command import OffsetWrite
from penstock.state.commands import DrainAgent
from support.cluster_face import ClusterAgent, World


class Disk:
    """Has room for replicas if it isn't full."""

    is_full = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    commit = Transaction.commit

    def commit_if_there_is_room(transaction: Transaction[object]) -> None:
        if disk.is_full:
            raise StorageFullError("commit", "replica.sqlite", "no space")
        commit(transaction)

    monkeypatch.setattr(Transaction, "commit", commit_if_there_is_room)
    return disk


async def test_a_committed_offset_does_not_go_back(world: World, disk: Disk) -> None:
    """It is in the journal, and answered; the replica's readers do not see it yet."""
    (agent,) = await world.cluster(1)
    topic = await agent.topic("flights")
    while agent.groups.refused("g") is not GroupError.NONE:
        await asyncio.sleep(0.1)
    await store(agent, topic.topic_id, 5)
    disk.is_full = True
    await store(agent, topic.topic_id, 9)
    with pytest.raises(NotServedError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        (await agent.groups.fetch_offsets("g"))
    disk.is_full = False
    while not agent.order.shows_answers:
        await asyncio.sleep(0.1)
    (found,) = (await agent.groups.fetch_offsets("g")).values()
    assert found.offset == 9


async def agent_and_newcomer(world: World, disk: Disk) -> tuple[ClusterAgent, ClusterAgent]:
    """An agent that has all shards, and one that has come as its disk was full."""
    (agent,) = await world.cluster(1)
    await asyncio.sleep(10)
    newcomer = await world.agent(2)
    disk.is_full = True
    return agent, newcomer


@pytest.mark.slow
async def test_shards_stay_with_a_live_agent_until_the_next_can_read_their_groups(
    world: World, disk: Disk
) -> None:
    agent, newcomer = await agent_and_newcomer(world, disk)
    await asyncio.sleep(10)
    assert not newcomer.order.shows_answers
    assert agent.shards_of(2) == 0
    disk.is_full = False
    await asyncio.sleep(10)
    assert agent.shards_of(2) > 10


@pytest.mark.slow
async def test_shards_of_a_drained_agent_are_claimed_by_one_that_cannot_read_their_groups(
    world: World, disk: Disk
) -> None:
    """Otherwise the drained agent could not end."""
    agent, newcomer = await agent_and_newcomer(world, disk)
    await asyncio.sleep(1)
    assert not newcomer.order.shows_answers
    await agent.on_node(agent.order.commit([DrainAgent(agent=1, draining=True)]))
    await asyncio.sleep(10)
    assert agent.shards_of(1) == 0


async def store(agent: ClusterAgent, topic_id: bytes, offset: int) -> None:
    write = OffsetWrite(topic_id=topic_id, partition=0, offset=offset)
    result = await agent.on_node(
        agent.groups.commit_offsets("g", [write], member_id="", instance_id=None, generation=-1)
    )
    assert (result.error, list(result.codes)) == (GroupError.NONE, [0])
