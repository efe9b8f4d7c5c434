"""Columns of keys go to the partitions that single keys go to."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.partitions import partition_of_keys
from support.twins.murmur import partition_of_key


@given(st.lists(st.none() | st.binary(max_size=40)), st.integers(1, 1000), st.integers(0, 3))
def test_the_kernel_equals_the_twin(keys: list[bytes | None], count: int, skipped: int) -> None:
    column = pa.array(keys, pa.binary())[skipped:]
    assert partition_of_keys(column, count).tolist() == [
        -1 if key is None else partition_of_key(key, count) for key in keys[skipped:]
    ]


def test_strings_are_hashed_as_their_utf8() -> None:
    column = pa.array(["foobar", "größer"], pa.string())
    assert partition_of_keys(column, 50).tolist() == [
        partition_of_key(b"foobar", 50),
        partition_of_key("größer".encode(), 50),
    ]
