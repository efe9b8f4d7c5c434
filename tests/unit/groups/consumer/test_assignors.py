"""Assignors give each partition to one subscriber, evenly, and move few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.consumer.assignors import (
    ASSIGNORS,
    Subscriber,
    assign_ranges,
    assign_uniformly,
)
from penstock.groups.consumer.partitions import NONE, Partitions, count, minus

TOPICS = [bytes([number]) * 16 for number in range(4)]


def subscriber(
    member_id: str,
    topics: st.SearchStrategy[frozenset[bytes]] | frozenset[bytes],
    before: Partitions,
) -> Subscriber:
    assert isinstance(topics, frozenset)
    return Subscriber(member_id=member_id, instance_id=None, topic_ids=topics, before=before)


counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), max_size=4)
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(counts=counts, topics=subscriptions, data=st.data())
def test_each_partition_has_one_subscriber(
    name: str, counts: dict[bytes, int], topics: list[frozenset[bytes]], data: st.DataObject
) -> None:
    before = data.draw(
        st.lists(
            st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 15), min_size=1)),
            min_size=len(topics),
            max_size=len(topics),
        )
    )
    members = [
        subscriber(f"m{index}", some, had)
        for index, (some, had) in enumerate(zip(topics, before, strict=True))
    ]
    found = ASSIGNORS[name](members, counts)
    assert set(found) == {member.member_id for member in members}
    seen = set()
    for member in members:
        for topic_id, numbers in found[member.member_id].items():
            assert topic_id in member.topic_ids
            assert numbers
            for number in numbers:
                assert (topic_id, number) not in seen
                seen.add((topic_id, number))
    assert seen == {
        (topic_id, number)
        for topic_id, size in counts.items()
        for number in range(size)
        if any(topic_id in some for some in topics)
    }


@given(counts=counts, size=st.integers(1, 7))
def test_uniform_shares_differ_by_one_at_most_where_all_subscribe_alike(
    counts: dict[bytes, int], size: int
) -> None:
    members = [subscriber(f"m{index}", frozenset(counts), NONE) for index in range(size)]
    loads = [count(numbers) for numbers in assign_uniformly(members, counts).values()]
    assert max(loads) - min(loads) <= 1


@given(counts=counts, topics=subscriptions)
def test_no_move_makes_a_uniform_assignment_more_even(
    counts: dict[bytes, int], topics: list[frozenset[bytes]]
) -> None:
    members = [subscriber(f"m{index}", some, NONE) for index, some in enumerate(topics)]
    found = assign_uniformly(members, counts)
    for giver in members:
        for taker in members:
            movable = taker.topic_ids & set(found[giver.member_id])
            if movable:
                assert count(found[giver.member_id]) - count(found[taker.member_id]) <= 1


@given(counts=counts, size=st.integers(2, 7))
def test_uniform_moves_no_more_than_it_must(counts: dict[bytes, int], size: int) -> None:
    before = assign_uniformly(
        [subscriber(f"m{index}", frozenset(counts), NONE) for index in range(size)], counts
    )
    again = [subscriber(name, frozenset(counts), had) for name, had in before.items()]
    assert assign_uniformly(again, counts) == before
    # One comes: only its share moves.
    more = assign_uniformly([*again, subscriber("new", frozenset(counts), NONE)], counts)
    moved = sum(count(minus(had, more[name])) for name, had in before.items())
    assert moved == count(more["new"])
    # One goes: only its share moves.
    fewer = assign_uniformly(again[1:], counts)
    assert all(not minus(before[name], had) for name, had in fewer.items())


def test_ranges_are_adjacent_and_alike_for_topics_of_one_size() -> None:
    both = frozenset(TOPICS[:2])
    members = [subscriber(name, both, NONE) for name in ("a", "b", "c")]
    found = assign_ranges(members, dict.fromkeys(TOPICS[:2], 7))
    for topic_id in both:
        assert [sorted(found[name][topic_id]) for name in ("a", "b", "c")] == [
            [0, 1, 2],
            [3, 4],
            [5, 6],
        ]


def test_a_static_member_keeps_its_range_under_another_id() -> None:
    def members(first: str) -> list[Subscriber]:
        return [
            Subscriber(member_id=first, instance_id="i", topic_ids=frozenset(TOPICS), before=NONE),
            Subscriber(member_id="m", instance_id=None, topic_ids=frozenset(TOPICS), before=NONE),
        ]

    counts = {TOPICS[0]: 4}
    assert assign_ranges(members("a"), counts)["a"] == assign_ranges(members("z"), counts)["z"]
