"""Rows become batches of the partitions that Kafka's clients would choose, in their order."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.decode import decode
from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.pipeline.connector.write_columns import find_columns, timestamps_ms
from penstock.pipeline.connector.write_plan import TopicTarget
from penstock.pipeline.connector.write_rows import RowEncoder
from support.twins.murmur import partition_of_key

NOW_MS = 1_700_000_000_000
FIELDS = {
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "key": ("binary", pa.binary()),
    "value": ("string", pa.string()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
}


def target(name: str, **changes: Any) -> TopicTarget:
    values: dict[str, Any] = {
        "name": name,
        "topic_id": name.encode().ljust(16, b"\0").hex(),
        "partition_count": 3,
        "message_bytes_max": 1 << 20,
        "timestamp_before_max_ms": 2**63 - 1,
        "timestamp_after_max_ms": 3_600_000,
        "log_append_time": False,
        "compacts": False,
    }
    return TopicTarget(**(values | changes))


def encoded(
    rows: list[dict[str, Any]], *, topic: str = "", batch_bytes: int = 1 << 20, **changes: Any
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Per (topic, partition) what its batches hold."""
    names = [name for name in FIELDS if any(name in row for row in rows)]
    chunk = pa.RecordBatch.from_pydict(
        {name: [row.get(name) for row in rows] for name in names},
        schema=pa.schema([(name, FIELDS[name][1]) for name in names]),
    )

    def find(name: str) -> TopicTarget:
        if name == "gone":
            raise NotFoundError("write", name, "there is no such topic")
        return target(name, **changes)

    encoder = RowEncoder(
        columns=find_columns([(name, FIELDS[name][0]) for name in names], topic=topic),
        topic=topic,
        codec="none",
        batch_bytes=batch_bytes,
        find_topic=find,
        below=lambda bound: bound - 1,
    )
    found = {}
    for part in encoder.encode(chunk, now_ms=NOW_MS):
        name = bytes.fromhex(part.topic_id).rstrip(b"\0").decode()
        assert (name, part.partition) not in found
        held: list[dict[str, Any]] = []
        for batch in part.batches:
            held += decode(batch.body).table().to_pylist()
        found[name, part.partition] = held
    return found


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.none() | st.integers(0, 2),
            st.none() | st.binary(max_size=5),
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from(["", "only"]),
)
def test_each_row_is_where_it_belongs_and_in_order(rows, topic: str) -> None:
    given_rows = [
        {"topic": name, "partition": partition, "key": key, "value": str(number)}
        for number, (name, partition, key) in enumerate(rows)
    ]
    found = encoded(given_rows, topic=topic)
    seen = []
    for (name, partition), held in found.items():
        numbers = [int(row["value"]) for row in held]
        assert numbers == sorted(numbers)
        seen += numbers
        for number in numbers:
            wanted_name, wanted_partition, key = rows[number]
            assert name == (topic or wanted_name)
            if wanted_partition is not None:
                assert partition == wanted_partition
            elif key is not None:
                assert partition == partition_of_key(key, 3)
    assert sorted(seen) == list(range(len(rows)))


def test_keyless_rows_stay_together_and_take_turns() -> None:
    rows = [{"value": "x" * 100, "topic": "t"} for _ in range(90)]
    found = encoded(rows, batch_bytes=1100)
    assert sorted(partition for _, partition in found) == [0, 1, 2]
    assert max(map(len, found.values())) - min(map(len, found.values())) <= 12


def test_timestamps_are_those_given_or_now() -> None:
    import datetime as dt

    given_time = dt.datetime(2020, 1, 1, 0, 0, 0, 1999, tzinfo=dt.UTC)
    rows = [{"value": "a", "timestamp": given_time}, {"value": "b", "timestamp": None}]
    found = encoded(rows, topic="t")
    times = {row["value"]: row["timestamp"] for held in found.values() for row in held}
    assert times == {b"a": 1_577_836_800_001, b"b": NOW_MS}
    stamped = encoded(rows, topic="t", log_append_time=True)
    assert {row["timestamp"] for held in stamped.values() for row in held} == {NOW_MS}


def test_a_time_before_1970_rounds_down() -> None:
    times = pa.array([-1, -1000, -1001], pa.timestamp("us", tz="UTC"))
    assert timestamps_ms(times, NOW_MS, 3).tolist() == [-1, -1, -2]


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ({"partition": 3}, {}, "t-3: the topic has 3 partitions"),
        ({"partition": -1}, {}, "t--1: the topic has 3"),
        ({"topic": "gone"}, {}, "no such topic"),
        ({"topic": None}, {}, "1 of 2 rows have none"),
        ({"key": None}, {"compacts": True}, "1 of 2 rows have no key"),
        ({"value": "x" * 3000}, {"message_bytes_max": 2000}, "max.message.bytes is 2000"),
        ({"timestamp": -5_000_000}, {}, "before 1970"),
        ({"timestamp": (NOW_MS + 7_200_000) * 1000}, {}, "message.timestamp.after.max.ms"),
        ({"timestamp": 0}, {"timestamp_before_max_ms": 10}, "message.timestamp.before.max.ms"),
    ],
)
def test_what_a_topic_does_not_take_is_named(
    row: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    good = {"topic": "t", "key": b"k", "value": "v", "partition": 1, "timestamp": NOW_MS * 1000}
    with pytest.raises((InvalidRequestError, NotFoundError), match=message):
        encoded([good, good | row], **changes)


@pytest.mark.parametrize(
    ("fields", "topic", "message"),
    [
        ([("key", "string")], "t", "column value: it is missing"),
        ([("value", "string")], "", "column topic: it is missing"),
        ([("value", "int")], "t", "not string or binary"),
        ([("value", "binary"), ("VALUE", "binary")], "t", "twice"),
        ([("value", "binary"), ("headers", "array<string>")], "t", "column headers"),
        ([("value", "binary"), ("partition", "bigint")], "t", "not int"),
    ],
)
def test_columns_that_cannot_be_written_are_named(fields, topic: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        find_columns(fields, topic=topic)


def test_other_columns_are_not_written() -> None:
    columns = find_columns([("offset", "bigint"), ("Value", "binary")], topic="t")
    assert (columns.value, columns.key) == (1, -1)
