"""Administration by each client: what it makes, changes and deletes is what it then reads back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from support.adapters import ADAPTERS
from support.member import Member
from support.records import NewRecord
from support.waiting import eventually

BASE_MS = 1_700_000_000_000


def fill(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    """Write count records to one partition."""
    records = [NewRecord(partition, b"k", b"v", BASE_MS + i) for i in range(count)]
    ADAPTERS[0].write(bootstrap, topic, records)


def test_confluent_kafka_administers(bootstrap: str, name: Callable[[str], str]) -> None:
    """Topics and configs by confluent-kafka's AdminClient."""
    from confluent_kafka import TopicCollection, TopicPartition
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
    )

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = name("admin")
    configs = {"retention.ms": "3600000", "cleanup.policy": "compact"}
    admin.create_topics([NewTopic(topic, 3, 1, config=configs)])[topic].result(60)
    resource = ConfigResource("topic", topic)

    def described() -> dict[str, str]:
        entries = admin.describe_configs([resource])[resource].result(60)
        return {key: entry.value for key, entry in entries.items()}

    assert described()["retention.ms"] == "3600000"
    assert described()["cleanup.policy"] == "compact"
    assert described()["max.message.bytes"] == "1048588"

    changes = [
        ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.APPEND),
    ]
    altered = ConfigResource("topic", topic, incremental_configs=changes)
    admin.incremental_alter_configs([altered])[altered].result(60)
    eventually(lambda: described()["retention.ms"], lambda now: now == "7200000")
    assert set(described()["cleanup.policy"].split(",")) == {"compact", "delete"}
    back = ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE)
    altered = ConfigResource("topic", topic, incremental_configs=[back])
    admin.incremental_alter_configs([altered])[altered].result(60)
    eventually(lambda: described()["retention.ms"], lambda now: now == "604800000")

    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(60)
    eventually(
        lambda: len(admin.list_topics(topic, timeout=60).topics[topic].partitions), lambda n: n == 5
    )
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(60)
    assert [p.id for p in found.partitions] == [0, 1, 2, 3, 4]
    assert len(str(found.topic_id)) == 22

    fill(bootstrap, topic, 10, partition=4)
    place = TopicPartition(topic, 4, 4)
    assert admin.delete_records([place])[place].result(60).low_watermark == 4

    cluster = admin.describe_cluster().result(60)
    assert cluster.cluster_id
    assert [node.id for node in cluster.nodes] == [cluster.controller.id]

    admin.delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics)


def test_confluent_kafka_administers_groups(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str]
) -> None:
    """Groups are listed and described with their members; offsets are reset once they left."""
    from confluent_kafka import (
        ConsumerGroupState,
        ConsumerGroupTopicPartitions,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic, group = new_topic(2), name("group")
    fill(bootstrap, topic, 6)

    def listed() -> dict[str, ConsumerGroupState]:
        return {g.group_id: g.state for g in admin.list_consumer_groups().result(60).valid}

    with Member("confluent-kafka", bootstrap, group, topic) as member:
        member.wait_assigned(2)
        eventually(lambda: member.committed.get(0), lambda n: n == 6)
        described = admin.describe_consumer_groups([group])[group].result(60)
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        assert len(described.members) == 1
        held = described.members[0].assignment.topic_partitions
        assert sorted(p.partition for p in held) == [0, 1]
        assert described.members[0].client_id == "rdkafka"
        assert listed()[group] == ConsumerGroupState.STABLE
        member.leave()
    assert listed()[group] == ConsumerGroupState.EMPTY

    def committed() -> dict[int, int]:
        asked = [ConsumerGroupTopicPartitions(group)]
        found = admin.list_consumer_group_offsets(asked)[group].result(60)
        return {p.partition: p.offset for p in found.topic_partitions}

    assert committed()[0] == 6
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 2)])
    moved = admin.alter_consumer_group_offsets([wanted])[group].result(60)
    assert moved.topic_partitions[0].error is None
    assert committed()[0] == 2
    with Member("confluent-kafka", bootstrap, group, topic) as member:
        eventually(lambda: len(member.read), lambda n: n == 4)
        member.leave()
    assert [offset for _, offset, _ in member.read] == [2, 3, 4, 5]
    admin.delete_consumer_groups([group])[group].result(60)
    assert group not in listed()


async def test_aiokafka_administers(bootstrap: str, name: Callable[[str], str]) -> None:
    """Topics, configs, records and groups by aiokafka's admin client, which speaks old versions."""
    from aiokafka import TopicPartition
    from aiokafka.admin import (
        AIOKafkaAdminClient,
        NewPartitions,
        NewTopic,
        RecordsToDelete,
    )
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        topic = name("admin")
        made = await admin.create_topics(
            [NewTopic(topic, 2, 1, topic_configs={"retention.ms": "3600000"})]
        )
        assert [error for _, error, *_ in made.topic_errors] == [0]
        assert topic in await admin.list_topics()
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 2

        async def config() -> dict[str, str]:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            (answer,) = await admin.describe_configs([resource])
            return {entry[0]: entry[1] for entry in answer.resources[0][4]}

        assert (await config())["retention.ms"] == "3600000"
        # The old AlterConfigs sets what is named and resets all else to the defaults.
        change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"segment.ms": "100000"})
        await admin.alter_configs([change])
        async with asyncio.timeout(60):
            # Kafka answers before its broker has heard of the change.
            while (changed := await config())["segment.ms"] != "100000":
                await asyncio.sleep(0.05)
        assert changed["retention.ms"] == "604800000"

        await admin.create_partitions({topic: NewPartitions(4)})
        (described,) = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 4

        await asyncio.to_thread(fill, bootstrap, topic, 10)
        place = TopicPartition(topic, 0)
        assert await admin.delete_records({place: RecordsToDelete(7)}) == {place: 7}

        group = name("group")
        with Member("aiokafka", bootstrap, group, topic) as member:
            await asyncio.to_thread(member.wait_assigned, 4)
            await asyncio.to_thread(eventually, lambda: member.committed.get(0), lambda n: n == 10)
            (groups,) = await admin.describe_consumer_groups([group])
            error, group_id, state, protocol_type, _, members, *_ = groups.groups[0]
            assert (error, group_id, state) == (0, group, "Stable")
            assert protocol_type == "consumer"
            assert len(members) == 1
            await asyncio.to_thread(member.leave)
        assert (group, "consumer") in [g[:2] for g in await admin.list_consumer_groups()]
        offsets = await admin.list_consumer_group_offsets(group)
        assert offsets[place].offset == 10
        gone = await admin.delete_topics([topic])
        assert [error for _, error in gone.topic_error_codes] == [0]
    finally:
        await admin.close()


def test_kafka_python_administers(bootstrap: str, name: Callable[[str], str]) -> None:
    """Topics, configs and partitions by kafka-python's admin client."""
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        topic = name("admin")
        wanted = {"num_partitions": 2, "replication_factor": 1}
        admin.create_topics(
            {topic: {**wanted, "configs": {"retention.ms": "3600000"}}}, wait_for_metadata=True
        )
        assert topic in admin.list_topics()
        (described,) = admin.describe_topics([topic])
        assert [p["partition_index"] for p in described["partitions"]] == [0, 1]

        def modified() -> dict[str, str]:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            found = admin.describe_configs([resource])["topic"][topic]
            return {key: entry["value"] for key, entry in found.items()}

        assert modified()["retention.ms"] == "3600000"
        change = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000000"})
        assert admin.alter_configs([change])["topic"][topic] == "OK"
        eventually(lambda: modified().get("max.message.bytes"), lambda now: now == "2000000")
        assert modified()["retention.ms"] == "3600000"
        reset = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None})
        assert admin.reset_configs([reset])["topic"][topic] == "OK"
        eventually(lambda: "retention.ms" not in modified())

        admin.create_partitions({topic: 3})
        (described,) = admin.describe_topics([topic])
        assert len(described["partitions"]) == 3

        fill(bootstrap, topic, 9)
        place = TopicPartition(topic, 0)
        assert admin.delete_records({place: 5})[place]["low_watermark"] == 5
        assert admin.list_partition_offsets({place: OffsetSpec.EARLIEST})[place].offset == 5
        assert admin.list_partition_offsets({place: OffsetSpec.LATEST})[place].offset == 9

        described_cluster = admin.describe_cluster()
        assert len(described_cluster["brokers"]) == 1
        log_dirs = admin.describe_log_dirs()
        assert log_dirs
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics())
    finally:
        admin.close()


def test_kafka_python_administers_groups(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str]
) -> None:
    """Groups: described, offsets reset by place and by kind, deleted one by one and whole."""
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient, OffsetSpec

    topic, group = new_topic(2), name("group")
    fill(bootstrap, topic, 6)
    fill(bootstrap, topic, 4, partition=1)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        with Member("kafka-python", bootstrap, group, topic) as member:
            member.wait_assigned(2)
            eventually(lambda: member.committed, lambda done: done == {0: 6, 1: 4})
            described = admin.describe_groups([group])[group]
            assert described["error"] is None
            assert described["group_state"] == "Stable"
            assert len(described["members"]) == 1
            member.leave()
        assert group in {g["group_id"] for g in admin.list_groups()}

        def committed() -> dict[TopicPartition, int]:
            return {p: o.offset for p, o in admin.list_group_offsets(group)[group].items()}

        assert committed() == {zero: 6, one: 4}
        admin.reset_group_offsets(group, {zero: 3, one: OffsetSpec.EARLIEST})
        assert committed() == {zero: 3, one: 0}
        admin.delete_group_offsets(group, [one])
        assert committed() == {zero: 3}
        assert admin.delete_groups([group])[group] == "OK"
        assert group not in {g["group_id"] for g in admin.list_groups()}
    finally:
        admin.close()


def test_a_topic_made_again_is_another_topic(bootstrap: str, name: Callable[[str], str]) -> None:
    """Deleted and made again under one name, a topic is empty, from offset 0, with a new id."""
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = name("again")
    ids = []
    for count in (7, 3):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
        eventually(lambda: topic in admin.list_topics(timeout=60).topics)
        fill(bootstrap, topic, count)
        assert len(ADAPTERS[0].read(bootstrap, topic, 1, count)) == count
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(60)
        ids.append(str(described.topic_id))
        admin.delete_topics([topic])[topic].result(60)
        eventually(lambda: topic not in admin.list_topics(timeout=60).topics)
    assert ids[0] != ids[1]
