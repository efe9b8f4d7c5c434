"""Which agents clients are shown, and which of them as leaders and coordinators."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock.kafka.errors import ErrorCode
from penstock.state.cluster_tables import group_shard
from support.cluster_calls import create, leaders, list_offsets, metadata, zoned
from support.cluster_face import World
from support.group_client import GroupClient
from support.waiting import until


async def test_clients_are_shown_agents_of_their_zone_as_leaders(world: World) -> None:
    agents = await zoned(world)
    for agent in agents:
        answer = await metadata(agent, "flights", client_id="penstock_zone=a")
        assert {(one.node_id, one.host, one.port, one.rack) for one in answer.brokers} == {
            (1, "host1", 9092, "a"),
            (2, "host2", 9092, "a"),
            (3, "host3", 9092, "b"),
            (4, "host4", 9092, None),
        }
        assert set(leaders(answer)) == {1, 2}
        assert answer.controller_id in (1, 2)
        alone = await metadata(agent, "flights", client_id="app,penstock_zone=b")
        assert set(leaders(alone)) == {3}
        assert alone.controller_id == 3
        for client_id in ("app", "penstock_zone=nowhere"):
            spread = leaders(await metadata(agent, "flights", client_id=client_id))
            assert set(spread) == {1, 2, 3, 4}
            assert max(spread.values()) < 30
    # All topics, which are cached, and pages say the same as a topic by itself.
    one = await metadata(agents[0], "flights", client_id="penstock_zone=a")
    everything = await metadata(agents[1], client_id="penstock_zone=a")
    assert everything.topics == one.topics
    page = await agents[2].call(
        "describe_topic_partitions",
        0,
        client_id="penstock_zone=a",
        topics=(),
        response_partition_limit=100,
        cursor=None,
    )
    assert [one.leader_id for one in page.topics[0].partitions] == [
        partition.leader_id for partition in one.topics[0].partitions
    ]
    described = await agents[3].call(
        "describe_cluster", 0, include_cluster_authorized_operations=False
    )
    assert {broker.broker_id: broker.rack for broker in described.brokers} == {
        1: "a",
        2: "a",
        3: "b",
        4: None,
    }


async def test_leaders_move_only_with_agents_that_come_and_go(world: World) -> None:
    agents = await zoned(world)

    async def led() -> dict[int, int]:
        answer = await metadata(agents[0], "flights")
        return {one.partition_index: one.leader_id for one in answer.topics[0].partitions}

    before = await led()
    agents[1].kill()
    await until(lambda: all(not one.live for one in agents[0].view.agents() if one.agent_id == 2))
    without = await led()
    assert 2 not in without.values()
    assert all(without[n] == leader for n, leader in before.items() if leader != 2)
    await world.agent(2, zone="a")
    await asyncio.sleep(1)
    assert await led() == before


async def test_an_agent_that_is_drained_is_shown_and_leads_nothing(world: World) -> None:
    agents = await zoned(world)
    await agents[0].on_node(agents[0].membership.drain(3))
    await asyncio.sleep(1)
    answer = await metadata(agents[2], "flights", client_id="penstock_zone=b")
    assert len(answer.brokers) == 4
    assert set(leaders(answer)) == {1, 2, 4}
    # It answers as ever, administrators too.
    assert await create(agents[2], "more") == 0
    ((error, _),) = await list_offsets(agents[2], range(1))
    assert error == 0


async def test_sizes_of_partitions_are_told_once_in_the_whole_cluster(world: World) -> None:
    agents = await zoned(world)
    told: Counter[int] = Counter()
    for agent in agents:
        answer = await agent.call("describe_log_dirs", 1, topics=None)
        told.update(one.partition_index for one in answer.results[0].topics[0].partitions)
    assert told == dict.fromkeys(range(60), 1)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"replication_factor": 4}, ErrorCode.NONE),
        ({"replication_factor": 5}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"brokers": (3,)}, ErrorCode.NONE),
        ({"brokers": (3, 4)}, ErrorCode.NONE),
        ({"brokers": (5,)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"brokers": (3, 3)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_topics_may_ask_for_as_many_replicas_as_there_are_brokers(
    world: World, changes: dict[str, Any], error: ErrorCode
) -> None:
    agents = await zoned(world)
    fields = dict(changes)
    brokers = fields.pop("brokers", None)
    if brokers is not None:
        assignment = agents[0].part(
            "create_topics",
            4,
            "CreatableReplicaAssignment",
            partition_index=0,
            broker_ids=brokers,
        )
        fields = {"num_partitions": -1, "replication_factor": -1, "assignments": (assignment,)}
    assert await create(agents[1], "new", **fields) == error


async def test_a_coordinator_is_named_once_there_is_one(world: World) -> None:
    agents = await world.cluster(1, 2)
    client = GroupClient(world)
    owner_id = agents[0].view.shard_owner(group_shard("g"))
    owner = next(agent for agent in agents if agent.agent_id == owner_id)
    other = next(agent for agent in agents if agent is not owner)
    owner.kill()
    await until(lambda: other.view.shard_owner(group_shard("g")) is None)
    found = await other.call("find_coordinator", 3, key="g", key_type=0)
    assert found.error_code.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
    await asyncio.sleep(0.5)
    assert await client.find() is other
    many = await other.call("find_coordinator", 4, key_type=0, coordinator_keys=("g", "h"))
    assert {one.node_id for one in many.coordinators} == {other.agent_id}
