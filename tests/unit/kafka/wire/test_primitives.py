"""Primitive types as bytes, against kio's readers."""

from hypothesis import given
from hypothesis import strategies as st
from kio.serial import readers

from penstock.kafka.wire import primitives as wire
from penstock.kafka.wire.decode import Cursor


@given(st.integers(0, (1 << 32) - 1))
def test_unsigned_varints(value: int) -> None:
    data = wire.uvarint(value)
    assert readers.read_unsigned_varint(data, 0) == (value, len(data))
    assert Cursor(data).uvarint() == value


@given(st.one_of(st.none(), st.text(max_size=300)))
def test_nullable_strings(text: str | None) -> None:
    compact = wire.string_bytes(text, flexible=True)
    assert readers.read_compact_string_nullable(compact, 0) == (text, len(compact))
    legacy = wire.string_bytes(text, flexible=False)
    assert readers.read_nullable_legacy_string(legacy, 0) == (text, len(legacy))


@given(st.integers(0, 1 << 20))
def test_array_lengths(count: int) -> None:
    compact = wire.count_bytes(count, flexible=True)
    assert readers.read_compact_array_length(compact, 0) == (count, len(compact))
    legacy = wire.count_bytes(count, flexible=False)
    assert readers.read_legacy_array_length(legacy, 0) == (count, len(legacy))
