"""What is pushed must never leave out a row that the filters take: checked against them all."""

import operator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from penstock.pipeline.connector.read_filters import Pushed, push

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OPERATORS = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}
TOPICS = ("a", "b", "c")
ROWS = [
    {"topic": topic, "partition": partition, "offset": offset, "timestamp": ms, "value": b""}
    for topic in TOPICS
    for partition in range(3)
    for offset, ms in enumerate((10, 30, 20, 40))
]


def at(ms: float) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def holds(one, row) -> bool:
    """What SQL says of a row, which has no nulls."""
    if isinstance(one, Not):
        if isinstance(one.child, In) and None in one.child.value:
            return False
        return not holds(one.child, row)
    value = row[one.attribute[0]]
    if one.attribute[0] == "timestamp":
        value = at(value)
    if isinstance(one, IsNull):
        return False
    if isinstance(one, IsNotNull):
        return True
    if isinstance(one, In):
        return value in [v for v in one.value if v is not None]
    if isinstance(one, StringStartsWith):
        return value.startswith(one.value)
    return OPERATORS[type(one)](value, one.value)


def reads(pushed: Pushed, row) -> bool:
    """Whether a read that heeds what was pushed has the row."""
    if not pushed.takes(row["topic"], row["partition"]):
        return False
    if not pushed.start <= row["offset"] < pushed.end:
        return False
    if pushed.time_ms is None:
        return True
    same = [r for r in ROWS if (r["topic"], r["partition"]) == (row["topic"], row["partition"])]
    first = next((r["offset"] for r in same if r["timestamp"] >= pushed.time_ms), None)
    return first is not None and row["offset"] >= first


def comparisons(column, values):
    return st.one_of(
        [st.builds(kind, st.just((column,)), values) for kind in OPERATORS]
        + [st.builds(In, st.just((column,)), st.lists(values | st.none(), max_size=3).map(tuple))]
        + [st.builds(IsNotNull, st.just((column,))), st.builds(IsNull, st.just((column,)))]
    )


positives = st.one_of(
    comparisons("topic", st.sampled_from((*TOPICS, "d"))),
    comparisons("partition", st.integers(-1, 4)),
    comparisons("offset", st.integers(-1, 5)),
    comparisons("timestamp", st.floats(-5, 50).map(at)),
    st.builds(StringStartsWith, st.just(("topic",)), st.sampled_from(TOPICS)),
)
filters = st.lists(positives | positives.map(Not), max_size=4)


@given(filters)
def test_read_and_then_checked_gives_what_the_filters_say(given_filters):
    pushed, left = push(given_filters)
    wanted = [row for row in ROWS if all(holds(one, row) for one in given_filters)]
    read = [row for row in ROWS if reads(pushed, row)]
    assert [row for row in read if all(holds(one, row) for one in left)] == wanted


@given(filters)
def test_what_is_left_are_the_very_filters(given_filters):
    _, left = push(given_filters)
    assert all(any(one is other for other in given_filters) for one in left)


def test_an_offset_range_is_cut_and_not_checked_again():
    pushed, left = push(
        [GreaterThanOrEqual(("offset",), 10), LessThan(("offset",), 20), IsNotNull(("offset",))]
    )
    assert (pushed.start, pushed.end, left) == (10, 20, [])


def test_a_time_begins_the_read_and_is_checked_again():
    filter_ = GreaterThan(("timestamp",), at(1234.567))
    pushed, left = push([filter_])
    assert pushed.time_ms == 1234
    assert left == [filter_]


def test_an_upper_time_ends_nothing():
    pushed, left = push([LessThan(("timestamp",), at(5))])
    assert pushed.time_ms is None
    assert len(left) == 1


@pytest.mark.parametrize(
    "filter_",
    [
        EqualTo(("partition",), True),
        EqualTo(("partition",), 1.0),
        EqualTo(("offset",), "5"),
        GreaterThan(("topic",), "a"),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - Spark's type without zone
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "key"), "x"),
        IsNotNull(("value",)),
        Not(EqualNullSafe(("topic",), "a")),
        In(("partition",), (1, "x")),
    ],
)
def test_what_isn_t_understood_is_spark_s(filter_):
    pushed, left = push([filter_])
    assert left == [filter_]
    assert pushed.time_ms is None
    assert pushed.takes("a", 1)
