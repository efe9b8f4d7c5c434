"""Subscriptions and assignments read back as written; ranges give each partition to one member."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.client.assignment import (
    assign_ranges,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.cli.client.offsets import TopicPartition
from penstock.model.errors import CorruptDataError

names = st.text(min_size=1, max_size=5)
partitions = st.builds(TopicPartition, names, st.integers(min_value=0, max_value=1000))


@given(st.lists(names, unique=True))
def test_a_subscription_reads_back(topics: list[str]) -> None:
    assert decode_subscription(encode_subscription(topics)) == topics


@given(st.lists(partitions, unique=True))
def test_an_assignment_reads_back(assigned: list[TopicPartition]) -> None:
    assert sorted(decode_assignment(encode_assignment(assigned))) == sorted(assigned)


@given(st.binary(max_size=60))
def test_any_other_bytes_give_our_error_only(data: bytes) -> None:
    for decode in (decode_assignment, decode_subscription):
        with contextlib.suppress(CorruptDataError):
            decode(data)


@given(
    st.dictionaries(names, st.lists(st.sampled_from("abc"), unique=True), min_size=1),
    st.dictionaries(st.sampled_from("abc"), st.integers(min_value=0, max_value=20)),
)
def test_each_partition_goes_to_one_member_that_wants_its_topic(
    subscriptions: dict[str, list[str]], counts: dict[str, int]
) -> None:
    assigned = assign_ranges(subscriptions, counts)
    given_away = [partition for rows in assigned.values() for partition in rows]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert sorted(given_away) == sorted(
        TopicPartition(topic, number) for topic in wanted for number in range(counts.get(topic, 0))
    )
    for member, rows in assigned.items():
        assert {partition.topic for partition in rows} <= set(subscriptions[member])
    for topic in wanted:
        shares = [
            sum(partition.topic == topic for partition in assigned[member])
            for member, topics in subscriptions.items()
            if topic in topics
        ]
        assert max(shares) - min(shares) <= 1


def test_a_cut_assignment_is_refused() -> None:
    with pytest.raises(CorruptDataError):
        decode_assignment(encode_assignment([TopicPartition("t", 1)])[:9])
