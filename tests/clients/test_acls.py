"""Access rules by librdkafka: what an administrator makes, and what a client is refused.

Every client is anonymous here. Everyone may do what no rule is about, so that a rule for somebody
else takes a resource away from the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.server import ServerProcess, running_server
from support.waiting import eventually

DEADLINE_S = 30


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {
        "AUTHORIZER": "acl",
        "ALLOW_EVERYONE_IF_NO_ACL_FOUND": "true",
        "GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    with running_server(tmp_path_factory.mktemp("guarded"), settings) as server:
        yield server


def test_confluent_kafka_manages_rules_and_is_refused(
    guarded: ServerProcess, name: Callable[[str], str]
) -> None:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        NewTopic,
        ResourcePatternType,
        ResourceType,
    )

    common = {"bootstrap.servers": guarded.bootstrap}
    admin = AdminClient(common)
    topic, group = name("secret"), name("group")
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_S)

    def rule(kind: ResourceType, resource: str, operation: AclOperation) -> AclBinding:
        return AclBinding(
            kind,
            resource,
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )

    rules = [
        rule(ResourceType.TOPIC, topic, AclOperation.READ),
        rule(ResourceType.GROUP, group, AclOperation.READ),
    ]
    for future in admin.create_acls(rules).values():
        future.result(DEADLINE_S)
    everything = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:alice",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert set(admin.describe_acls(everything).result(DEADLINE_S)) == set(rules)

    refused: list[KafkaError | None] = []
    producer = Producer(common | {"message.timeout.ms": 10_000})
    producer.produce(topic, b"v", on_delivery=lambda error, _: refused.append(error))
    producer.flush(DEADLINE_S)
    (error,) = refused
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    consumer = Consumer(common | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = eventually(lambda: consumer.poll(1.0), lambda message: message is not None)
    assert found is not None
    error = found.error()
    assert error is not None
    assert error.code() in (
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )
    consumer.close()

    (deleted,) = admin.delete_acls([everything]).values()
    assert set(deleted.result(DEADLINE_S)) == set(rules)
    refused.clear()
    again = Producer(common)
    again.produce(topic, b"v", on_delivery=lambda error, _: refused.append(error))
    again.flush(DEADLINE_S)
    assert refused == [None]
