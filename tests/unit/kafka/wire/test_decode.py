"""Our reader of requests against kio's writer, for every API and version; and hostile bytes."""

import contextlib
import dataclasses
import types
import typing
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.registry import APIS, BY_MODULE
from penstock.kafka.wire import schema
from penstock.kafka.wire.decode import ITEMS_MAX, Cursor, decode, stepped_reader
from penstock.model.steps import at_once
from support.examples import examples
from support.parsing import decode_request
from support.slow import slow_unless

EVERY_VERSION = [
    (api.module, version)
    for api in APIS.values()
    for version in range(api.versions_min, api.versions_max + 1)
]


def is_newest(api: str, version: int) -> bool:
    return version == BY_MODULE[api].versions_max


TAKEN_APART = [
    (api, version)
    for api, version in EVERY_VERSION
    if not (BY_MODULE[api].load() and BY_MODULE[api].raw)
]
"""Those of handlers that don't read their bytes by themselves."""
SAMPLES: dict[str, Any] = {
    "string": "täxt",
    "bytes": b"\x00\xff bytes",
    "records": b"records",
    "bool": True,
    "int8": -3,
    "int16": 1234,
    "int32": -123_456,
    "int64": 1 << 40,
    "uint16": 60_000,
    "float64": 12.5,
    "uuid": uuid.UUID(int=5),
    "timedelta_i32": timedelta(milliseconds=1500),
    "timedelta_i64": timedelta(milliseconds=5_000_000_000),
}


def sample(entity_type: Any, *, nulls: bool) -> Any:
    """An entity whose every field is set; nullable ones to None if `nulls`."""
    values = {}
    for field in dataclasses.fields(entity_type):
        kind, nullable = field.type, False
        if typing.get_origin(kind) is types.UnionType:
            kind, nullable = typing.get_args(kind)[0], True
        if nullable and nulls:
            values[field.name] = None
            continue
        repeated = typing.get_origin(kind) is tuple
        if repeated:
            kind = typing.get_args(kind)[0]
            if typing.get_origin(kind) is types.UnionType:
                kind = typing.get_args(kind)[0]
        if dataclasses.is_dataclass(kind):
            value: Any = sample(kind, nulls=nulls)
        else:
            value = SAMPLES[field.metadata["kafka_type"]]
        values[field.name] = (value, value) if repeated else value
    return entity_type(**values)


def request_type(api: str, version: int) -> Any:
    return schema._entity_type(api, version, "Request")


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(("api", "version"), slow_unless(is_newest, EVERY_VERSION))
def test_a_request_is_read_as_kio_wrote_it(api: str, version: int, nulls: bool) -> None:
    request = sample(request_type(api, version), nulls=nulls)
    body = schema.encode_request(request)
    assert decode_request(api, version, memoryview(body)) == request
    # Bytes behind the last field are ignored, as Kafka does.
    assert decode_request(api, version, memoryview(body + b"\x01\x00")) == request


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(("api", "version"), slow_unless(is_newest, TAKEN_APART))
def test_a_handler_gets_all_that_was_sent_in_the_class_that_it_takes(
    api: str, version: int, nulls: bool
) -> None:
    sent = sample(request_type(api, version), nulls=nulls)
    body = schema.encode_request(sent)
    taken = at_once(schema.taken_steps(api, version, body))
    assert type(taken) is request_type(api, BY_MODULE[api].taken_version(version))
    assert left_out(sent, taken) <= ({"retention_time"} if api == "offset_commit" else set())
    read = stepped_reader(request_type(api, version), type(taken))
    assert read is None or at_once(read(Cursor(body))) == taken


def left_out(sent: Any, taken: Any) -> set[str]:
    """The fields that were sent and aren't in what a handler takes; all others are equal."""
    found = set()
    for field in dataclasses.fields(sent):
        value = getattr(sent, field.name)
        if not hasattr(taken, field.name):
            found.add(field.name)
            continue
        pairs = [(value, getattr(taken, field.name))]
        if isinstance(value, tuple):
            pairs = list(zip(value, pairs[0][1], strict=True))
        for one, other in pairs:
            if dataclasses.is_dataclass(one):
                found |= left_out(one, other)
            else:
                assert one == other
    return found


@settings(max_examples=examples(5))
@given(
    which=st.sampled_from(EVERY_VERSION),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=4),
)
def test_damaged_requests_give_an_entity_or_our_error(
    which: tuple[str, int], cut: float, flips: list[tuple[float, int]]
) -> None:
    kind = request_type(*which)
    body = bytearray(schema.encode_request(sample(kind, nulls=False)))
    for place, value in flips:
        if body:
            body[min(int(place * len(body)), len(body) - 1)] = value
    with contextlib.suppress(MalformedRequestError):
        decode(kind, body[: int(cut * len(body)) + 1])


@given(st.sampled_from(EVERY_VERSION), st.binary(max_size=200))
def test_random_bytes_give_an_entity_or_our_error(which: tuple[str, int], body: bytes) -> None:
    with contextlib.suppress(MalformedRequestError):
        decode(request_type(*which), body)


def test_an_announced_array_length_reserves_nothing() -> None:
    # The bytes that make kio's own reader end the process.
    with pytest.raises(MalformedRequestError, match="4294967294 items"):
        decode_request("create_topics", 7, b"\xff\xff\xff\xff\x0f")


@pytest.mark.slow
def test_items_are_counted_over_the_whole_request() -> None:
    kind = schema.request_types("delete_topics", 1).DeleteTopicsRequest
    allowed = kind(topic_names=("",) * ITEMS_MAX, timeout=timedelta(0))
    assert len(decode(kind, schema.encode_request(allowed)).topic_names) == ITEMS_MAX
    more = kind(topic_names=("",) * (ITEMS_MAX + 1), timeout=timedelta(0))
    with pytest.raises(MalformedRequestError, match="items allowed"):
        decode(kind, schema.encode_request(more))


def test_a_string_that_is_not_utf8_is_malformed() -> None:
    body = schema.encode_request(
        schema.request_types("heartbeat", 0).HeartbeatRequest(
            group_id="aa", generation_id=1, member_id=""
        )
    ).replace(b"aa", b"\xff\xfe")
    with pytest.raises(MalformedRequestError, match="UTF-8"):
        decode_request("heartbeat", 0, body)
