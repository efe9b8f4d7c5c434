"""Requests about replicas, quorums, features and tokens, answered as Kafka 4.3.1 answers them where
nothing is to be done. The codes were compared with a running broker's, request by request."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.errors import ErrorCode
from penstock.kafka.handlers.api_versions import FEATURES, finalized_features
from penstock.state.schema import TRANSACTIONS_LEVEL
from support.api_client import ApiClient
from support.log_rig import Rig

SOON = timedelta(seconds=5)
NONE = "none"
UNKNOWN = "unknown_topic_or_partition"
BAD_ASSIGNMENT = "invalid_replica_assignment"


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[ApiClient]:
    """Of a broker with the topic t, which has one partition."""
    await rig.topic("t")
    yield ApiClient(rig.agent.broker)


def me(client: ApiClient) -> int:
    return client.broker.node_id


async def elect(client: ApiClient, version: int, wanted: Any, kind: int = 0) -> Any:
    topics = wanted
    if wanted is not None:
        topics = tuple(
            client.part("elect_leaders", version, "TopicPartitions", topic=name, partitions=indexes)
            for name, indexes in wanted
        )
    fields = {"topic_partitions": topics, "timeout": SOON}
    return await client.call("elect_leaders", version, election_type=kind, **fields)


def elected(answer: Any) -> list[tuple[str, int, str]]:
    return [
        (topic.topic, one.partition_id, one.error_code.name)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("kind", [0, 1])
async def test_no_partition_needs_an_election(client: ApiClient, version: int, kind: int) -> None:
    answer = await elect(client, version, [("t", (0, 9)), ("absent", (0,))], kind)
    needless = "election_not_needed"
    assert elected(answer) == [("t", 0, needless), ("t", 9, UNKNOWN), ("absent", 0, UNKNOWN)]
    if version:
        assert answer.error_code.name == NONE
    assert elected(await elect(client, version, None, kind)) == []


async def test_an_unknown_kind_of_election_is_refused(client: ApiClient) -> None:
    answer = await elect(client, 2, [("t", (0,))], kind=5)
    assert answer.error_code.name == "invalid_request"
    assert elected(answer) == [("t", 0, "invalid_request")]


async def reassign(
    client: ApiClient, version: int, *wanted: tuple[str, int, tuple[int, ...] | None]
) -> Any:
    api = "alter_partition_reassignments"
    topics = []
    for name, index, replicas in wanted:
        one = client.part(
            api, version, "ReassignablePartition", partition_index=index, replicas=replicas
        )
        topics.append(client.part(api, version, "ReassignableTopic", name=name, partitions=(one,)))
    return await client.call(
        api,
        version,
        timeout=SOON,
        allow_replication_factor_change=False,
        topics=tuple(topics),
    )


@pytest.mark.parametrize("version", [0, 1])
async def test_a_reassignment_is_checked_and_has_ended(client: ApiClient, version: int) -> None:
    answer = await reassign(
        client,
        version,
        ("t", 0, (me(client),)),
        ("t", 9, (me(client),)),
        ("absent", 0, (me(client),)),
        ("t", 0, (me(client) + 1,)),
        ("t", 0, (-1,)),
        ("t", 0, ()),
        ("t", 0, (me(client), me(client))),
        ("t", 0, None),
    )
    assert answer.error_code.name == NONE
    assert [topic.partitions[0].error_code.name for topic in answer.responses] == [
        NONE,
        UNKNOWN,
        UNKNOWN,
        BAD_ASSIGNMENT,
        BAD_ASSIGNMENT,
        BAD_ASSIGNMENT,
        BAD_ASSIGNMENT,
        "no_reassignment_in_progress",
    ]
    messages = [topic.partitions[0].error_message for topic in answer.responses]
    assert messages[3] == f"broker {me(client) + 1} does not exist"
    if version:
        assert answer.allow_replication_factor_change is False
    listed = await client.call("list_partition_reassignments", 0, timeout=SOON, topics=None)
    assert (listed.error_code.name, listed.topics) == (NONE, ())


@pytest.mark.parametrize("version", [1, 2])
async def test_partitions_are_in_the_only_log_directory(client: ApiClient, version: int) -> None:
    api = "alter_replica_log_dirs"

    async def moved(path: str) -> list[str]:
        asked = [("t", (0, 9)), ("absent", (0,))]
        topics = tuple(
            client.part(api, version, "AlterReplicaLogDirTopic", name=name, partitions=indexes)
            for name, indexes in asked
        )
        one = client.part(api, version, "AlterReplicaLogDir", path=path, topics=topics)
        answer = await client.call(api, version, dirs=(one,))
        return [one.error_code.name for topic in answer.results for one in topic.partitions]

    assert await moved(client.broker.settings.log_dir) == [NONE, UNKNOWN, UNKNOWN]
    assert await moved("/elsewhere") == ["log_dir_not_found"] * 3


async def quorum(client: ApiClient, version: int, *asked: tuple[str, int]) -> Any:
    api, topics = "describe_quorum", []
    for name, index in asked:
        one = client.part(api, version, "PartitionData", partition_index=index)
        topics.append(client.part(api, version, "TopicData", topic_name=name, partitions=(one,)))
    return await client.call("describe_quorum", version, topics=tuple(topics))


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_journal_is_shown_as_the_quorum(client: ApiClient, version: int) -> None:
    answer = await quorum(client, version, ("__cluster_metadata", 0))
    ((partition,),) = [topic.partitions for topic in answer.topics]
    position = client.broker.position()
    assert position > 0
    assert (partition.leader_id, partition.high_watermark) == (me(client), position)
    voters = [(one.replica_id, one.log_end_offset) for one in partition.current_voters]
    assert voters == [(me(client), position)]
    if version > 1:
        (node,) = answer.nodes
        assert (node.node_id, node.listeners[0].name) == (me(client), "CONTROLLER")


@pytest.mark.parametrize(
    "asked",
    [
        [("t", 0)],
        [("__cluster_metadata", 1)],
        [("__cluster_metadata", 0), ("t", 0)],
        [("__cluster_metadata", 0)] * 2,
    ],
)
async def test_another_quorum_is_unknown(client: ApiClient, asked: list[tuple[str, int]]) -> None:
    answer = await quorum(client, 2, *asked)
    assert answer.error_code.name == NONE
    errors = [one.error_code.name for topic in answer.topics for one in topic.partitions]
    assert errors == [UNKNOWN] * len(asked)
    assert answer.nodes == ()


async def test_voters_are_refused(client: ApiClient) -> None:
    fields = {"cluster_id": None, "voter_id": 5, "voter_directory_id": uuid.UUID(int=7)}
    removed = await client.call("remove_raft_voter", 0, **fields)
    added = await client.call(
        "add_raft_voter", 1, **fields, timeout=SOON, listeners=(), ack_when_committed=True
    )
    for answer in (removed, added):
        assert answer.error_code.name == "unsupported_version"
        assert "an agent that is started joins" in answer.error_message


async def update(client: ApiClient, version: int, *wanted: tuple[str, int, int]) -> Any:
    updates = []
    for name, level, kind in wanted:
        typed: dict[str, Any] = {"upgrade_type": kind} if version else {"allow_downgrade": kind > 1}
        updates.append(
            client.part(
                "update_features",
                version,
                "FeatureUpdateKey",
                feature=name,
                max_version_level=level,
                **typed,
            )
        )
    fields: dict[str, Any] = {"validate_only": False} if version else {}
    return await client.call(
        "update_features", version, timeout=SOON, feature_updates=tuple(updates), **fields
    )


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_features_stay_where_they_are(client: ApiClient, version: int) -> None:
    asked = [(name, level, 1) for name, (_, level) in FEATURES.items()]
    answer = await update(client, version, *asked)
    assert (answer.error_code.name, answer.error_message) == (NONE, None)
    if version < 2:
        assert [(one.feature, one.error_code.name) for one in answer.results] == [
            (name, NONE) for name in FEATURES
        ]
    assert (await update(client, version)).error_code.name == NONE


@pytest.mark.parametrize(
    ("name", "level", "kind", "why"),
    [
        ("absent", 1, 1, "unknown"),
        ("transaction.version", 9, 1, "comes on by itself"),
        ("transaction.version", 1, 2, "no level is ever lowered"),
        ("transaction.version", 0, 3, "no level is ever lowered"),
        ("transaction.version", 2, 0, "upgrade type 0"),
    ],
)
async def test_one_refused_feature_refuses_all(
    client: ApiClient, name: str, level: int, kind: int, why: str
) -> None:
    for version in (1, 2):
        answer = await update(client, version, ("share.version", 1, 1), (name, level, kind))
        assert answer.error_code.name == "invalid_update_version"
        assert why in answer.error_message
        if version < 2:
            assert answer.results == ()


def test_features_come_on_with_the_level_of_transactions() -> None:
    assert finalized_features(TRANSACTIONS_LEVEL - 1) == {}
    assert finalized_features(TRANSACTIONS_LEVEL)["transaction.version"] == 2


async def test_agents_are_not_unregistered(client: ApiClient) -> None:
    for asked, error in ((99, "broker_id_not_registered"), (me(client), "invalid_request")):
        answer = await client.call("unregister_broker", 0, broker_id=asked)
        assert answer.error_code.name == error
        assert str(asked) in answer.error_message


@pytest.mark.parametrize(
    ("principal", "error"),
    [
        ("User:ANONYMOUS", ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        ("User:alice", ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
    ],
)
async def test_delegation_tokens_are_off(
    client: ApiClient, principal: str, error: ErrorCode
) -> None:
    client.connection.principal = principal
    hour = timedelta(hours=1)
    owner = {"owner_principal_type": None, "owner_principal_name": None}
    answers = [
        await client.call("describe_delegation_token", 3, owners=None),
        await client.call("renew_delegation_token", 2, hmac=b"x", renew_period=hour),
        await client.call("expire_delegation_token", 2, hmac=b"x", expiry_time_period=hour),
        await client.call("create_delegation_token", 3, renewers=(), max_lifetime=hour, **owner),
    ]
    assert [int(answer.error_code.value) for answer in answers] == [int(error)] * 4


@pytest.mark.parametrize("api", ["alter_configs", "incremental_alter_configs"])
async def test_what_no_broker_has_of_its_own_may_be_taken_from_it(
    client: ApiClient, api: str
) -> None:
    """`kafka-reassign-partitions --verify` deletes throttles, set or not."""

    async def altered(*configs: Any) -> str:
        resource = client.part(
            api,
            1,
            "AlterConfigsResource",
            resource_type=4,
            resource_name=str(me(client)),
            configs=configs,
        )
        answer = await client.call(api, 1, resources=(resource,), validate_only=False)
        name: str = answer.responses[0].error_code.name
        return name

    def config(**fields: Any) -> Any:
        return client.part(api, 1, "AlterableConfig", **fields)

    throttle = {"name": "leader.replication.throttled.rate"}
    if api == "alter_configs":
        assert await altered() == NONE
        assert await altered(config(**throttle, value="1")) != NONE
    else:
        assert await altered(config(**throttle, config_operation=1, value=None)) == NONE
        assert await altered(config(**throttle, config_operation=0, value="1")) != NONE
