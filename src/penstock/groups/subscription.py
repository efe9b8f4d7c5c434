"""Reads and writes the bytes of the embedded consumer protocol: subscriptions of JoinGroup, and
assignments of SyncGroup. Pure.

A subscription, of which every version begins as the one before:

| size | field |
| --- | --- |
| 2 | version, not negative |
| 4 | topic count |
| 2 + n each | topic name: length, UTF-8 |
| 4 + n | user data (bytes; not looked at) |
| | from version 1 on: the partitions that the member owns, as in an assignment |
| 4 | from version 2 on: the generation in which it got them |
| 2 + n | from version 3 on: its rack; length -1: none |

An assignment:

| size | field |
| --- | --- |
| 2 | version, not negative |
| 4 | topic count |
| each | topic name: length (2), UTF-8; partition count (4); partition numbers (4 each) |
| 4 + n | user data |

Source: ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json of Kafka; KIP-429 for
the rule that versions only append.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

CONSUMER_PROTOCOL_TYPE: Final = "consumer"

PartitionsByName = Mapping[str, Sequence[int]]


class MemberSubscription(NamedTuple):
    """The topics that a member asks for, and the partitions that it says it has."""

    topics: frozenset[str]
    owned: PartitionsByName
    rack: str = ""


class MemberAssignment(NamedTuple):
    """The partitions that a member may read, and the assignor's own data besides."""

    partitions: PartitionsByName
    user_data: bytes = b""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics' names; None when the bytes are not a consumer's subscription."""
    try:
        version, topics, _ = _topics(metadata)
    except _MALFORMED:
        return None
    return topics if version >= 0 else None


def read_subscription(metadata: bytes) -> MemberSubscription | None:
    """The whole of it; None when the bytes are not a consumer's subscription."""
    try:
        version, topics, position = _topics(metadata)
        if version < 1:
            return MemberSubscription(topics, {})
        (length,) = struct.unpack_from(">i", metadata, position)
        owned, position = _partitions(metadata, position + 4 + max(0, length))
        has_rack = version >= 3 and metadata[position + 4 : position + 6] != b"\xff\xff"
        rack = _name(metadata, position + 4)[0] if has_rack else ""
    except _MALFORMED:
        return None
    return MemberSubscription(topics, owned, rack)


def read_assignment(body: bytes) -> MemberAssignment | None:
    """The whole of it; without bytes it is empty. None when the bytes are not an assignment."""
    if not body:
        return MemberAssignment({})
    try:
        found, position = _partitions(body, 2)
        (length,) = struct.unpack_from(">i", body, position)
    except _MALFORMED:
        return None
    return MemberAssignment(found, body[position + 4 : position + 4 + max(0, length)])


def write_assignment(assigned: PartitionsByName) -> bytes:
    """Return an assignment, which every version of a consumer reads."""
    parts = [struct.pack(">hi", 0, len(assigned))]
    for topic, numbers in sorted(assigned.items()):
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name)
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *sorted(numbers)))
    return b"".join([*parts, struct.pack(">i", -1)])


class _MalformedError(Exception):
    """A number of the bytes is impossible."""


_MALFORMED: Final = (struct.error, UnicodeDecodeError, _MalformedError)


def _topics(metadata: bytes) -> tuple[int, frozenset[str], int]:
    version, count = struct.unpack_from(">hi", metadata)
    if version < 0 or count < 0:
        raise _MalformedError
    position = 6
    names = set()
    for _ in range(count):
        name, position = _name(metadata, position)
        names.add(name)
    return version, frozenset(names), position


def _partitions(body: bytes, position: int) -> tuple[dict[str, tuple[int, ...]], int]:
    (count,) = struct.unpack_from(">i", body, position)
    position += 4
    if count < 0:
        raise _MalformedError
    found: dict[str, tuple[int, ...]] = {}
    for _ in range(count):
        name, position = _name(body, position)
        (numbers,) = struct.unpack_from(">i", body, position)
        position += 4
        if not 0 <= numbers <= (len(body) - position) // 4:
            raise _MalformedError
        found[name] = struct.unpack_from(f">{numbers}i", body, position)
        position += 4 * numbers
    return found, position


def _name(body: bytes, position: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", body, position)
    end = position + 2 + length
    if length < 0 or end > len(body):
        raise _MalformedError
    return body[position + 2 : end].decode(), end
