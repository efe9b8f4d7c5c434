"""The face of a cluster: clients that move between agents, zones, and a journal that is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.kafka.context import ConnectionState
from penstock.kafka.errors import ErrorCode
from penstock.metadata.cluster_tables import group_shard
from penstock.metadata.commands import ClaimShard, DeleteTopic
from support.cluster_face import ClusterAgent, NoSink, World, in_world
from support.group_client import GroupClient, first_error

LAG_S = 0.7
LATEST = -1


async def list_offsets(agent: ClusterAgent, partitions: range, name: str = "flights") -> list[Any]:
    request = tuple(
        agent.part(
            "list_offsets",
            4,
            "ListOffsetsPartition",
            partition_index=index,
            current_leader_epoch=-1,
            timestamp=LATEST,
        )
        for index in partitions
    )
    topic = agent.part("list_offsets", 4, "ListOffsetsTopic", name=name, partitions=request)
    answer = await agent.call("list_offsets", 4, replica_id=-1, isolation_level=0, topics=(topic,))
    return [(one.error_code.value, one.offset) for one in answer.topics[0].partitions]


async def metadata(agent: ClusterAgent, *names: str, client_id: str = "client") -> Any:
    topics = tuple(
        agent.part("metadata", 9, "MetadataRequestTopic", name=name, topic_id=None)
        for name in names
    )
    return await agent.call(
        "metadata",
        9,
        client_id=client_id,
        topics=topics or None,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


async def topic_error(agent: ClusterAgent, name: str) -> int:
    return int((await metadata(agent, name)).topics[0].error_code.value)


# -- never back in time ------------------------------------------------------------------------


def test_ends_of_partitions_never_go_back_for_a_client_that_moves(tmp_path: Path) -> None:
    async def main(world: World) -> None:
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

    in_world(tmp_path, main)


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


def test_what_one_agent_has_created_another_does_not_deny(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        first, second = await world.cluster(1, 2)
        second.journal.lag_s = LAG_S
        for name, ask in ASKED.items():
            # Its next read begins behind the one that is under way, which finds nothing.
            await asyncio.sleep(LAG_S / 3)
            await first.topic(name)
            assert second.view.topic(name) is None, "it does not lag, so this shows nothing"
            errors = await ask(second, name)
            assert set(errors) == {0}, (ask.__name__, errors)

    in_world(tmp_path, main)


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


async def create(agent: ClusterAgent, name: str, **changes: Any) -> int:
    fields: dict[str, Any] = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": (),
        "configs": (),
    }
    topic = agent.part("create_topics", 4, "CreatableTopic", **(fields | changes))
    answer = await agent.call(
        "create_topics", 4, topics=(topic,), timeout=timedelta(seconds=9), validate_only=False
    )
    return int(answer.topics[0].error_code.value)


def test_a_name_that_another_agent_has_freed_is_free(tmp_path: Path) -> None:
    async def main(world: World) -> None:
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

    in_world(tmp_path, main)


def test_a_member_that_another_agent_knows_is_not_denied(tmp_path: Path) -> None:
    """By the former coordinator, which has not heard yet that it is none."""

    async def main(world: World) -> None:
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

    in_world(tmp_path, main)


# -- fetches -----------------------------------------------------------------------------------


async def fetch(
    agent: ClusterAgent,
    offset: int,
    *,
    name: str = "flights",
    rack: str = "",
    wait_ms: int = 0,
    client_id: str = "client",
    version: int = 11,
    session: tuple[int, int] = (0, -1),
) -> Any:
    fields: dict[str, Any] = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    partition = agent.part("fetch", version, "FetchPartition", **fields)
    topic = agent.part("fetch", version, "FetchTopic", topic=name, partitions=(partition,))
    answer = await agent.call(
        "fetch",
        version,
        client_id=client_id,
        replica_id=-1,
        max_wait=timedelta(milliseconds=wait_ms),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=(topic,),
        forgotten_topics_data=(),
        rack_id=rack,
    )
    (one,) = answer.responses[0].partitions
    return one


def test_an_offset_that_another_agent_has_told_is_not_out_of_range(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        first, second = await world.cluster(1, 2)
        second.journal.lag_s = LAG_S
        for round_ in range(1, 4):
            await asyncio.sleep(LAG_S / 3)
            topic = await first.topic(f"flights-{round_}")
            await first.produce(topic.name, 0, 10)
            # Neither the topic nor the offset is known there yet.
            assert second.view.topic(topic.name) is None
            found = await fetch(second, 10, name=topic.name)
            assert (found.error_code.value, found.high_watermark) == (0, 10)
            await asyncio.sleep(2)
            await first.produce(topic.name, 0, 10)
            found = await fetch(second, 15, name=topic.name)
            assert (found.error_code.value, found.high_watermark) == (0, 20)
            assert found.records
        beyond = await fetch(second, 99, name="flights-1")
        assert beyond.error_code.value == ErrorCode.OFFSET_OUT_OF_RANGE
        assert beyond.high_watermark == 20
        unknown = await fetch(second, 0, name="nothing")
        assert unknown.error_code.value == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_world(tmp_path, main)


def test_what_a_connection_remembers_is_not_held_against_a_new_topic(tmp_path: Path) -> None:
    """A consumer asks the same again and again, and where its partitions are is remembered."""

    async def main(world: World) -> None:
        first, second = await world.cluster(1, 2)
        second.connection = ConnectionState(1, NoSink())
        for _ in range(2):
            unknown = await fetch(second, 0)
            assert unknown.error_code.value == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        second.journal.lag_s = LAG_S
        await asyncio.sleep(LAG_S / 3)
        await first.topic("flights")
        assert second.view.topic("flights") is None
        assert (await fetch(second, 0)).error_code.value == 0

    in_world(tmp_path, main)


def test_a_fetch_that_waits_is_answered_by_what_comes(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        first, second = await world.cluster(1, 2)
        await first.topic("flights")
        second.journal.lag_s = LAG_S
        await first.produce("flights", 0, 5)
        # Past what the second agent knows: it waits there as at the end.
        waiting = asyncio.ensure_future(fetch(second, 5, wait_ms=20_000))
        await asyncio.sleep(3)
        assert not waiting.done()
        await first.produce("flights", 0, 5)
        found = await waiting
        assert found.error_code.value == 0
        assert found.records

    in_world(tmp_path, main)


def test_fetches_go_on_while_the_journal_is_away(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        first, second = await world.cluster(1, 2)
        await first.topic("flights")
        await first.produce("flights", 0, 5)
        await asyncio.sleep(1)
        world.journal.go_away()
        await asyncio.sleep(3)
        found = await fetch(second, 0)
        assert found.error_code.value == 0
        assert found.records
        beyond = await fetch(second, 50)
        assert (beyond.error_code.value, beyond.records or b"") == (0, b"")
        unknown = await fetch(second, 0, name="nothing")
        assert unknown.error_code.value == ErrorCode.NOT_LEADER_OR_FOLLOWER

    in_world(tmp_path, main)


def test_a_consumer_with_a_rack_is_sent_to_its_zone(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        agents = await zoned(world)
        await agents[0].produce("flights", 0, 5)
        await asyncio.sleep(1)
        for version in (11, 12):
            far = await fetch(agents[0], 0, rack="b", version=version)
            assert (far.error_code.value, far.preferred_read_replica) == (0, 3)
            assert (far.high_watermark, far.records or b"") == (5, b"")
        near = await fetch(agents[2], 0, rack="b")
        assert (near.error_code.value, near.preferred_read_replica) == (0, -1)
        assert near.records
        named = await fetch(agents[3], 0, client_id="penstock_zone=a")
        assert named.preferred_read_replica in (1, 2)
        # No agent there, no zone, or a version that does not know of it: it's served here.
        for found in (
            await fetch(agents[0], 0, rack="nowhere"),
            await fetch(agents[0], 0),
            await fetch(agents[0], 0, rack="b", version=10),
        ):
            assert getattr(found, "preferred_read_replica", -1) == -1
            assert found.records
        # Nor when the only one there is drained.
        await agents[0].on_node(agents[0].membership.drain(3))
        await asyncio.sleep(1)
        stays = await fetch(agents[0], 0, rack="b")
        assert stays.preferred_read_replica == -1
        assert stays.records

    in_world(tmp_path, main)


# -- the journal is away -----------------------------------------------------------------------


def test_while_the_journal_is_away_what_is_known_is_told_and_nothing_is_denied(
    tmp_path: Path,
) -> None:
    async def main(world: World) -> None:
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
        found = await agent.call("find_coordinator", 3, key="g", key_type=0)
        assert found.error_code.value == 0
        world.journal.come_back()
        await asyncio.sleep(1.5)
        assert await list_offsets(agent, range(1)) == [(0, 0)]
        assert await topic_error(agent, "nothing") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await client.committed() == 1

    in_world(tmp_path, main)


# -- zones and brokers -------------------------------------------------------------------------


async def zoned(world: World) -> list[ClusterAgent]:
    agents = [
        await world.agent(number, zone=zone)
        for number, zone in ((1, "a"), (2, "a"), (3, "b"), (4, ""))
    ]
    await world.until(lambda: all(len(agent.view.agents()) == 4 for agent in agents))
    await world.until(lambda: agents[0].view.feature_level == 2)
    await agents[0].topic("flights", 60)
    await asyncio.sleep(5)
    return agents


def leaders(answer: Any) -> Counter[int]:
    return Counter(one.leader_id for one in answer.topics[0].partitions)


def test_clients_are_shown_agents_of_their_zone_as_leaders(tmp_path: Path) -> None:
    async def main(world: World) -> None:
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

    in_world(tmp_path, main)


def test_leaders_move_only_with_agents_that_come_and_go(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        agents = await zoned(world)

        async def led() -> dict[int, int]:
            answer = await metadata(agents[0], "flights")
            return {one.partition_index: one.leader_id for one in answer.topics[0].partitions}

        before = await led()
        agents[1].kill()
        await world.until(
            lambda: all(not one.live for one in agents[0].view.agents() if one.agent_id == 2)
        )
        without = await led()
        assert 2 not in without.values()
        assert all(without[n] == leader for n, leader in before.items() if leader != 2)
        await world.agent(2, zone="a")
        await asyncio.sleep(1)
        assert await led() == before

    in_world(tmp_path, main)


def test_an_agent_that_is_drained_is_shown_and_leads_nothing(tmp_path: Path) -> None:
    async def main(world: World) -> None:
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

    in_world(tmp_path, main)


def test_sizes_of_partitions_are_told_once_in_the_whole_cluster(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        agents = await zoned(world)
        told: Counter[int] = Counter()
        for agent in agents:
            answer = await agent.call("describe_log_dirs", 1, topics=None)
            told.update(one.partition_index for one in answer.results[0].topics[0].partitions)
        assert told == dict.fromkeys(range(60), 1)

    in_world(tmp_path, main)


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
def test_topics_may_ask_for_as_many_replicas_as_there_are_brokers(
    tmp_path: Path, changes: dict[str, Any], error: ErrorCode
) -> None:
    async def main(world: World) -> None:
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

    in_world(tmp_path, main)


def test_a_coordinator_is_named_once_there_is_one(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        agents = await world.cluster(1, 2)
        client = GroupClient(world)
        owner_id = agents[0].view.shard_owner(group_shard("g"))
        owner = next(agent for agent in agents if agent.agent_id == owner_id)
        other = next(agent for agent in agents if agent is not owner)
        owner.kill()
        await world.until(lambda: other.view.shard_owner(group_shard("g")) is None)
        found = await other.call("find_coordinator", 3, key="g", key_type=0)
        assert found.error_code.value == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(0.5)
        assert await client.find() is other
        many = await other.call("find_coordinator", 4, key_type=0, coordinator_keys=("g", "h"))
        assert {one.node_id for one in many.coordinators} == {other.agent_id}

    in_world(tmp_path, main)
