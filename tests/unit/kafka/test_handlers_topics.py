"""Metadata, topics and partitions: every version, through kio's writer and reader."""

import asyncio
import sys
import uuid
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.kafka import metadata_answers
from penstock.kafka.admin import commit as admin
from penstock.kafka.admin.topic_plan import new_topic_id
from penstock.kafka.context import RequestContext
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.settings import KafkaSettings
from penstock.kafka.topic_room import Creations
from penstock.model.errors import FencedError, OverloadedError
from penstock.model.steps import at_once
from penstock.model.topic_names import name_problem
from penstock.placement.leaders import Leaders
from penstock.placement.replicas import Replicas
from penstock.state.commands import DeleteTopic
from support.api_client import ApiClient

TIMEOUT = timedelta(seconds=5)


def versions(api: str) -> range:
    entry = BY_MODULE[api]
    return range(entry.versions_min, entry.versions_max + 1)


def metadata_request(request_of: Any, part_of: Any, version: int, names: Any, **fields: Any) -> Any:
    topics = None
    if names is not None:
        topics = tuple(
            part_of("metadata", version, "MetadataRequestTopic", name=name, topic_id=None)
            for name in names
        )
    fields = {
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
        **fields,
    }
    if version < 4:
        fields.pop("allow_auto_topic_creation")
    return request_of("metadata", version, topics=topics, **fields)


# -- Metadata ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("metadata"))
def test_metadata_says_where_each_partition_is_led(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, broker: Any, version: int
) -> None:
    flights = add_topic("flights", 3)
    answer = call("metadata", version, metadata_request(request_of, part_of, version, ["flights"]))
    (node,) = answer.brokers
    assert (node.node_id, node.host, node.port) == (7, "127.0.0.1", 9092)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name) == (0, "flights")
    assert [p.partition_index for p in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (0, 7)
        assert partition.replica_nodes == partition.isr_nodes == (7,)
        if version >= 7:
            assert partition.leader_epoch == 0
    if version >= 2:
        assert answer.cluster_id == broker.cluster_id
    if version >= 8:
        # As it asked for them: all that Kafka has for topics, since there is no authorizer.
        assert topic.topic_authorized_operations == 0b1101_1111_1000
    if version >= 10:
        assert topic.topic_id.bytes == flights.topic_id


@pytest.mark.parametrize("version", versions("metadata"))
def test_asking_for_all_topics(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, version: int
) -> None:
    add_topic("a")
    add_topic("b", 2)
    everything = () if version == 0 else None
    ask = metadata_request(request_of, part_of, version, everything)
    assert {t.name for t in call("metadata", version, ask).topics} == {"a", "b"}
    # The cached answer follows what is created later.
    add_topic("c")
    assert {t.name for t in call("metadata", version, ask).topics} == {"a", "b", "c"}
    if version >= 1:
        nothing = metadata_request(request_of, part_of, version, [])
        assert call("metadata", version, nothing).topics == ()


@pytest.mark.parametrize("version", versions("metadata"))
def test_asking_for_an_unknown_topic_creates_it(
    call: Any, request_of: Any, part_of: Any, broker: Any, version: int
) -> None:
    ask = metadata_request(request_of, part_of, version, ["new", "new", "bad name"])
    answer = call("metadata", version, ask)
    # As in Kafka, a topic that is named twice is answered once.
    assert [(t.name, t.error_code, len(t.partitions)) for t in answer.topics] == [
        ("new", 0, 1),
        ("bad name", 17, 0),
    ]
    assert broker.view.topic("new").partitions == 1
    assert uuid.UUID(bytes=broker.view.topic("new").topic_id).version == 4


@pytest.mark.parametrize("version", range(4, 14))
def test_a_request_can_forbid_creation(
    call: Any, request_of: Any, part_of: Any, broker: Any, version: int
) -> None:
    ask = metadata_request(request_of, part_of, version, ["new"], allow_auto_topic_creation=False)
    (topic,) = call("metadata", version, ask).topics
    assert topic.error_code == 3
    assert broker.committer.calls == 0


def test_the_setting_can_forbid_creation(
    call_on: Any, request_of: Any, part_of: Any, broker_with: Any
) -> None:
    broker = broker_with(auto_create_topics=False)
    ask = metadata_request(request_of, part_of, 9, ["new"])
    assert call_on(broker, "metadata", 9, ask).topics[0].error_code == 3


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_id(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, version: int
) -> None:
    known = uuid.UUID(bytes=add_topic("flights").topic_id)
    unknown = uuid.UUID(int=12345)
    topics = tuple(
        part_of("metadata", version, "MetadataRequestTopic", name=None, topic_id=topic_id)
        for topic_id in (known, unknown)
    )
    ask = request_of(
        "metadata",
        version,
        topics=topics,
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    first, second = call("metadata", version, ask).topics
    assert (first.name, first.topic_id, first.error_code) == ("flights", known, 0)
    assert (second.name, second.topic_id, second.error_code) == (None, unknown, 100)


def test_a_creation_that_fails_for_now_is_retriable(
    call: Any, request_of: Any, part_of: Any, broker: Any
) -> None:
    broker.committer.failure = OverloadedError("commit", "journal", "it is full")
    (topic,) = call("metadata", 9, metadata_request(request_of, part_of, 9, ["new"])).topics
    assert (topic.name, topic.error_code) == ("new", 7)


def test_an_agent_that_ends_sends_administrators_to_another(
    call: Any, request_of: Any, part_of: Any, broker: Any
) -> None:
    broker.committer.failure = FencedError("commit", "agent 7", "its epoch is over")
    request = request_of("delete_topics", 4, topic_names=("flights",), timeout=timedelta(seconds=5))
    broker.view._by_name["flights"] = SimpleNamespace(
        name="flights", topic_id=bytes(16), partitions=1
    )
    (answer,) = call("delete_topics", 4, request).responses
    assert answer.error_code == 41


def test_a_name_that_collides_is_not_created(
    call: Any, request_of: Any, part_of: Any, add_topic: Any
) -> None:
    add_topic("a.b")
    (topic,) = call("metadata", 9, metadata_request(request_of, part_of, 9, ["a_b"])).topics
    assert topic.error_code == 17


@pytest.mark.slow
@pytest.mark.parametrize("leaders", [(7,), (7, 8, 9)])
def test_metadata_of_a_partition_costs_few_calls(
    add_topic: Any, broker: Any, leaders: tuple[int, ...]
) -> None:
    for number in range(500):
        add_topic(f"topic-{number}", 10)
    near = Leaders(leaders)
    broker.nodes._replicas = Replicas(near, {"": near})
    connection = ApiClient(broker).connection
    context = RequestContext(3, 12, 1, "test", "127.0.0.1", broker, connection)
    topics = list(map(metadata_answers.KnownTopics(context).answer, broker.view.topics()))
    metadata_answers.encode_partitions.cache_clear()
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    # Counted, since other processes move every clock. Eight to a partition take 4 ms; all of them
    # are to take well under 100.
    sys.setprofile(count)
    try:
        encoded = at_once(metadata_answers.TopicsWriter(context).whole(topics))
    finally:
        sys.setprofile(None)
    assert calls < 5000 * 16
    assert len(encoded) > 5000 * 26


# -- names and ids -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "x" * 249, "...", "-"])
def test_legal_names(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0"])
def test_illegal_names(name: str) -> None:
    assert name_problem(name) is not None


def test_names_collide_where_dot_and_underscore_are_the_same(broker: Any, add_topic: Any) -> None:
    for name in ("x", "a_b.c", "plain"):
        add_topic(name)
    assert broker.view.similar_name("a.b_c") == "a_b.c"
    assert broker.view.similar_name("a_b.c") is None
    assert broker.view.similar_name("a.b") is None
    assert broker.view.similar_name("plain") is None
    broker.committer.apply(DeleteTopic(topic_id=broker.view.topic("a_b.c").topic_id))
    assert broker.view.similar_name("a.b_c") is None


def test_topic_ids_are_version_4_and_do_not_look_like_an_option() -> None:
    class Scripted:
        answers = [b"\xfa" * 16, b"\x11" * 16]

        def token_bytes(self, count: int) -> bytes:
            assert count == 16
            return self.answers.pop(0)

        def below(self, bound: int) -> int:
            return 0

    made = uuid.UUID(bytes=new_topic_id(Scripted()))
    assert made.version == 4
    assert made.bytes[0] == 0x11


# -- CreateTopics ------------------------------------------------------------------------------


def create(
    request_of: Any, part_of: Any, version: int, *topics: dict[str, Any], **fields: Any
) -> Any:
    api = "create_topics"
    made = []
    for topic in topics:
        full = {"num_partitions": 1, "replication_factor": 1, **topic}
        made.append(
            part_of(
                api,
                version,
                "CreatableTopic",
                name=full["name"],
                num_partitions=full["num_partitions"],
                replication_factor=full["replication_factor"],
                assignments=tuple(
                    part_of(
                        api,
                        version,
                        "CreatableReplicaAssignment",
                        partition_index=index,
                        broker_ids=brokers,
                    )
                    for index, brokers in full.get("assignments", ())
                ),
                configs=tuple(
                    part_of(api, version, "CreatableTopicConfig", name=name, value=value)
                    for name, value in full.get("configs", ())
                ),
            )
        )
    return request_of(api, version, topics=tuple(made), **{"validate_only": False, **fields})


@pytest.mark.parametrize("version", versions("create_topics"))
def test_topics_are_created_in_one_commit(
    call: Any, request_of: Any, part_of: Any, broker: Any, version: int
) -> None:
    ask = create(
        request_of,
        part_of,
        version,
        {"name": "a", "num_partitions": 5, "configs": [("retention.ms", "1000")]},
        {"name": "b", "num_partitions": -1, "replication_factor": -1},
        {
            "name": "c",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [(1, (7,)), (0, (7,))],
        },
    )
    answer = call("create_topics", version, ask)
    assert [(t.name, t.error_code, t.error_message) for t in answer.topics] == [
        ("a", 0, None),
        ("b", 0, None),
        ("c", 0, None),
    ]
    assert broker.committer.calls == 1
    assert [broker.view.topic(name).partitions for name in "abc"] == [5, 1, 2]
    assert broker.view.topic("a").configs == {"retention.ms": "1000"}
    if version >= 5:
        assert [t.num_partitions for t in answer.topics] == [5, 1, 2]
        assert answer.topics[0].replication_factor == 1
        by_name = {c.name: c for c in answer.topics[0].configs}
        assert (by_name["retention.ms"].value, by_name["retention.ms"].config_source) == ("1000", 1)
        assert by_name["segment.ms"].config_source == 5
    if version >= 7:
        assert answer.topics[0].topic_id.bytes == broker.view.topic("a").topic_id


REFUSED = {
    "exists": ({"name": "there"}, 36),
    "bad name": ({"name": "a b"}, 17),
    "collides": ({"name": "coll_ides"}, 17),
    "no partitions": ({"name": "x", "num_partitions": 0}, 37),
    "replication factor 17": ({"name": "x", "replication_factor": 17}, 38),
    "replication factor 0": ({"name": "x", "replication_factor": 0}, 38),
    "unknown config": ({"name": "x", "configs": [("no.such", "1")]}, 40),
    "bad config": ({"name": "x", "configs": [("retention.ms", "soon")]}, 40),
    "null config": ({"name": "x", "configs": [("retention.ms", None)]}, 40),
    "assigned elsewhere": (
        {"name": "x", "num_partitions": -1, "replication_factor": -1, "assignments": [(0, (8,))]},
        39,
    ),
    "assigned with a gap": (
        {"name": "x", "num_partitions": -1, "replication_factor": -1, "assignments": [(1, (7,))]},
        39,
    ),
    "assigned and counted": ({"name": "x", "assignments": [(0, (7,))]}, 42),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_created_is_refused_and_the_rest_goes_on(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, broker: Any, which: str
) -> None:
    add_topic("there")
    add_topic("coll.ides")
    topic, expected = REFUSED[which]
    answer = call("create_topics", 7, create(request_of, part_of, 7, topic, {"name": "fine"}))
    assert [t.error_code for t in answer.topics] == [expected, 0]
    assert answer.topics[0].error_message
    assert broker.view.topic("fine") is not None
    assert broker.view.topic("x") is None


@pytest.mark.parametrize("version", versions("create_topics"))
def test_validating_creates_nothing(
    call: Any, request_of: Any, part_of: Any, broker: Any, version: int
) -> None:
    ask = create(request_of, part_of, version, {"name": "a"}, {"name": "b c"}, validate_only=True)
    answer = call("create_topics", version, ask)
    assert [t.error_code for t in answer.topics] == [0, 17]
    assert broker.committer.calls == 0


def test_a_topic_named_twice_is_refused_both_times(
    call: Any, request_of: Any, part_of: Any
) -> None:
    ask = create(
        request_of, part_of, 7, {"name": "a"}, {"name": "a"}, {"name": "a.b"}, {"name": "a_b"}
    )
    assert [t.error_code for t in call("create_topics", 7, ask).topics] == [42, 42, 0, 17]


def test_a_commit_that_fails_is_each_topics_error(
    call: Any, request_of: Any, part_of: Any, broker: Any
) -> None:
    broker.committer.failure = OverloadedError("commit", "journal", "it is full")
    (topic,) = call("create_topics", 7, create(request_of, part_of, 7, {"name": "a"})).topics
    assert (topic.error_code, "it is full" in topic.error_message) == (7, True)


async def test_a_commit_that_takes_too_long_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        async def commit(self, commands: Any) -> Any:
            await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(admin, "TIMEOUT_MIN_S", 0.01)
    view: Any = None
    creations = Creations(view, KafkaSettings())
    broker = SimpleNamespace(committer=Never(), view=view, creations=creations)
    context: Any = SimpleNamespace(broker=broker, client_id="c", client_host="h")
    commands: Any = [None, None]
    outcomes = await admin.commit(context, commands, timedelta(0))
    assert [outcome.error for outcome in outcomes] == [7, 7]


# -- DeleteTopics ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("delete_topics"))
def test_topics_are_deleted_by_name(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, broker: Any, version: int
) -> None:
    add_topic("a")
    add_topic("b")
    names = ("a", "missing", "b")
    if version >= 6:
        topics = tuple(
            part_of("delete_topics", version, "DeleteTopicState", name=name, topic_id=None)
            for name in names
        )
        ask = request_of("delete_topics", version, topics=topics, timeout=TIMEOUT)
    else:
        ask = request_of("delete_topics", version, topic_names=names, timeout=TIMEOUT)
    answer = call("delete_topics", version, ask)
    assert [(t.name, t.error_code) for t in answer.responses] == [
        ("a", 0),
        ("missing", 3),
        ("b", 0),
    ]
    assert not broker.view.topics()
    assert broker.committer.calls == 1


def test_topics_are_deleted_by_id(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, broker: Any
) -> None:
    topic_id = uuid.UUID(bytes=add_topic("a").topic_id)
    unknown = uuid.UUID(int=99)
    topics = [(None, topic_id), (None, unknown), (None, None), ("a", topic_id)]
    ask = request_of(
        "delete_topics",
        6,
        topics=tuple(
            part_of("delete_topics", 6, "DeleteTopicState", name=name, topic_id=one)
            for name, one in topics
        ),
        timeout=TIMEOUT,
    )
    answer = call("delete_topics", 6, ask)
    assert [t.error_code for t in answer.responses] == [0, 100, 42, 42]
    assert (answer.responses[0].name, answer.responses[0].topic_id) == ("a", topic_id)
    assert not broker.view.topics()


def test_a_topic_by_name_and_by_id_is_named_twice(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, broker: Any
) -> None:
    topic_id = uuid.UUID(bytes=add_topic("a").topic_id)
    ask = request_of(
        "delete_topics",
        6,
        topics=(
            part_of("delete_topics", 6, "DeleteTopicState", name="a", topic_id=None),
            part_of("delete_topics", 6, "DeleteTopicState", name=None, topic_id=topic_id),
        ),
        timeout=TIMEOUT,
    )
    assert [t.error_code for t in call("delete_topics", 6, ask).responses] == [42, 42]
    assert broker.view.topic("a") is not None


# -- CreatePartitions --------------------------------------------------------------------------


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("version", versions("create_partitions"))
def test_partition_counts_are_raised_never_lowered(
    call: Any,
    request_of: Any,
    part_of: Any,
    add_topic: Any,
    broker: Any,
    version: int,
    validate_only: bool,
) -> None:
    api = "create_partitions"
    add_topic("a", 3)
    add_topic("b", 3)
    add_topic("c", 3)
    add_topic("d", 3)

    def assigned(*broker_ids: int) -> Any:
        return tuple(
            part_of(api, version, "CreatePartitionsAssignment", broker_ids=(one,))
            for one in broker_ids
        )

    wanted = [
        ("a", 5, None, 0),
        ("b", 3, None, 37),
        ("missing", 3, None, 3),
        ("c", 4, assigned(8), 39),
        ("d", 5, assigned(7, 7), 0),
        ("e", 1, None, 42),
        ("e", 1, None, 42),
    ]
    ask = request_of(
        api,
        version,
        topics=tuple(
            part_of(
                api, version, "CreatePartitionsTopic", name=name, count=count, assignments=brokers
            )
            for name, count, brokers, _ in wanted
        ),
        timeout=TIMEOUT,
        validate_only=validate_only,
    )
    answer = call(api, version, ask)
    assert [r.error_code for r in answer.results] == [code for *_, code in wanted]
    counts = [broker.view.topic(name).partitions for name in "abcd"]
    assert counts == ([3, 3, 3, 3] if validate_only else [5, 3, 3, 5])


# -- DescribeTopicPartitions and DescribeCluster -----------------------------------------------


def test_pages_of_topic_partitions_cover_everything_once(
    call: Any, request_of: Any, part_of: Any, add_topic: Any
) -> None:
    api = "describe_topic_partitions"
    for name, count in (("a", 3), ("b", 1), ("c", 5), ("d", 2)):
        add_topic(name, count)
    seen: list[tuple[str, int]] = []
    cursor, pages = None, 0
    while True:
        ask = request_of(api, 0, topics=(), response_partition_limit=2, cursor=cursor)
        answer = call(api, 0, ask)
        seen.extend((t.name, p.partition_index) for t in answer.topics for p in t.partitions)
        pages += 1
        if answer.next_cursor is None:
            break
        cursor = part_of(
            api,
            0,
            "Cursor",
            topic_name=answer.next_cursor.topic_name,
            partition_index=answer.next_cursor.partition_index,
        )
    expected = [(n, i) for n, c in (("a", 3), ("b", 1), ("c", 5), ("d", 2)) for i in range(c)]
    assert seen == expected
    assert pages == 6


def test_named_topics_are_described_in_order_and_unknown_ones_named(
    call: Any, request_of: Any, part_of: Any, add_topic: Any
) -> None:
    api = "describe_topic_partitions"
    add_topic("b", 2)
    topics = tuple(part_of(api, 0, "TopicRequest", name=name) for name in ("x", "b", "a b"))
    ask = request_of(api, 0, topics=topics, response_partition_limit=100, cursor=None)
    answer = call(api, 0, ask)
    assert [(t.name, t.error_code, len(t.partitions)) for t in answer.topics] == [
        ("a b", 17, 0),
        ("b", 0, 2),
        ("x", 3, 0),
    ]
    assert answer.topics[1].partitions[1].isr_nodes == (7,)


@pytest.mark.parametrize("version", versions("describe_cluster"))
def test_the_cluster_is_one_broker(call: Any, request_of: Any, broker: Any, version: int) -> None:
    def ask(**fields: Any) -> Any:
        return call(
            "describe_cluster",
            version,
            request_of(
                "describe_cluster",
                version,
                include_cluster_authorized_operations=False,
                include_fenced_brokers=False,
                **fields,
            ),
        )

    answer = ask()
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, broker.cluster_id, 7)
    (node,) = answer.brokers
    assert (node.broker_id, node.host, node.port) == (7, "127.0.0.1", 9092)
    if version >= 1:
        assert ask(endpoint_type=2).error_code == 114
        assert ask(endpoint_type=9).error_code == 115
