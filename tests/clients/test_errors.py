"""Bad input gets the error that Kafka gives, as each client's own exception."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

# -- one function per client and kind of input: the name of the exception, or of the error's code --


def confluent_produce(bootstrap: str, topic: str, value: bytes, **settings: Any) -> str:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 60_000, **settings})
    errors: list[str] = []

    def note(error: Any, _message: Any) -> None:
        errors.append("" if error is None else error.name())

    producer.produce(topic, value, on_delivery=note)
    assert producer.flush(90) == 0
    return errors[0]


def aiokafka_produce(bootstrap: str, topic: str, value: bytes, **settings: Any) -> str:
    async def run() -> str:
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, request_timeout_ms=40_000, **settings
        )
        await producer.start()
        try:
            await asyncio.wait_for(producer.send_and_wait(topic, value), 90)
        except KafkaError as error:
            return type(error).__name__
        finally:
            await producer.stop()
        return ""

    return asyncio.run(run())


def kafka_python_produce(bootstrap: str, topic: str, value: bytes, **settings: Any) -> str:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(
        bootstrap_servers=bootstrap, max_block_ms=60_000, api_version=None, **settings
    )
    try:
        producer.send(topic, value).get(90)
    except KafkaError as error:
        return type(error).__name__
    finally:
        producer.close(timeout=5)
    return ""


@pytest.mark.parametrize(
    ("produce", "settings", "expected"),
    [
        (confluent_produce, {"message.max.bytes": 4_000_000}, "MSG_SIZE_TOO_LARGE"),
        (aiokafka_produce, {"max_request_size": 4_000_000}, "MessageSizeTooLargeError"),
        (kafka_python_produce, {"max_request_size": 4_000_000}, "MessageSizeTooLargeError"),
    ],
    ids=["confluent-kafka", "aiokafka", "kafka-python"],
)
def test_a_batch_above_the_topics_limit_is_refused(
    bootstrap: str,
    new_topic: Callable[..., str],
    produce: Callable[..., str],
    settings: dict[str, Any],
    expected: str,
) -> None:
    """`max.message.bytes` is the topic's: too large is refused, the next one is taken."""
    topic = new_topic(1, max_message_bytes="100000")
    assert produce(bootstrap, topic, b"x" * 200_000, **settings) == expected
    assert produce(bootstrap, topic, b"x" * 50_000, **settings) == ""


def test_an_unknown_topic_is_not_made_for_who_forbids_it(
    bootstrap: str, name: Callable[[str], str]
) -> None:
    """A client that turned auto-creation off gets an error, and no topic appears."""
    from confluent_kafka.admin import AdminClient

    topic = name("unknown")
    settings = {"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 500}
    assert confluent_produce(bootstrap, topic, b"v", **settings) == "UNKNOWN_TOPIC_OR_PART"
    assert topic not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics


def test_a_compacted_topic_refuses_a_record_without_a_key(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """Compaction goes by key, so that a record without one has no place there."""
    topic = new_topic(1, cleanup_policy="compact")
    assert confluent_produce(bootstrap, topic, b"v") == "INVALID_RECORD"
    assert confluent_produce(bootstrap, topic, b"v", **{"compression.type": "lz4"}) == (
        "INVALID_RECORD"
    )


@pytest.mark.parametrize(
    "produce",
    [confluent_produce, aiokafka_produce, kafka_python_produce],
    ids=["confluent-kafka", "aiokafka", "kafka-python"],
)
def test_an_unknown_topic_is_made_by_default(
    bootstrap: str, name: Callable[[str], str], produce: Callable[..., str]
) -> None:
    """Producing to a topic that isn't there makes it, as with Kafka's defaults."""
    assert produce(bootstrap, name("auto"), b"v") == ""


def test_an_unknown_topic_is_named_to_a_consumer(
    bootstrap: str, name: Callable[[str], str]
) -> None:
    """Subscribing to a topic that isn't there gives the reader an error event."""
    from confluent_kafka import Consumer, KafkaError

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": name("group"), "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([name("unknown")])
        message = consumer.poll(90)
        assert message is not None
        assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    finally:
        consumer.close()


def test_an_unknown_partition_is_named(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """A partition above the count: an error from the metadata, and nothing is stored."""
    from confluent_kafka import KafkaException, Producer

    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 60_000})
    producer.list_topics(topic, timeout=60)
    errors: list[str] = []
    try:
        producer.produce(
            topic, b"v", partition=7, on_delivery=lambda error, _: errors.append(error.name())
        )
    except KafkaException as error:
        errors.append(error.args[0].name())
    producer.flush(90)
    assert errors == ["_UNKNOWN_PARTITION"]


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("has space", "TOPIC_EXCEPTION"),
        ("has/slash", "TOPIC_EXCEPTION"),
        ("..", "TOPIC_EXCEPTION"),
        ("x" * 250, "TOPIC_EXCEPTION"),
    ],
)
def test_bad_topic_names_are_refused(bootstrap: str, topic: str, expected: str) -> None:
    """The names that Kafka refuses, by the same code."""
    assert create_error(bootstrap, topic) == expected


def create_error(bootstrap: str, topic: str, partitions: int = 1, **arguments: Any) -> str:
    """The error's name of a CreateTopics; empty when it was made."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    replicas = arguments.pop("replication_factor", 1)
    for future in admin.create_topics(
        [NewTopic(topic, partitions, replicas, **arguments)]
    ).values():
        try:
            future.result(60)
        except KafkaException as error:
            return str(error.args[0].name())
    return ""


def test_a_topic_is_made_once(bootstrap: str, name: Callable[[str], str]) -> None:
    """Making it again says that it exists; so does a name that differs in `.` and `_` only."""
    topic = name("twice")
    assert create_error(bootstrap, topic) == ""
    assert create_error(bootstrap, topic) == "TOPIC_ALREADY_EXISTS"
    assert create_error(bootstrap, name("a.b") + "x") == ""


def test_names_that_collide_in_metrics_are_refused(
    bootstrap: str, name: Callable[[str], str]
) -> None:
    """Kafka: '.' and '_' are the same in the names of metrics, so both can't be there."""
    unique = name("collide")
    assert create_error(bootstrap, f"{unique}.a") == ""
    assert create_error(bootstrap, f"{unique}_a") == "TOPIC_EXCEPTION"


def test_bad_sizes_and_configs_are_refused(bootstrap: str, name: Callable[[str], str]) -> None:
    """Partition counts, replication factors and configs that can't be."""
    assert create_error(bootstrap, name("bad"), 0) in ("INVALID_PARTITIONS", "_INVALID_ARG")
    assert create_error(bootstrap, name("bad"), replication_factor=17) == (
        "INVALID_REPLICATION_FACTOR"
    )
    unknown = {"no.such.config": "1"}
    assert create_error(bootstrap, name("bad"), config=unknown) == "INVALID_CONFIG"
    wrong = {"retention.ms": "a week"}
    assert create_error(bootstrap, name("bad"), config=wrong) == "INVALID_CONFIG"
    outside = {"cleanup.policy": "burn"}
    assert create_error(bootstrap, name("bad"), config=outside) == "INVALID_CONFIG"


def test_altering_to_a_bad_config_changes_nothing(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """An unknown name or a bad value is refused, and the topic keeps what it had."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    topic = new_topic(1, retention_ms="60000")
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def alter(config: str, value: str) -> str:
        entry = ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", topic, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            try:
                future.result(60)
            except KafkaException as error:
                return str(error.args[0].name())
        return ""

    assert alter("no.such.config", "1") == "INVALID_CONFIG"
    assert alter("retention.ms", "soon") == "INVALID_CONFIG"
    described = admin.describe_configs([ConfigResource("topic", topic)])
    configs = next(iter(described.values())).result(60)
    assert configs["retention.ms"].value == "60000"


def test_fewer_partitions_are_refused(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """A topic grows only."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewPartitions

    topic = new_topic(3)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for count in (2, 3):
        future = admin.create_partitions([NewPartitions(topic, count)])[topic]
        with pytest.raises(KafkaException) as raised:
            future.result(60)
        assert raised.value.args[0].name() == "INVALID_PARTITIONS"


def test_deleting_what_is_not_there_says_so(bootstrap: str, name: Callable[[str], str]) -> None:
    """Unknown topics and groups, each by its own code."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic, group = name("gone"), name("gone")
    with pytest.raises(KafkaException) as raised:
        admin.delete_topics([topic])[topic].result(60)
    assert raised.value.args[0].name() == "UNKNOWN_TOPIC_OR_PART"
    with pytest.raises(KafkaException) as raised:
        admin.delete_consumer_groups([group])[group].result(60)
    assert raised.value.args[0].name() == "GROUP_ID_NOT_FOUND"


def test_a_group_with_members_is_not_deleted_nor_its_offsets_moved(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str]
) -> None:
    """Only an empty group can be deleted or have its offsets set from outside."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient

    from support.member import Member

    topic, group = new_topic(1), name("group")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with Member("confluent-kafka", bootstrap, group, topic) as member:
        member.wait_assigned(1)
        with pytest.raises(KafkaException) as raised:
            admin.delete_consumer_groups([group])[group].result(60)
        assert raised.value.args[0].name() == "NON_EMPTY_GROUP"
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])
        moved = admin.alter_consumer_group_offsets([wanted])[group].result(60)
        assert moved.topic_partitions[0].error.name() == "UNKNOWN_MEMBER_ID"
        member.leave()


def test_an_illegal_generation_and_member_are_refused(
    bootstrap: str, new_topic: Callable[..., str], name: Callable[[str], str]
) -> None:
    """A commit that names a group's wrong generation or an unknown member never lands."""
    from kafka.protocol.consumer import OffsetCommitRequest

    from support.member import Member

    topic, group = new_topic(1), name("group")

    def commit(member_id: str, generation: int) -> int:
        partition_type = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=None,
            retention_time_ms=-1,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        partition_type(
                            partition_index=0,
                            committed_offset=5,
                            committed_leader_epoch=-1,
                            committed_metadata="",
                        )
                    ],
                )
            ],
            max_version=7,
        )
        return int(ask(bootstrap, request).topics[0].partitions[0].error_code)

    with Member("kafka-python", bootstrap, group, topic) as member:
        member.wait_assigned(1)
        member_id = only_member(bootstrap, group)
        assert commit("nobody", 1) == 25  # UNKNOWN_MEMBER_ID
        # DescribeGroups doesn't tell the generation: one of the first few is the right one, and
        # every other one is refused as ILLEGAL_GENERATION.
        assert sorted(commit(member_id, generation) for generation in range(1, 7)) == [0] + [22] * 5
        member.leave()


def ask(bootstrap: str, request: Any) -> Any:
    """Send one request of kafka-python's own protocol classes to the broker; its answer."""
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        return admin._manager.run(admin._manager.send, request)
    finally:
        admin.close()


def only_member(bootstrap: str, group: str) -> str:
    """The member id of a group's only member."""
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        (member,) = admin.describe_groups([group])[group]["members"]
        return str(member["member_id"])
    finally:
        admin.close()


def join(bootstrap: str, group: str, session_timeout_ms: int) -> int:
    """The error code of a JoinGroup by a new member."""
    from kafka.protocol.consumer import JoinGroupRequest

    # A subscription: version 0, no topics, no user data.
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(
        name="range", metadata=struct.pack(">hii", 0, 0, 0)
    )
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
        max_version=3,
    )
    return int(ask(bootstrap, request).error_code)


def test_an_empty_group_id_is_refused(bootstrap: str) -> None:
    """Joining needs a name."""
    assert join(bootstrap, "", 10_000) == 24  # INVALID_GROUP_ID


@pytest.mark.parametrize("session_timeout_ms", [1, 100_000_000])
def test_a_session_timeout_out_of_bounds_is_refused(
    bootstrap: str, name: Callable[[str], str], session_timeout_ms: int
) -> None:
    """`group.min.session.timeout.ms` and the maximum are kept."""
    assert join(bootstrap, name("group"), session_timeout_ms) == 26  # INVALID_SESSION_TIMEOUT
