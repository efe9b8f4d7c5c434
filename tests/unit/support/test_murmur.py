"""Keys go to the partition that Kafka's own clients give them."""

import pytest
from aiokafka.partitioner import murmur2 as reference
from hypothesis import given
from hypothesis import strategies as st

from support.twins.murmur import murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"abc", 479470107),
    ],
)
def test_the_hash_is_that_of_the_java_client(key: bytes, signed: int) -> None:
    """Source: the values that Apache Kafka's own tests of its partitioner expect."""
    assert murmur2(key) == signed & 0xFFFFFFFF


@given(st.binary(max_size=40))
def test_the_hash_equals_another_clients(key: bytes) -> None:
    assert murmur2(key) == reference(key) & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(min_value=1, max_value=1000))
def test_a_partition_exists(key: bytes, count: int) -> None:
    assert 0 <= partition_of_key(key, count) < count
