"""How many topics and partitions there may be: each limit, its error, what the message names."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.kafka.errors import ErrorCode
from unit.kafka.test_handlers_topics import TIMEOUT, metadata_request

LIMITS = {"topics_max": 3, "partitions_max": 10, "topic_partitions_max": 6}


@pytest.fixture
def limited(broker_with: Any) -> Any:
    return broker_with(**LIMITS, create_partitions_max=9, default_partitions=2)


@pytest.fixture
def create(limited: Any, call_on: Any, request_of: Any, part_of: Any) -> Any:
    """(error, message) of each topic of a CreateTopics request."""

    def run(*counts: int, prefix: str = "t", validate_only: bool = False) -> list[tuple[Any, str]]:
        topics = tuple(
            part_of(
                "create_topics",
                7,
                "CreatableTopic",
                name=f"{prefix}{number}",
                num_partitions=count,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            for number, count in enumerate(counts)
        )
        ask = request_of(
            "create_topics", 7, topics=topics, timeout=TIMEOUT, validate_only=validate_only
        )
        answer = call_on(limited, "create_topics", 7, ask)
        return [(ErrorCode(topic.error_code.value), topic.error_message) for topic in answer.topics]

    return run


def add(limited: Any, call_on: Any, request_of: Any, part_of: Any, count: int) -> tuple[Any, str]:
    topic = part_of(
        "create_partitions", 3, "CreatePartitionsTopic", name="t0", count=count, assignments=None
    )
    ask = request_of("create_partitions", 3, topics=(topic,), timeout=TIMEOUT, validate_only=False)
    (result,) = call_on(limited, "create_partitions", 3, ask).results
    return ErrorCode(result.error_code.value), result.error_message


def test_the_cluster_has_so_many_topics(create: Any) -> None:
    *done, (error, message) = create(1, 1, 1, 1)
    assert done == [(ErrorCode.NONE, None)] * 3
    assert error is ErrorCode.POLICY_VIOLATION
    assert "the cluster has 3 topics" in message
    assert "topics_max = 3" in message


def test_the_cluster_has_so_many_partitions(
    create: Any, limited: Any, call_on: Any, request_of: Any, part_of: Any
) -> None:
    assert create(5, 4) == [(ErrorCode.NONE, None)] * 2
    ((error, message),) = create(2, prefix="u", validate_only=True)
    assert error is ErrorCode.POLICY_VIOLATION
    assert "2 partitions asked for, the cluster has 9" in message
    assert "partitions_max = 10" in message
    error, message = add(limited, call_on, request_of, part_of, 7)
    assert (error, "6 allowed (topic_partitions_max)" in message) == (
        ErrorCode.INVALID_PARTITIONS,
        True,
    )
    assert add(limited, call_on, request_of, part_of, 6)[0] is ErrorCode.NONE
    ((error, _),) = create(1, prefix="u")
    assert error is ErrorCode.POLICY_VIOLATION


def test_partitions_of_one_request_count_together(create: Any) -> None:
    assert create(5) == [(ErrorCode.NONE, None)]
    fits, (error, message) = create(3, 3, prefix="u")
    assert fits == (ErrorCode.NONE, None)
    assert error is ErrorCode.POLICY_VIOLATION
    assert "the cluster has 8 with those that are being created" in message


def test_a_topic_has_so_many_partitions(create: Any) -> None:
    (refused, done) = create(7, 1)
    assert refused == (
        ErrorCode.INVALID_PARTITIONS,
        "7 partitions asked for, 1 to 6 allowed (topic_partitions_max)",
    )
    assert done == (ErrorCode.NONE, None)


def test_one_request_creates_so_many_partitions(create: Any, limited: Any) -> None:
    outcomes = create(5, -1, 3)
    for error, message in outcomes:
        assert error is ErrorCode.POLICY_VIOLATION
        assert "10 partitions" in message
        assert "create_partitions_max = 9" in message
    assert not limited.view.topics()
    assert create(5, -1, 1)[0] == (ErrorCode.NONE, None)


def test_a_client_creates_no_more_topics_than_there_may_be(
    limited: Any, call_on: Any, request_of: Any, part_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ask = metadata_request(request_of, part_of, 1, [f"new{number}" for number in range(5)])
    with caplog.at_level(logging.WARNING):
        answer = call_on(limited, "metadata", 1, ask)
    codes = [topic.error_code for topic in answer.topics]
    assert codes == [0, 0, 0, ErrorCode.POLICY_VIOLATION, ErrorCode.POLICY_VIOLATION]
    (line,) = caplog.messages
    assert "2 topics that client test" in line
    assert "topics_max = 3" in line


def test_a_request_adds_so_many_partitions_to_all_its_topics(
    broker_with: Any, call_on: Any, request_of: Any, part_of: Any
) -> None:
    broker = broker_with(create_partitions_max=4, default_partitions=1)
    call_on(broker, "metadata", 1, metadata_request(request_of, part_of, 1, ["a", "b"]))
    topics = tuple(
        part_of(
            "create_partitions", 3, "CreatePartitionsTopic", name=name, count=4, assignments=None
        )
        for name in ("a", "b")
    )
    ask = request_of("create_partitions", 3, topics=topics, timeout=TIMEOUT, validate_only=False)
    done, refused = call_on(broker, "create_partitions", 3, ask).results
    assert done.error_code == ErrorCode.NONE
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "asks for 6 partitions" in refused.error_message


def test_a_request_for_metadata_creates_no_more_partitions_than_any(
    broker_with: Any,
    call_on: Any,
    request_of: Any,
    part_of: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = broker_with(create_partitions_max=9, default_partitions=4)
    ask = metadata_request(request_of, part_of, 1, ["a", "b", "c"])
    with caplog.at_level(logging.WARNING):
        codes = [topic.error_code for topic in call_on(broker, "metadata", 1, ask).topics]
    assert codes == [0, 0, ErrorCode.LEADER_NOT_AVAILABLE]
    assert "1 topics that client test" in caplog.text
    assert "create_partitions_max = 9" in caplog.text
    codes = [topic.error_code for topic in call_on(broker, "metadata", 1, ask).topics]
    assert codes == [0, 0, 0]
