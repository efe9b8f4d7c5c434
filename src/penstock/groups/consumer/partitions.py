"""Sets of partitions by topic id: what a member has, is to have, or is to give up. Pure.

A topic without partitions is not in the map, so that equal sets are equal maps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

Partitions = Mapping[bytes, frozenset[int]]
"""Partition numbers by topic id (16 bytes)."""

NONE: Final[Partitions] = {}


def of(items: Iterable[tuple[bytes, Iterable[int]]]) -> Partitions:
    """Make a set of (topic id, partition numbers) pairs; a topic may come several times."""
    found: dict[bytes, frozenset[int]] = {}
    for topic_id, numbers in items:
        some = frozenset(numbers)
        if some:
            found[topic_id] = found.get(topic_id, frozenset()) | some
    return found


def minus(left: Partitions, right: Partitions) -> Partitions:
    """Return what is in `left` and not in `right`."""
    return of(
        (topic_id, numbers - right.get(topic_id, frozenset())) for topic_id, numbers in left.items()
    )


def common(left: Partitions, right: Partitions) -> Partitions:
    """Return what is in both."""
    return of(
        (topic_id, numbers & right.get(topic_id, frozenset())) for topic_id, numbers in left.items()
    )


def union(left: Partitions, right: Partitions) -> Partitions:
    """Return what is in either."""
    return of((*left.items(), *right.items()))


def count(partitions: Partitions) -> int:
    """Count partitions of all topics."""
    return sum(len(numbers) for numbers in partitions.values())


Packed = Sequence[tuple[bytes, Sequence[int]]]
"""The stored form: topics by id, each with its numbers in pairs [start, end) of adjacent ones. So a
member with a range of 10,000 partitions takes a few bytes."""


def pack(partitions: Partitions) -> list[tuple[bytes, list[int]]]:
    """Return the stored form; equal sets have equal forms."""
    packed = []
    for topic_id in sorted(partitions):
        spans: list[int] = []
        for number in sorted(partitions[topic_id]):
            if spans and spans[-1] == number:
                spans[-1] = number + 1
            else:
                spans += (number, number + 1)
        packed.append((topic_id, spans))
    return packed


def unpack(packed: Packed) -> Partitions:
    """The inverse of `pack`."""
    return of(
        (
            topic_id,
            frozenset(
                number
                for at in range(0, len(spans), 2)
                for number in range(spans[at], spans[at + 1])
            ),
        )
        for topic_id, spans in packed
    )
