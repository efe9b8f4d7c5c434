"""Sets of partitions by topic id: what a member has, is to have, or is to give up. Pure.

A topic without partitions is not in the map, so that equal sets are equal maps. Streams groups have
sets of tasks, by subtopology's name in place of the topic's id.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

Partitions = Mapping[bytes, frozenset[int]]
"""Partition numbers by topic id (16 bytes)."""
K = TypeVar("K", bytes, str)

NONE: Final[Partitions] = {}


def of(items: Iterable[tuple[K, Iterable[int]]]) -> Mapping[K, frozenset[int]]:
    """Make a set of (topic id, partition numbers) pairs; a topic may come several times."""
    found: dict[K, frozenset[int]] = {}
    for topic_id, numbers in items:
        some = frozenset(numbers)
        if some:
            found[topic_id] = found.get(topic_id, frozenset()) | some
    return found


def minus(
    left: Mapping[K, frozenset[int]], right: Mapping[K, frozenset[int]]
) -> Mapping[K, frozenset[int]]:
    """Return what is in `left` and not in `right`."""
    return of(
        (topic_id, numbers - right.get(topic_id, frozenset())) for topic_id, numbers in left.items()
    )


def common(
    left: Mapping[K, frozenset[int]], right: Mapping[K, frozenset[int]]
) -> Mapping[K, frozenset[int]]:
    """Return what is in both."""
    return of(
        (topic_id, numbers & right.get(topic_id, frozenset())) for topic_id, numbers in left.items()
    )


def union(
    left: Mapping[K, frozenset[int]], right: Mapping[K, frozenset[int]]
) -> Mapping[K, frozenset[int]]:
    """Return what is in either."""
    found = dict(left)
    for key, numbers in right.items():
        found[key] = found.get(key, frozenset()) | numbers
    return found


def count(partitions: Mapping[K, frozenset[int]]) -> int:
    """Count partitions of all topics."""
    return sum(len(numbers) for numbers in partitions.values())


def pack(partitions: Mapping[K, frozenset[int]]) -> list[tuple[K, list[int]]]:
    """Return the stored form; equal sets have equal forms.

    Topics come by id, each with its numbers in pairs [start, end) of adjacent ones. So a member
    with a range of 10,000 partitions takes a few bytes.
    """
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


def unpack(packed: Sequence[tuple[K, Sequence[int]]]) -> Mapping[K, frozenset[int]]:
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
