import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.model.errors import CorruptDataError, InvalidRequestError
from penstock.pipeline.connector.schema import (
    COLUMNS,
    arrow_schema,
    checked_columns,
    default_columns,
    record_batches,
    spark_ddl,
)

ALL = default_columns(headers=True)
# As Spark's Kafka source documents them.
KAFKA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(
                StructType([StructField("key", StringType()), StructField("value", BinaryType())])
            ),
        ),
    ]
)


def decoded(rows: int, **columns):
    given_columns = {
        "key": pa.array([None] * rows, pa.binary()),
        "value": pa.array([b"v" * 100] * rows, pa.binary()),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([1_700_000_000_123] * rows, pa.int64()),
        "timestampType": pa.array([0] * rows, pa.int32()),
        "headers": pa.array(
            [[]] * rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        ),
    }
    return given_columns | columns


def batches(rows, columns, *, names=ALL, bytes_max=1 << 20):
    return list(
        record_batches(
            columns, rows=rows, names=names, topic="flights", partition=3, bytes_max=bytes_max
        )
    )


def test_the_arrow_types_are_those_that_spark_insists_on():
    assert arrow_schema(ALL).equals(to_arrow_schema(KAFKA, timezone="UTC"))


def test_the_columns_are_those_of_kafka_s_source():
    assert [(c.name, c.spark) for c in COLUMNS] == [
        (field.name, field.dataType.simpleString()) for field in KAFKA.fields
    ]
    assert spark_ddl(("key", "timestampType")) == "`key` binary, `timestampType` int"


def test_rows():
    (batch,) = batches(
        2,
        decoded(
            2,
            key=pa.array([b"k", None], pa.binary()),
            headers=pa.array(
                [[("a", b"1"), ("a", None)], []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        ),
    )
    assert batch.schema.equals(arrow_schema(ALL))
    batch.validate(full=True)
    first, second = batch.to_pylist()
    assert first["key"] == b"k"
    assert first["topic"] == "flights"
    assert first["partition"] == 3
    assert first["timestamp"].timestamp() == 1_700_000_000.123
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert second["key"] is None
    assert second["headers"] is None  # as Kafka's source says it


def test_some_columns_in_another_order():
    names = ("timestamp", "topic", "value")
    (batch,) = batches(1, decoded(1), names=names)
    assert batch.schema.names == list(names)


@given(st.integers(0, 500), st.integers(1, 60_000))
def test_batches_are_bounded_and_whole(rows, bytes_max):
    made = batches(rows, decoded(rows), bytes_max=bytes_max)
    assert [offset for batch in made for offset in batch.column("offset").to_pylist()] == list(
        range(rows)
    )
    for batch in made:
        # One row may be larger; otherwise only what rounding does.
        assert batch.num_rows == 1 or batch.nbytes <= 2 * bytes_max


def test_timestamps_before_the_epoch_and_none():
    (batch,) = batches(2, decoded(2, timestamp=pa.array([-1, -62_135_596_800_000], pa.int64())))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [-1000, -62135596800000000]


def test_a_timestamp_that_spark_can_t_hold_is_an_error_that_says_where():
    with pytest.raises(CorruptDataError, match="flights-3"):
        batches(1, decoded(1, timestamp=pa.array([2**62], pa.int64())))


def test_a_schema_given_by_the_user_chooses_columns():
    assert checked_columns([("value", "binary"), ("offset", "bigint")]) == ("value", "offset")


@pytest.mark.parametrize("field", [("values", "binary"), ("value", "string"), ("Key", "binary")])
def test_a_schema_of_something_else_is_refused(field):
    with pytest.raises(InvalidRequestError):
        checked_columns([field])
