"""An administrative change leaves one line: who, what, from what to what."""

import logging
from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.admin.lines import LINES_MAX, describe
from penstock.state.commands import (
    AlterClusterConfigs,
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
)

TIMEOUT = timedelta(seconds=5)
WHO = "client 'test' at 127.0.0.1 "


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """What the lines of the client say."""
    caplog.set_level(logging.INFO, logger="penstock.kafka.admin.lines")

    def read() -> list[str]:
        found = [line.removeprefix(WHO) for line in caplog.messages if line.startswith(WHO)]
        caplog.clear()
        return found

    return read


def test_topics_that_are_made_changed_and_deleted(
    call: Any, request_of: Any, part_of: Any, broker: Any, lines: Any
) -> None:
    names = tuple(
        part_of("metadata", 12, "MetadataRequestTopic", name=name, topic_id=None)
        for name in ("a", "not a name")
    )
    ask = request_of(
        "metadata",
        12,
        topics=names,
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    call("metadata", 12, ask)
    partitions = broker.settings.default_partitions
    assert lines() == [f"created topic a with {partitions} partitions"]
    topic = part_of(
        "create_partitions", 3, "CreatePartitionsTopic", name="a", count=9, assignments=None
    )
    for validate_only in (True, False):
        ask = request_of(
            "create_partitions", 3, topics=(topic,), timeout=TIMEOUT, validate_only=validate_only
        )
        call("create_partitions", 3, ask)
    assert lines() == [f"changed the partitions of topic a: {partitions} -> 9"]
    topic_id = broker.view.topic("a").topic_id.hex()
    call("delete_topics", 4, request_of("delete_topics", 4, topic_names=("a",), timeout=TIMEOUT))
    assert lines() == [f"deleted topic a (id {topic_id})"]


def test_configs_are_named_with_what_they_were(broker: Any, add_topic: Any) -> None:
    topic = add_topic("t", retention_ms="1000", cleanup_policy="delete")
    change = AlterTopicConfigs(
        topic_id=topic.topic_id, set={"retention.ms": "5", "a": "b"}, unset=["cleanup.policy"]
    )
    assert describe(broker.view, change) == (
        "changed configs of topic t: retention.ms: 1000 -> 5, a: default -> b, "
        "cleanup.policy: delete -> default"
    )
    assert describe(broker.view, AlterClusterConfigs(set={"retention.ms": "5"})) == (
        "changed the configs of all brokers: retention.ms: default -> 5"
    )
    made = CreateTopic(name="u", topic_id=b"u" * 16, partitions=2, configs={"a": "b"})
    assert describe(broker.view, made) == "created topic u with 2 partitions and configs {'a': 'b'}"
    unknown = CreatePartitions(topic_id=b"v" * 16, partitions=2)
    assert describe(broker.view, unknown) == "changed the partitions of topic ? -> 2"


def test_a_request_of_many_changes_has_a_bounded_number_of_lines(
    call: Any, request_of: Any, add_topic: Any, lines: Any
) -> None:
    names = tuple(f"t{number}" for number in range(LINES_MAX + 20))
    for name in names:
        add_topic(name)
    call("delete_topics", 4, request_of("delete_topics", 4, topic_names=names, timeout=TIMEOUT))
    found = lines()
    assert len(found) == LINES_MAX + 1
    assert found[-1] == "made 20 more changes by this request"
