"""The face of a cluster: clients that move between agents, and a journal that is away."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.errors import ErrorCode
from penstock.state.cluster_tables import group_shard
from penstock.state.commands import ClaimShard, DeleteTopic
from support.cluster_calls import create, list_offsets, topic_error
from support.cluster_face import ClusterAgent, World
from support.group_client import GroupClient, first_error

LAG_S = 0.7


@pytest.mark.slow
async def test_ends_of_partitions_never_go_back_for_a_client_that_moves(world: World) -> None:
    agents = await world.cluster(1, 2, 3)
    await agents[0].topic("flights")
    agents[1].journal.lag_s = 0.3
    agents[2].journal.lag_s = LAG_S
    seen = 0
    for step in range(30):
        await agents[0].produce("flights", 0, 3)
        ((error, end),) = await list_offsets(agents[step % 3], range(1))
        assert error == 0
        assert end >= 3 * (step + 1)
        assert end >= seen
        seen = end
        epochs = await end_of_epoch(agents[(step + 1) % 3])
        assert epochs >= seen


async def end_of_epoch(agent: ClusterAgent) -> int:
    partition = agent.part(
        "offset_for_leader_epoch",
        3,
        "OffsetForLeaderPartition",
        partition=0,
        current_leader_epoch=-1,
        leader_epoch=0,
    )
    topic = agent.part(
        "offset_for_leader_epoch",
        3,
        "OffsetForLeaderTopic",
        topic="flights",
        partitions=(partition,),
    )
    answer = await agent.call("offset_for_leader_epoch", 3, replica_id=-1, topics=(topic,))
    (one,) = answer.topics[0].partitions
    assert one.error_code.value == 0
    return int(one.end_offset)


@pytest.mark.slow
async def test_what_one_agent_has_created_another_does_not_deny(world: World) -> None:
    first, second = await world.cluster(1, 2)
    second.journal.lag_s = LAG_S
    for name, ask in ASKED.items():
        # Its next read begins behind the one that is under way, which finds nothing.
        await asyncio.sleep(LAG_S / 3)
        await first.topic(name)
        assert second.view.topic(name) is None, "it does not lag, so this shows nothing"
        errors = await ask(second, name)
        assert set(errors) == {0}, (ask.__name__, errors)


async def _by_metadata(agent: ClusterAgent, name: str) -> list[int]:
    return [await topic_error(agent, name)]


async def _by_describe_configs(agent: ClusterAgent, name: str) -> list[int]:
    resource = agent.part(
        "describe_configs",
        2,
        "DescribeConfigsResource",
        resource_type=2,
        resource_name=name,
        configuration_keys=None,
    )
    answer = await agent.call("describe_configs", 2, resources=(resource,), include_synonyms=False)
    return [one.error_code.value for one in answer.results]


async def _by_create_partitions(agent: ClusterAgent, name: str) -> list[int]:
    topic = agent.part(
        "create_partitions", 2, "CreatePartitionsTopic", name=name, count=9, assignments=None
    )
    answer = await agent.call(
        "create_partitions",
        2,
        topics=(topic,),
        timeout=timedelta(seconds=9),
        validate_only=False,
    )
    return [one.error_code.value for one in answer.results]


async def _by_alter(agent: ClusterAgent, name: str) -> list[int]:
    config = agent.part(
        "incremental_alter_configs",
        1,
        "AlterableConfig",
        name="retention.ms",
        config_operation=0,
        value="1000",
    )
    resource = agent.part(
        "incremental_alter_configs",
        1,
        "AlterConfigsResource",
        resource_type=2,
        resource_name=name,
        configs=(config,),
    )
    answer = await agent.call(
        "incremental_alter_configs", 1, resources=(resource,), validate_only=False
    )
    return [one.error_code.value for one in answer.responses]


async def _by_delete_records(agent: ClusterAgent, name: str) -> list[int]:
    async def delete_records(items: Any) -> list[int]:
        return [0] * len(items)

    log: Any = agent.broker.log
    log.delete_records = delete_records
    partition = agent.part(
        "delete_records", 1, "DeleteRecordsPartition", partition_index=0, offset=0
    )
    topic = agent.part(
        "delete_records", 1, "DeleteRecordsTopic", name=name, partitions=(partition,)
    )
    answer = await agent.call("delete_records", 1, topics=(topic,), timeout=timedelta(seconds=9))
    return [one.error_code.value for one in answer.topics[0].partitions]


async def _by_describe_partitions(agent: ClusterAgent, name: str) -> list[int]:
    topic = agent.part("describe_topic_partitions", 0, "TopicRequest", name=name)
    answer = await agent.call(
        "describe_topic_partitions",
        0,
        topics=(topic,),
        response_partition_limit=10,
        cursor=None,
    )
    return [one.error_code.value for one in answer.topics]


async def _by_offset_commit(agent: ClusterAgent, name: str) -> list[int]:
    group_id = next(
        f"{name}-{number}"
        for number in range(1000)
        if agent.view.shard_owner(group_shard(f"{name}-{number}")) == agent.agent_id
    )
    client = GroupClient(agent.world, group_id, name)
    answer = await agent.call("offset_commit", 7, **client.commit_fields(1))
    return [one.error_code.value for one in answer.topics[0].partitions]


async def _by_delete_topics(agent: ClusterAgent, name: str) -> list[int]:
    answer = await agent.call("delete_topics", 4, topic_names=(name,), timeout=timedelta(seconds=9))
    return [one.error_code.value for one in answer.responses]


ASKED = {
    f"by{ask.__name__}": ask
    for ask in (
        _by_metadata,
        _by_describe_configs,
        _by_create_partitions,
        _by_alter,
        _by_delete_records,
        _by_describe_partitions,
        _by_offset_commit,
        _by_delete_topics,
    )
}


@pytest.mark.slow
async def test_a_name_that_another_agent_has_freed_is_free(world: World) -> None:
    first, second = await world.cluster(1, 2)
    topic = await first.topic("flights")
    await first.topic("a.b")
    await asyncio.sleep(1)
    assert await create(second, "flights") == ErrorCode.TOPIC_ALREADY_EXISTS
    second.journal.lag_s = LAG_S
    await first.commit(DeleteTopic(topic_id=topic.topic_id))
    assert second.view.topic("flights") is not None
    assert await create(second, "flights") == 0
    collides = first.view.topic("a.b")
    assert collides is not None
    await first.commit(DeleteTopic(topic_id=collides.topic_id))
    assert await create(second, "a_b") == 0


async def test_a_member_that_another_agent_knows_is_not_denied(world: World) -> None:
    """By the former coordinator, which has not heard yet that it is none."""
    former, other = await world.cluster(1, 2)
    await former.topic("flights")
    group_id = next(
        f"g{number}"
        for number in range(1000)
        if former.view.shard_owner(group_shard(f"g{number}")) == former.agent_id
    )
    former.journal.lag_s = 0.9
    await asyncio.sleep(0.1)
    # As its claim of what a drained agent has, but at once.
    shard = group_shard(group_id)
    claim = ClaimShard(shard=shard, shard_epoch=other.view.shard_epoch(shard))
    await other.commit(claim)
    client = GroupClient(world, group_id)
    client.owner = other
    await client.join()
    assert former.shards.epoch(group_id) is not None, "it has heard, so this shows nothing"
    assert former.groups.refused(group_id) == 0
    requests = [
        client.heartbeat_at(former),
        former.call("leave_group", 1, group_id=group_id, member_id=client.member_id),
        former.call("offset_commit", 7, **client.commit_fields(1)),
    ]
    told = [
        answer if isinstance(answer, int) else first_error(answer)
        for answer in await asyncio.gather(*requests)
    ]
    assert set(told) == {ErrorCode.NOT_COORDINATOR}
    assert await client.heartbeat() == 0


# -- the journal is away -----------------------------------------------------------------------


@pytest.mark.slow
async def test_while_the_journal_is_away_what_is_known_is_told_and_nothing_is_denied(
    world: World,
) -> None:
    agents = await world.cluster(1, 2)
    agent = agents[0]
    await agent.topic("flights")
    client = GroupClient(world)
    await client.join()
    assert await client.commit(1) == 0
    owner = client.owner
    assert owner is not None
    world.journal.go_away()
    await asyncio.sleep(5)
    assert await topic_error(agent, "flights") == 0
    assert await topic_error(agent, "nothing") == ErrorCode.LEADER_NOT_AVAILABLE
    assert await list_offsets(agent, range(2)) == [(ErrorCode.LEADER_NOT_AVAILABLE, -1)] * 2
    assert await _by_describe_configs(agent, "flights") == [0]
    assert await _by_describe_configs(agent, "nothing") == [ErrorCode.REQUEST_TIMED_OUT]
    assert await _by_delete_topics(agent, "nothing") == [ErrorCode.REQUEST_TIMED_OUT]
    assert await create(agent, "flights") == ErrorCode.REQUEST_TIMED_OUT
    assert await client.heartbeat_at(owner) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    listed = await owner.call("list_groups", 3)
    assert listed.error_code.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (described,) = (await owner.call("describe_groups", 2, groups=("g",))).groups
    assert described.error_code.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
    fetched = await owner.call("offset_fetch", 5, group_id="g", topics=None)
    assert fetched.error_code.value == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    # Clients ask others, which may have the journal.
    found = await agent.call("find_coordinator", 3, key="g", key_type=0)
    assert found.error_code.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.journal.come_back()
    await asyncio.sleep(1.5)
    assert await list_offsets(agent, range(1)) == [(0, 0)]
    assert await topic_error(agent, "nothing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await client.committed() == 1
