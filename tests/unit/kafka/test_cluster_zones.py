"""Which agents clients are shown, and which of them as leaders and coordinators."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock.kafka.errors import ErrorCode
from penstock.state.cluster_tables import group_shard
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.cluster_calls import create, fetch, leaders, list_offsets, metadata, zoned
from support.cluster_face import World
from support.group_client import GroupClient
from support.waiting import until


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
async def test_sizes_of_partitions_are_told_once_in_the_whole_cluster(world: World) -> None:
    agents = await zoned(world)
    told: Counter[int] = Counter()
    for agent in agents:
        answer = await agent.call("describe_log_dirs", 1, topics=None)
        told.update(one.partition_index for one in answer.results[0].topics[0].partitions)
    assert told == dict.fromkeys(range(60), 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"replication_factor": 4}, ErrorCode.NONE),
        ({"replication_factor": 16}, ErrorCode.NONE),
        ({"replication_factor": 17}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"brokers": (3,)}, ErrorCode.NONE),
        ({"brokers": (3, 4)}, ErrorCode.NONE),
        ({"brokers": (5,)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"brokers": (3, 3)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_topics_may_ask_for_some_replicas_whatever_the_number_of_brokers(
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


@pytest.mark.slow
@pytest.mark.parametrize("factor", [-1, 1, 2, 3, 6])
async def test_replicas_are_the_same_wherever_a_client_asks(world: World, factor: int) -> None:
    agents = await zoned(world, level_max=FEATURE_LEVEL_MAX)
    assert await create(agents[0], "new", num_partitions=40, replication_factor=factor) == 0
    await asyncio.sleep(1)
    count = 3 if factor == -1 else factor
    for client_id in ("app", "penstock_zone=a", "penstock_zone=b"):
        answer = await metadata(agents[1], "new", client_id=client_id)
        rows = [tuple(one.replica_nodes) for one in answer.topics[0].partitions]
        assert {len(row) for row in rows} == {count}
        for one in answer.topics[0].partitions:
            assert one.leader_id == one.replica_nodes[0]
            assert one.isr_nodes == one.replica_nodes
            assert len(set(one.replica_nodes)) == min(count, 4)
        page = await agents[2].call(
            "describe_topic_partitions",
            0,
            client_id=client_id,
            topics=(agents[2].part("describe_topic_partitions", 0, "TopicRequest", name="new"),),
            response_partition_limit=100,
            cursor=None,
        )
        assert [tuple(one.replica_nodes) for one in page.topics[0].partitions] == rows
        # A fetch sends clients to an agent of their zone where Metadata names one.
        for number, row in enumerate(rows[:10]):
            near = row[0] if client_id == "penstock_zone=a" else 3
            sent = await fetch(
                agents[3], 0, name="new", number=number, rack="b", client_id=client_id
            )
            assert sent.preferred_read_replica == (near if near in row else -1), row
    configs = await agents[0].call(
        "describe_configs",
        2,
        resources=(
            agents[0].part(
                "describe_configs",
                2,
                "DescribeConfigsResource",
                resource_type=4,
                resource_name="1",
                configuration_keys=("default.replication.factor",),
            ),
        ),
        include_synonyms=False,
    )
    (default,) = configs.results[0].configs
    assert default.value == "3"


@pytest.mark.slow
async def test_a_topic_that_wants_more_in_sync_replicas_looks_healthy(world: World) -> None:
    agents = await zoned(world, level_max=FEATURE_LEVEL_MAX)
    config = agents[0].part(
        "create_topics", 4, "CreatableTopicConfig", name="min.insync.replicas", value="2"
    )
    assert await create(agents[0], "safe", configs=(config,)) == 0
    await asyncio.sleep(1)
    answer = await metadata(agents[1], "safe")
    for one in answer.topics[0].partitions:
        assert tuple(one.isr_nodes) == tuple(one.replica_nodes) * 2


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
