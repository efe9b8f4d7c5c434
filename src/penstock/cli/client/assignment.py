"""The consumer protocol inside JoinGroup and SyncGroup: subscriptions, assignments, ranges. Pure.

Version 0 of both schemas, which every member understands.
Source: ConsumerProtocolSubscription and ConsumerProtocolAssignment of the Kafka protocol;
the range assignor as described in Kafka's documentation of `partition.assignment.strategy`.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.cli.client.offsets import TopicPartition
from penstock.model.errors import CorruptDataError

RANGE: Final = "range"
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


def encode_subscription(topics: Sequence[str]) -> bytes:
    """A member's topics, without user data."""
    names = b"".join(_text(name) for name in topics)
    return _INT16.pack(0) + _INT32.pack(len(topics)) + names + _INT32.pack(-1)


def decode_subscription(data: bytes) -> list[str]:
    """A member's topics; later versions' further fields are passed over.

    Raises:
        CorruptDataError: it is no subscription.
    """
    try:
        topics, position = [], 6
        for _ in range(_INT32.unpack_from(data, 2)[0]):
            name, position = _read_text(data, position)
            topics.append(name)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptDataError("read", "a member's subscription", str(error)) from error
    return topics


def encode_assignment(partitions: Sequence[TopicPartition]) -> bytes:
    """A member's partitions, without user data."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    parts = [_INT16.pack(0), _INT32.pack(len(by_topic))]
    for name, numbers in by_topic.items():
        parts += [_text(name), _INT32.pack(len(numbers)), *map(_INT32.pack, numbers)]
    parts.append(_INT32.pack(-1))
    return b"".join(parts)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """A member's partitions. Raises: CorruptDataError."""
    try:
        partitions, position = [], 6
        for _ in range(_INT32.unpack_from(data, 2)[0]):
            name, position = _read_text(data, position)
            count = _INT32.unpack_from(data, position)[0]
            position += 4
            for _ in range(count):
                partitions.append(TopicPartition(name, _INT32.unpack_from(data, position)[0]))
                position += 4
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptDataError("read", "a member's assignment", str(error)) from error
    return partitions


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Give each member a range of each topic's partitions; the first ones get the odd ones.

    Args:
        subscriptions: topics by member id.
        partition_counts: by topic; topics that are not in it have no partitions.
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    topics = sorted({topic for topics in subscriptions.values() for topic in topics})
    for topic in topics:
        members = sorted(member for member, names in subscriptions.items() if topic in names)
        each, odd = divmod(partition_counts.get(topic, 0), len(members))
        start = 0
        for index, member in enumerate(members):
            end = start + each + (index < odd)
            assigned[member] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return assigned


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    start = position + 2
    end = start + _INT16.unpack_from(data, position)[0]
    if not start <= end <= len(data):
        raise struct.error(f"text runs past the end of {len(data)} bytes")
    return data[start:end].decode(), end
