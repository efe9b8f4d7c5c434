"""Partition transforms as text, and rows by them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.tables.columns import TIMESTAMP, raw_schema
from penstock.pipeline.tables.partitioning import (
    Transform,
    parse_transforms,
    partition_spec,
    split_rows,
)


def test_transforms_by_their_text() -> None:
    assert parse_transforms("day(timestamp)") == (Transform(kind="day", column="timestamp"),)
    assert parse_transforms(" bucket[16]( key ) , identity(a.b)") == (
        Transform(kind="bucket", column="key", size=16),
        Transform(kind="identity", column="a.b"),
    )
    assert parse_transforms("none") == parse_transforms("") == ()
    renamed = parse_transforms("day(timestamp)", rename={"timestamp": "kafka_timestamp"})
    assert renamed[0].column == "kafka_timestamp"


@pytest.mark.parametrize(
    "text",
    ["day", "day()", "bucket(key)", "day[3](t)", "week(t)", "day(t),", "day(t) x", ","],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_transforms(text)


@pytest.mark.parametrize("text", ["day(nothing)", "day(key)", "day(timestamp), hour(timestamp)"])
def test_transforms_that_a_table_can_t_have(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        partition_spec(raw_schema(), parse_transforms(text))


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=3), st.none() | st.integers(-(10**14), 10**14)),
        max_size=50,
    )
)
def test_each_row_is_in_the_part_of_its_own_values(
    records: list[tuple[bytes | None, int | None]],
) -> None:
    schema = raw_schema()
    spec = partition_spec(schema, parse_transforms("bucket[3](key), day(timestamp)"))
    rows = pa.table(
        {
            "key": pa.array([key for key, _ in records], pa.binary()),
            "timestamp": pa.array([time for _, time in records], pa.int64()).cast(TIMESTAMP),
            "number": pa.array(range(len(records)), pa.int64()),
        }
    )
    seen: list[int] = []
    keys: set[tuple[object, object]] = set()
    for key, part in split_rows(rows, spec=spec, schema=schema):
        assert key is not None
        values = key.partition[0], key.partition[1]
        assert values not in keys
        keys.add(values)
        for number in part.column("number").to_pylist():
            seen.append(number)
            record_key, time = records[number]
            assert (values[0] is None) == (record_key is None)
            assert values[1] == (None if time is None else time // 86_400_000_000)
    assert sorted(seen) == list(range(len(records)))


def test_a_table_without_partitions_is_one_part() -> None:
    schema = raw_schema()
    rows = pa.table({"key": pa.array([b"a"])})
    spec = partition_spec(schema, ())
    assert [part.num_rows for _, part in split_rows(rows, spec=spec, schema=schema)] == [1]
    assert list(split_rows(rows.slice(0, 0), spec=spec, schema=schema)) == []
