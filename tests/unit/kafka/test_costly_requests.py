"""Requests that name one thing many times, or many things, cost no more than what they ask for."""

import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.handlers import metadata
from penstock.kafka.wire import header
from penstock.kafka.wire.decode import ITEMS_MAX
from penstock.kafka.wire.primitives import TAGS_MAX, uvarint
from penstock.model.steps import at_once
from support.parsing import decode_request, parse_fetch, parse_produce
from unit.kafka.test_handlers_topics import TIMEOUT, metadata_request


def calls_of(work: Callable[[], Any]) -> int:
    """Calls of functions, which other processes do not move as they move a clock."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("version", [1, 9, 12])
def test_metadata_answers_a_topic_once(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, version: int
) -> None:
    add_topic("flights", 3)
    names = ["flights", "nosuch"] * 3000
    fields = {"allow_auto_topic_creation": False} if version >= 4 else {}
    answer = call(
        "metadata", version, metadata_request(request_of, part_of, version, names, **fields)
    )
    assert [topic.name for topic in answer.topics] == ["flights", "nosuch"]


@pytest.mark.parametrize("version", [1, 4])
def test_configs_of_a_topic_are_described_once(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, version: int
) -> None:
    add_topic("flights")

    def described(*asked: tuple[str, ...] | None) -> Any:
        resources = tuple(
            part_of(
                "describe_configs",
                version,
                "DescribeConfigsResource",
                resource_type=2,
                resource_name="flights",
                configuration_keys=keys,
            )
            for keys in asked
        )
        fields = {"include_synonyms": True, "include_documentation": True}
        ask = request_of("describe_configs", version, resources=resources, **fields)
        (result,) = call("describe_configs", version, ask).results
        return result.configs

    everything = described(*[None] * 2000)
    assert everything == described(None)
    assert len(everything) > 30
    some = described(("retention.ms",), ("cleanup.policy", "nosuch"))
    assert {config.name for config in some} == {"retention.ms", "cleanup.policy"}
    assert described(("retention.ms",), None) == everything
    assert described((), ("retention.ms",)) == everything


def test_configs_cost_little_for_each_further_topic(
    call: Any, request_of: Any, part_of: Any, add_topic: Any
) -> None:
    for number in range(200):
        add_topic(f"t{number}", retention_ms=str(number % 3))

    def describe(count: int) -> None:
        resources = tuple(
            part_of(
                "describe_configs",
                1,
                "DescribeConfigsResource",
                resource_type=2,
                resource_name=f"t{number}",
                configuration_keys=None,
            )
            for number in range(count)
        )
        call("describe_configs", 1, request_of("describe_configs", 1, resources=resources))

    # Without the part that both calls have in common; kio reads the answer, some 600 calls a topic.
    describe(1)
    assert calls_of(lambda: describe(200)) - calls_of(lambda: describe(10)) < 190 * 3500


@pytest.mark.slow
@pytest.mark.parametrize("sign", "ab_")
def test_checking_new_topics_costs_as_much_for_each(
    call: Any, request_of: Any, part_of: Any, add_topic: Any, sign: str
) -> None:
    for number in range(100):
        add_topic(f"known{sign}{number}")

    def check(count: int) -> None:
        topics = tuple(
            part_of(
                "create_topics",
                2,
                "CreatableTopic",
                name=f"new{sign}{number}",
                num_partitions=1,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            for number in range(count)
        )
        ask = request_of("create_topics", 2, topics=topics, timeout=TIMEOUT, validate_only=True)
        assert all(not topic.error_code for topic in call("create_topics", 2, ask).topics)

    check(1)
    few, many = calls_of(lambda: check(100)), calls_of(lambda: check(1000))
    assert many < 11 * few


def test_new_topics_of_one_request_collide(
    call: Any, request_of: Any, part_of: Any, broker: Any
) -> None:
    ask = metadata_request(request_of, part_of, 1, ["a.b", "a_b", "a.b"])
    answer = call("metadata", 1, ask)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a.b", 0), ("a_b", 17)]
    assert broker.view.topic("a_b") is None


def test_produce_and_fetch_take_so_many_partitions() -> None:
    produce = b"\xff\xff\0\1\0\0\3\xe8\0\0\0\1\0\1t" + (ITEMS_MAX + 1).to_bytes(4, "big")
    produce += b"\0\0\0\0\xff\xff\xff\xff" * (ITEMS_MAX + 1)
    with pytest.raises(MalformedRequestError, match="200000 items allowed"):
        parse_produce(memoryview(produce), 3)
    fetch = b"\xff" * 4 + bytes(13) + b"\0\0\0\1\0\1t" + (ITEMS_MAX + 1).to_bytes(4, "big")
    fetch += bytes(16) * (ITEMS_MAX + 1)
    with pytest.raises(MalformedRequestError, match="200000 items allowed"):
        parse_fetch(memoryview(fetch), 4)


@pytest.mark.parametrize("key", [0, 1, 3, 18])
def test_a_request_has_so_many_tagged_fields_in_one_place(key: int) -> None:
    """They may be of any number, of two bytes each, in the header of any request."""

    def frame(tags: int) -> memoryview:
        head = struct.pack(">hhih", key, 12, 1, -1)
        return memoryview(head + uvarint(tags) + b"\x07\0" * tags)

    assert header.parse_rest(frame(TAGS_MAX), flexible=True)[1] == 11 + 2 * TAGS_MAX
    with pytest.raises(MalformedRequestError, match="101 tagged fields in one place, 100 allowed"):
        header.parse_rest(frame(TAGS_MAX + 1), flexible=True)


@pytest.mark.parametrize(
    ("api", "version", "body"),
    [
        ("heartbeat", 4, b"\x02g" + b"\0\0\0\0" + b"\x02m" + b"\0"),
        ("metadata", 12, b"\x01" + b"\0\0"),
    ],
)
def test_a_body_has_so_many_tagged_fields_in_one_place(
    broker: Any, api: str, version: int, body: bytes
) -> None:
    many = memoryview(body + uvarint(TAGS_MAX + 1) + b"\x07\0" * (TAGS_MAX + 1))
    with pytest.raises(MalformedRequestError, match="101 tagged fields in one place, 100 allowed"):
        if api == "metadata":
            at_once(metadata._decode(version, many))
        else:
            decode_request(api, version, many)


def test_so_many_topics_a_second_are_created(
    call_on: Any, request_of: Any, part_of: Any, broker_with: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_with(auto_create_topics_per_s=3)
    ask = metadata_request(request_of, part_of, 1, [f"new{number}" for number in range(5)])

    def codes() -> list[int]:
        return [int(topic.error_code) for topic in call_on(broker, "metadata", 1, ask).topics]

    assert codes() == [0, 0, 0, 5, 5]
    assert codes() == [0, 0, 0, 5, 5]
    (line,) = caplog.messages
    assert "2 topics that client test at 127.0.0.1 asks for are not created yet" in line
    broker.clock.advance(0.4)
    assert codes() == [0, 0, 0, 0, 5]
    broker.clock.advance(100)
    assert codes() == [0, 0, 0, 0, 0]
