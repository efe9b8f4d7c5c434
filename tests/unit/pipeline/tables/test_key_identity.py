"""What tells keys apart."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.tables.key_identity import check_key, key_identity

KIND = pa.struct(
    [
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("number", pa.int32()),
        pa.field("inner", pa.struct([pa.field("text", pa.string())])),
    ]
)
# Few characters, among them those that the written form uses itself.
TEXTS = st.none() | st.text("1:-", max_size=3)
KEYS = st.fixed_dictionaries(
    {
        "text": TEXTS,
        "bytes": st.none() | st.binary(max_size=2),
        "number": st.none() | st.integers(-11, 11),
        "inner": st.fixed_dictionaries({"text": TEXTS}),
    }
)


@pytest.mark.slow
@given(st.lists(KEYS, max_size=8))
def test_keys_are_equal_exactly_if_their_fields_are(keys: list[dict[str, Any]]) -> None:
    found = key_identity(pa.chunked_array([pa.array(keys, KIND)])).to_pylist()
    for one, first in enumerate(keys):
        for other, second in enumerate(keys):
            assert (found[one] == found[other]) == (first == second)


def test_a_null_struct_is_not_one_of_nulls() -> None:
    kind = pa.struct([("id", pa.int64()), ("sub", pa.struct([("a", pa.string())]))])
    keys = pa.array([{"id": 1, "sub": None}, {"id": 1, "sub": {"a": None}}], kind)
    assert len(key_identity(pa.chunked_array([keys])).unique()) == 2
    # Null as a whole it stays, as scalars do; and slices are told apart as what they are cut from.
    found = key_identity(pa.chunked_array([pa.array([None, *keys.to_pylist()], kind)[1:]]))
    assert found == key_identity(pa.chunked_array([keys]))
    assert key_identity(pa.chunked_array([pa.array([None], kind)])).to_pylist() == [None]


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Of a type, null among them."""
    if pa.types.is_struct(kind):
        return st.none() | st.fixed_dictionaries({f.name: values_of(f.type) for f in kind})
    if pa.types.is_boolean(kind):
        return st.none() | st.booleans()
    return TEXTS


STRUCTS = st.recursive(
    st.sampled_from([pa.string(), pa.bool_()]),
    lambda kinds: st.lists(kinds, min_size=1, max_size=3).map(
        lambda fields: pa.struct([(str(n), kind) for n, kind in enumerate(fields)])
    ),
    max_leaves=5,
)


@given(st.data())
def test_nested_keys_are_distinct_exactly_if_their_identities_are(data: st.DataObject) -> None:
    kind = data.draw(STRUCTS)
    keys = data.draw(st.lists(values_of(kind), max_size=8))
    # In two chunks, since equal keys come in different ones.
    chunks = [pa.array(keys[:3], kind), pa.array(keys[3:], kind)]
    found = key_identity(pa.chunked_array(chunks)).to_pylist()
    for one, first in enumerate(keys):
        for other, second in enumerate(keys):
            assert (found[one] == found[other]) == (first == second)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.date32(), [date(2024, 2, 29), date(2024, 3, 1)]),
        (pa.time64("us"), [time(1, 2, 3, 4), time(1, 2, 3, 5)]),
        (pa.timestamp("us", tz="UTC"), [datetime(2024, 1, 1, tzinfo=UTC)]),
        (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("15.00")]),
        (pa.binary(2), [b"ab", b"\xff\x00"]),
        (pa.bool_(), [True, False]),
        (pa.int64(), [2**62, -(2**62)]),
    ],
)
def test_fields_of_all_types_that_keys_may_have(kind: Any, values: list[Any]) -> None:
    keys = [{"a": value, "b": 1} for value in [*values, None]]
    column = pa.array(keys, pa.struct([pa.field("a", kind), pa.field("b", pa.int32())]))
    found = key_identity(pa.chunked_array([column, column])).to_pylist()
    assert len(set(found)) == len(keys)
    assert found[: len(keys)] == found[len(keys) :]


def test_scalars_and_bytes_are_themselves() -> None:
    for kind, values in ((pa.binary(), [b"a", b""]), (pa.int64(), [1]), (pa.string(), [""])):
        column = pa.chunked_array([pa.array(values, kind)])
        assert key_identity(column) is column


def key_of(*fields: NestedField, required: bool = True) -> Schema:
    return Schema(NestedField(1, "kafka_key", StructType(*fields), required=required))


def test_what_rows_are_bucketed_by_and_told_apart_by() -> None:
    maybe = NestedField(2, "maybe", StringType(), required=False)
    number = NestedField(3, "number", LongType(), required=True)
    text = NestedField(4, "text", StringType(), required=True)
    assert check_key(key_of(number, text), table="t") == ("kafka_key.number", [3, 4])
    assert check_key(key_of(maybe, number), table="t") == ("kafka_key.number", [])
    inner = NestedField(5, "inner", StructType(text), required=True)
    assert check_key(key_of(inner), table="t") == ("kafka_key.inner.text", [4])
    plain = Schema(NestedField(1, "kafka_key", IntegerType(), required=True))
    assert check_key(plain, table="t") == ("kafka_key", [1])
    # Bytes of a table whose keys have no schema are optional, though no row lacks them.
    raw = Schema(NestedField(1, "kafka_key", BinaryType(), required=False))
    assert check_key(raw, table="t")[0] == "kafka_key"


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (NestedField(2, "a", DoubleType(), required=True), "can't identify rows"),
        (
            NestedField(2, "a", ListType(3, LongType(), element_required=True), required=True),
            "identify",
        ),
        (NestedField(2, "a", LongType(), required=False), "no field of its key can be bucketed"),
    ],
)
def test_keys_that_tell_no_rows_apart(field: NestedField, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        check_key(key_of(field), table="t")
