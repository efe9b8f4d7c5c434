"""Sets of partitions, and their stored form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.consumer.partitions import (
    Partitions,
    common,
    count,
    minus,
    pack,
    union,
    unpack,
)

sets = st.dictionaries(
    st.binary(min_size=16, max_size=16), st.frozensets(st.integers(0, 50), min_size=1), max_size=3
)


def items(partitions: Partitions) -> set[tuple[bytes, int]]:
    return {(topic_id, number) for topic_id, numbers in partitions.items() for number in numbers}


@given(left=sets, right=sets, mixes=st.booleans())
def test_they_are_sets_of_pairs(left: Partitions, right: Partitions, mixes: bool) -> None:
    right = {**left, **right} if mixes else right
    assert items(minus(left, right)) == items(left) - items(right)
    assert items(common(left, right)) == items(left) & items(right)
    assert items(union(left, right)) == items(left) | items(right)
    assert count(left) == len(items(left))
    for found in (minus(left, right), common(left, right), union(left, right)):
        assert all(found.values()), "a topic without partitions is not in the map"


@given(partitions=sets)
def test_the_stored_form_gives_them_back(partitions: Partitions) -> None:
    assert unpack(pack(partitions)) == partitions
    assert pack(partitions) == pack(dict(reversed(partitions.items())))


def test_adjacent_numbers_take_one_span() -> None:
    assert pack({b"t" * 16: frozenset(range(10_000))}) == [(b"t" * 16, [0, 10_000])]
