"""Produce requests that begin as one before: the same is read of them as by parsing."""

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.connection_state import ConnectionState, ReplySink
from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.handlers import produce
from penstock.kafka.wire.primitives import INT32, string_bytes, uvarint
from penstock.kafka.wire.produce_repeat import HEAD_BYTES_MAX, known_produce
from support.parsing import parse_produce

TOPIC_ID = bytes(range(16))


def body(
    *parts: tuple[int, bytes | None],
    version: int = 12,
    topic: str = "flights",
    acks: int = -1,
    tags: bytes = b"\0",
) -> memoryview:
    """A request of one topic, in a flexible version."""
    out = b"\0" + acks.to_bytes(2, "big", signed=True) + INT32.pack(30_000) + b"\x02"
    out += TOPIC_ID if version >= 13 else string_bytes(topic, flexible=True)
    out += uvarint(len(parts) + 1)
    for partition, records in parts:
        out += INT32.pack(partition) + uvarint(0 if records is None else len(records) + 1)
        out += (records or b"") + tags
    return memoryview(bytearray(out + b"\0\0"))


@given(
    st.sampled_from([9, 12, 13]),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=300)), min_size=2, max_size=2),
)
def test_another_request_of_the_same_topic_is_read_as_by_parsing(
    version: int, parts: list[tuple[int, bytes]]
) -> None:
    first, second = (body(part, version=version) for part in parts)
    known = known_produce(first, version, parse_produce(first, version))
    assert known is not None
    found = known.parse(second, version)
    assert found == parse_produce(second, version)
    assert found is not None and found.topics[0].partitions[0].records is not None
    assert found.topics[0].partitions[0].records.obj is second.obj, "a view of the request"


@pytest.mark.parametrize(
    "other",
    [
        body((1, b"x"), topic="planes_"),
        body((1, b"x"), acks=1),
        body((1, None)),
        body((1, b"x"), (2, b"y")),
        body((1, b"x"), tags=b"\x01\x05\x01z"),
        body((1, b"x" * 200))[:-60],
        body((1, b"x"))[:12],
        memoryview(b""),
    ],
)
def test_what_differs_in_more_than_partition_and_records_is_not_known(other: memoryview) -> None:
    first = body((0, b"abc"))
    known = known_produce(first, 12, parse_produce(first, 12))
    assert known is not None
    assert known.parse(other, 12) is None
    assert known.parse(first, 11) is None


@given(st.data())
def test_of_damaged_requests_nothing_else_is_read_than_by_parsing(data: st.DataObject) -> None:
    first = body((3, b"abc" * 40))
    known = known_produce(first, 12, parse_produce(first, 12))
    assert known is not None
    damaged = bytearray(first)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = memoryview(damaged)[: data.draw(st.integers(0, len(damaged)))]
    for hostile in (memoryview(damaged), cut):
        found = known.parse(hostile, 12)
        if found is not None:
            assert found == parse_produce(hostile, 12)


@pytest.mark.parametrize(
    "request_body",
    [
        body((0, None)),
        body((0, b"x"), (1, b"y")),
        body((0, b"x"), tags=b"\x01\x05\x01\0"),
        body((0, b"x"), topic="t" * HEAD_BYTES_MAX),
    ],
)
def test_requests_of_other_shapes_are_not_remembered(request_body: memoryview) -> None:
    assert known_produce(request_body, 12, parse_produce(request_body, 12)) is None


def look_alike(fill: bytes) -> bytes:
    """A tagged field whose end reads as a partition with three bytes of records would."""
    data = b"\x02" + INT32.pack(0) + uvarint(4) + fill + b"\0"
    return b"\x01\x05" + uvarint(len(data)) + data


def test_a_partition_within_a_tagged_field_is_none() -> None:
    crafted = [body((0, b"abc"), tags=look_alike(fill)) for fill in (b"xyz", b"uvw")]
    known = known_produce(crafted[0], 12, parse_produce(crafted[0], 12))
    found = known and known.parse(crafted[1], 12)
    assert found is None or found == parse_produce(crafted[1], 12)
    assert known is None


def test_a_length_that_is_longer_than_it_needs_to_be_is_not_known() -> None:
    """What lacks its own tagged fields is as long, then, as a whole one."""
    whole = bytes(body((0, b"ab\0"), topic="flights"))
    name = string_bytes("flights", flexible=True)
    longer = memoryview(whole.replace(name, b"\x88\x00" + name[1:])[:-1])
    assert parse_produce(longer, 12).topics[0].name == "flights"
    assert known_produce(longer, 12, parse_produce(longer, 12)) is None


def test_a_request_of_a_version_that_is_not_flexible_is_not_remembered() -> None:
    old = memoryview(
        b"\xff\xff"
        b"\xff\xff"
        + INT32.pack(30_000)
        + INT32.pack(1)
        + b"\0\1t"
        + INT32.pack(1)
        + INT32.pack(0)
        + INT32.pack(3)
        + b"\0\0\0"
    )
    assert known_produce(old, 8, parse_produce(old, 8)) is None
    with pytest.raises(MalformedRequestError):
        parse_produce(old, 12)


def test_a_connection_remembers_how_its_last_request_began() -> None:
    connection = ConnectionState(1, cast(ReplySink, None))
    remembered = []
    for request_body in (body((0, b"x")), body((5, b"yz")), body((1, None)), body((1, b"x"))):
        assert produce._parse(connection, request_body, 12) == parse_produce(request_body, 12)
        remembered.append(connection.last_produce)
    first, second, third, fourth = remembered
    assert first is second is not None, "parsed anew though it begins as the one before"
    assert third is None
    assert fourth is not None
