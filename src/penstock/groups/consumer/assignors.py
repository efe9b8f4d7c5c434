"""The assignors of the coordinator say which member of a group shall read which partition. Pure.

Both let a member keep what it has where that is as balanced, since no member reads a partition
while the partition moves. A partition that no member subscribes to is left out.

Kafka's assignors know racks only by their partitions' replicas. Here every agent serves every
partition, in the consumer's own zone where there is an agent, so no assignment is nearer than
another.

Source: KIP-848, "Server-Side Assignor"; `range` and `uniform` are the names of Kafka's own.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.groups.consumer.partitions import NONE, Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member as assignors see it."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    before: Partitions
    """The partitions that the last target gave the member."""

    @property
    def order(self) -> tuple[bool, str]:
        """Sorts members: static ones first, by instance, so that a restarted one has its place."""
        return self.instance_id is None, self.instance_id or self.member_id


Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Partitions]]
"""Takes the members, and partition counts of the topics by id; gives each member's partitions."""


def assign_ranges(
    members: Sequence[Subscriber], counts: Mapping[bytes, int]
) -> dict[str, Partitions]:
    """Give each topic's partitions to its subscribers in adjacent ranges.

    Members that subscribe to the same topics get the same numbers of topics with equally many
    partitions, so that records of one key meet in one member.
    """
    found: dict[str, dict[bytes, frozenset[int]]] = {member.member_id: {} for member in members}
    ordered = sorted(members, key=lambda member: member.order)
    for topic_id in sorted(counts):
        subscribed = [member for member in ordered if topic_id in member.topic_ids]
        start = 0
        for index, member in enumerate(subscribed):
            end = start + _share(counts[topic_id], len(subscribed), index)
            if end > start:
                found[member.member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(found)


def assign_uniformly(
    members: Sequence[Subscriber], counts: Mapping[bytes, int]
) -> dict[str, Partitions]:
    """Give each member as many partitions as any other, as far as subscriptions allow.

    Three steps: members keep what they had, each up to its share; what is left goes to the
    subscriber with the fewest, topics with the fewest subscribers first; then partitions move from
    the most loaded to the least loaded member that subscribes to their topic, until no move helps.
    Where all members subscribe to the same topics the third step finds nothing to do.
    """
    ordered = sorted(members, key=lambda member: member.order)
    subscribed = {
        topic_id: [index for index, member in enumerate(ordered) if topic_id in member.topic_ids]
        for topic_id in sorted(counts)
    }
    held = _keep(ordered, subscribed, counts)
    _give_the_rest(held, subscribed, counts)
    if any(len(indexes) not in {0, len(ordered)} for indexes in subscribed.values()):
        _level(held, subscribed)
    return {
        member.member_id: {
            topic_id: frozenset(numbers) for topic_id, numbers in held[index].items() if numbers
        }
        or NONE
        for index, member in enumerate(ordered)
    }


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors by their names; a group whose members name none uses the first."""

_Held = list[dict[bytes, set[int]]]
"""Partition numbers by topic id, for each member by its place in the order."""


def _share(total: int, parts: int, index: int) -> int:
    """Return the size of one of `parts` parts of `total`; the first ones are one larger."""
    return total // parts + (index < total % parts)


def _load(numbers: Mapping[bytes, set[int]]) -> int:
    return sum(map(len, numbers.values()))


def _keep(
    members: Sequence[Subscriber],
    subscribed: Mapping[bytes, Sequence[int]],
    counts: Mapping[bytes, int],
) -> _Held:
    held: _Held = [{} for _ in members]
    total = sum(counts[topic_id] for topic_id, indexes in subscribed.items() if indexes)
    least, larger = divmod(total, len(members)) if members else (0, 0)
    taken: dict[bytes, set[int]] = {topic_id: set() for topic_id in subscribed}
    # Those that had more than the least share keep one more, as long as there are such shares.
    by_load = sorted(
        range(len(members)),
        key=lambda index: (-sum(map(len, members[index].before.values())), index),
    )
    for index in by_load:
        member = members[index]
        room = least + (larger > 0)
        for topic_id in sorted(member.before):
            if topic_id not in subscribed or topic_id not in member.topic_ids:
                continue
            for number in sorted(member.before[topic_id]):
                if room and number < counts[topic_id] and number not in taken[topic_id]:
                    held[index].setdefault(topic_id, set()).add(number)
                    taken[topic_id].add(number)
                    room -= 1
        larger -= larger > 0 and _load(held[index]) > least
    return held


def _give_the_rest(
    held: _Held, subscribed: Mapping[bytes, Sequence[int]], counts: Mapping[bytes, int]
) -> None:
    taken: dict[bytes, set[int]] = {topic_id: set() for topic_id in subscribed}
    for numbers in held:
        for topic_id, some in numbers.items():
            taken[topic_id] |= some
    loads = [_load(numbers) for numbers in held]
    # One heap for all topics with the same subscribers; nearly always there is one of them.
    heaps: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for topic_id in sorted(subscribed, key=lambda topic_id: (len(subscribed[topic_id]), topic_id)):
        indexes = subscribed[topic_id]
        left = [number for number in range(counts[topic_id]) if number not in taken[topic_id]]
        if not indexes or not left:
            continue
        heap = heaps.setdefault(tuple(indexes), [(loads[index], index) for index in indexes])
        heapq.heapify(heap)
        for number in left:
            while heap[0][0] != loads[heap[0][1]]:
                # Another heap gave this member something meanwhile.
                heapq.heapreplace(heap, (loads[heap[0][1]], heap[0][1]))
            _, index = heap[0]
            held[index].setdefault(topic_id, set()).add(number)
            loads[index] += 1
            heapq.heapreplace(heap, (loads[index], index))


def _level(held: _Held, subscribed: Mapping[bytes, Sequence[int]]) -> None:
    loads = [_load(numbers) for numbers in held]
    # Each move lowers the sum of squares of the loads by 2 or more, so that it ends.
    moved = True
    while moved:
        moved = False
        for topic_id, indexes in subscribed.items():
            if len(indexes) < 2:
                continue
            # Topic by topic: the numbers of one topic are alike.
            while True:
                givers = [index for index in indexes if held[index].get(topic_id)]
                if not givers:
                    break
                most = max(givers, key=lambda index: loads[index])
                least = min(indexes, key=lambda index: loads[index])
                if loads[most] - loads[least] < 2:
                    break
                number = max(held[most][topic_id])
                held[most][topic_id].remove(number)
                held[least].setdefault(topic_id, set()).add(number)
                loads[most] -= 1
                loads[least] += 1
                moved = True
