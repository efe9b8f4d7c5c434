"""A fetch that comes again is known for what parsing would make of it, or isn't known."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.wire.fetch_codec import FetchPartition
from penstock.kafka.wire.fetch_repeat import KnownFetch
from support.parsing import parse_fetch

VERSIONS = (4, 5, 9, 11, 12, 16)

Topic = tuple[int, list[tuple[int, int]]]
"""Number, and (partition, fetch offset) of each."""


def body_of(version: int, topics: list[Topic]) -> bytes:
    flexible = version >= 12

    def count(number: int) -> bytes:
        return bytes([number + 1]) if flexible else struct.pack(">i", number)

    body = b"" if version >= 15 else struct.pack(">i", -1)
    body += struct.pack(">iiib", 500, 1, 1 << 20, 0)
    if version >= 7:
        body += struct.pack(">ii", 0, -1)
    body += count(len(topics))
    for topic, partitions in topics:
        if version >= 13:
            body += bytes([topic]) * 16
        else:
            name = f"topic-{'x' * topic}".encode()
            body += (count(len(name)) if flexible else struct.pack(">h", len(name))) + name
        body += count(len(partitions))
        for partition, offset in partitions:
            if flexible:
                # Every seventh has a tag that nobody knows.
                tags = b"\1\5\2ab" if partition % 7 == 6 else b"\0"
                body += struct.pack(">iiqiqi", partition, 0, offset, -1, -1, 1 << 20) + tags
            elif version >= 9:
                body += struct.pack(">iiqqi", partition, 0, offset, -1, 1 << 20)
            elif version >= 5:
                body += struct.pack(">iqqi", partition, offset, -1, 1 << 20)
            else:
                body += struct.pack(">iqi", partition, offset, 1 << 20)
        body += b"\0" * flexible
    if version >= 7:
        body += count(0)
    if version >= 11:
        body += b"\1" if flexible else b"\0\0"
    return body + b"\0" * flexible


TOPICS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1 << 40)), min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=3,
)


def known(version: int, topics: list[Topic]) -> tuple[KnownFetch, list[FetchPartition]]:
    body = body_of(version, topics)
    request = parse_fetch(memoryview(body), version)
    return KnownFetch(body, request.spans), request.partitions


@given(st.sampled_from(VERSIONS), TOPICS, st.data())
def test_other_offsets_are_told(version: int, topics: list[Topic], data: st.DataObject) -> None:
    fetch, _ = known(version, topics)
    moved = [
        (topic, [(partition, data.draw(st.integers(0, 1 << 40))) for partition, _ in partitions])
        for topic, partitions in topics
    ]
    for later in (moved, topics):
        found = fetch.repetition(memoryview(body_of(version, later)))
        assert found is not None
        offsets = [offset for _, partitions in later for _, offset in partitions]
        # Of partitions that are all alike a rotation can't be told from other offsets.
        assert found.first == 0
        assert list(found.offsets) == offsets


@given(
    st.sampled_from(VERSIONS),
    st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
    st.integers(0, 5),
    st.integers(0, 1 << 40),
)
def test_a_rotated_topic_is_known(version: int, order: list[int], by: int, offset: int) -> None:
    fetch, _ = known(version, [(1, [(partition, 0) for partition in order])])
    by %= len(order)
    rotated = order[by:] + order[:by]
    body = body_of(version, [(1, [(partition, offset + partition) for partition in rotated])])
    found = fetch.repetition(memoryview(body))
    assert found is not None
    assert found.first == by
    assert list(found.offsets) == [offset + partition for partition in rotated]


@given(st.sampled_from(VERSIONS), TOPICS, TOPICS, st.data())
def test_whatever_is_known_is_what_parsing_gives(
    version: int, topics: list[Topic], others: list[Topic], data: st.DataObject
) -> None:
    """Changed in any one byte, with its partitions in another order, or another request."""
    fetch, partitions = known(version, topics)
    flipped = bytearray(body_of(version, topics))
    flipped[data.draw(st.integers(0, len(flipped) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    shuffled = [(topic, data.draw(st.permutations(of))) for topic, of in topics]
    for body in (bytes(flipped), body_of(version, shuffled), body_of(version, others)):
        found = fetch.repetition(memoryview(body))
        if found is None:
            continue
        wanted = partitions[found.first :] + partitions[: found.first]
        for partition, offset in zip(wanted, found.offsets, strict=True):
            partition.fetch_offset = offset
        try:
            assert parse_fetch(memoryview(body), version).partitions == wanted
        except MalformedRequestError:
            pytest.fail("what can't be parsed was known")


def test_what_else_is_asked_for_counts_too() -> None:
    """Limits, how long to wait, the isolation level: all that stands beside the partitions."""
    body = body_of(11, [(1, [(0, 7), (1, 7)])])
    request = parse_fetch(memoryview(body), 11)
    fetch = KnownFetch(body, request.spans)
    offsets = {at for span in request.spans for at in range(span.offset, span.offset + 8)}
    for position in range(len(body)):
        other = bytearray(body)
        other[position] ^= 0x40
        assert (fetch.repetition(memoryview(other)) is not None) == (position in offsets)
