"""Partition keys: topic key and partition in one integer, and back."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import (
    PARTITION_COUNT_MAX,
    TopicKey,
    partition_key,
    partition_of,
    topic_key_of,
)


@given(st.integers(1, 1 << 40), st.integers(0, PARTITION_COUNT_MAX))
def test_a_partition_key_holds_both_numbers_and_fits_a_rowid(topic: int, partition: int) -> None:
    key = partition_key(TopicKey(topic), partition)
    assert (topic_key_of(key), partition_of(key)) == (topic, partition)
    assert 0 <= key < 1 << 63


@given(st.integers(1, 1 << 40), st.integers(0, PARTITION_COUNT_MAX - 1))
def test_keys_of_a_topic_are_next_to_one_another(topic: int, partition: int) -> None:
    first = partition_key(TopicKey(topic), partition)
    assert partition_key(TopicKey(topic), partition + 1) == first + 1
