"""`option("view", "table")`: a table in a session without a jar, and views of all tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import penstock.spark
from support.api_server import NOW_MS, ApiServer, serve_in_thread
from support.row_deletes import delete_rows
from support.tables import Lake, follow, new_record, produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path_factory.mktemp("server")) as api:
        yield api


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "warehouse")


def fill(api: ApiServer, lake: Lake, topic: str, count: int, *, at_ms: int = NOW_MS) -> None:
    """Add records to a topic of one partition, then rows to its table."""
    if topic not in api.topics:
        api.create(topic, 1)
        api.create(f"{topic}.dlq", 1)
    produce(
        api,
        topic,
        0,
        [new_record(b"k%d" % n, b"v%d" % n, timestamp_ms=at_ms + n) for n in range(count)],
    )
    follow(api, lake, topic)


def read(spark: SparkSession, lake: Lake, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("penstock").option("view", "table").option("subscribe", topic)
    return reader.options(warehouse=str(lake.folder), **options).load()


def test_rows_are_the_tables_with_sparks_types(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    fill(api, lake, "rows", 5)
    frame = read(spark, lake, "rows")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,partition:int,offset:bigint,timestamp:timestamp,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.orderBy("offset").collect()
    assert [(bytes(row.key), bytes(row.value), row.offset) for row in rows] == [
        (b"k%d" % n, b"v%d" % n, n) for n in range(5)
    ]
    utc = datetime.fromtimestamp(NOW_MS / 1000, tz=UTC)
    assert frame.selectExpr("unix_millis(min(timestamp))").collect()[0][0] == NOW_MS
    assert frame.where(f"timestamp = timestamp'{utc.isoformat()}'").count() == 1
    assert read(spark, lake, "rows", columns="offset,key").columns == ["offset", "key"]


def test_rows_deleted_by_position_and_renamed_columns_are_heeded(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    fill(api, lake, "changed", 6)
    table = lake.table("changed")
    (task,) = table.scan().plan_files()
    delete_rows(table, task.file, [1, 4])
    with lake.table("changed").update_schema() as update:
        update.rename_column("value", "payload")
        update.add_column("note", StringType())
    frame = read(spark, lake, "changed")
    rows = frame.orderBy("offset").collect()
    assert [(row.offset, bytes(row.payload), row.note) for row in rows] == [
        (n, b"v%d" % n, None) for n in (0, 2, 3, 5)
    ]
    assert "value" not in frame.columns


def test_a_frame_keeps_its_snapshot_and_a_new_one_has_the_newest_or_the_named_one(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    fill(api, lake, "grows", 3)
    frame = read(spark, lake, "grows")
    first = lake.table("grows").current_snapshot().snapshot_id
    fill(api, lake, "grows", 2)
    assert frame.count() == 3
    assert frame.join(frame, "offset").count() == 3
    assert read(spark, lake, "grows").count() == 5
    assert read(spark, lake, "grows", snapshotId=first).count() == 3


def test_filters_leave_files_out_and_change_no_answer(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    for day in range(3):
        fill(api, lake, "days", 4, at_ms=NOW_MS + day * DAY_MS)
    when = datetime.fromtimestamp((NOW_MS + 2 * DAY_MS) / 1000, tz=UTC).isoformat()
    for where in (f"timestamp >= timestamp'{when}'", "offset IN (9, 10)", "key = X'6B31'"):
        pushed = read(spark, lake, "days", filterPushdown="true").where(where)
        assert sorted(row.offset for row in pushed.collect()) == sorted(
            row.offset for row in read(spark, lake, "days").where(where).collect()
        )
    pushed = read(spark, lake, "days", filterPushdown="true").where("offset > 8")
    assert pushed.rdd.getNumPartitions() == 1
    assert pushed.count() == 3


def test_registering_makes_a_view_of_each_table(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    fill(api, lake, "one", 2)
    fill(api, lake, "two", 3)
    views = penstock.spark.register(spark, warehouse=str(lake.folder))
    assert views == ["one", "two"]
    found = spark.sql("SELECT count(*) FROM one JOIN two ON one.key = two.key").collect()[0][0]
    assert found == 2
    fill(api, lake, "two", 1)
    penstock.spark.register(spark, warehouse=str(lake.folder))
    assert spark.sql("SELECT count(*) FROM two").collect()[0][0] == 4
    for view in views:
        spark.catalog.dropTempView(view)


def test_types_that_spark_lacks_are_texts_and_bytes(spark: SparkSession, lake: Lake) -> None:
    fields = [
        ("id", UUIDType()),
        ("at", TimeType()),
        ("wall", TimestampType()),
        ("moment", TimestamptzType()),
        ("price", DecimalType(9, 2)),
        ("four", FixedType(4)),
        ("tags", ListType(element_id=100, element=StringType(), element_required=False)),
        (
            "counts",
            MapType(
                key_id=101, key_type=StringType(), value_id=102, value_type=LongType(),
                value_required=False,
            ),
        ),
        ("inner", StructType(NestedField(103, "at", TimeType(), required=False))),
    ]  # fmt: skip
    schema = Schema(
        *(NestedField(n, name, kind, required=False) for n, (name, kind) in enumerate(fields, 1))
    )
    rows = pa.Table.from_pylist(
        [
            {
                "id": bytes(range(16)), "at": 1, "wall": 2, "moment": 3, "price": 0,
                "four": b"abcd", "tags": ["a", None], "counts": [("x", 1)],
                "inner": {"at": 61_000_000},
            }
        ],
        schema=pa.schema([
            ("id", pa.binary(16)), ("at", pa.time64("us")), ("wall", pa.timestamp("us")),
            ("moment", pa.timestamp("us", "UTC")), ("price", pa.decimal128(9, 2)),
            ("four", pa.binary(4)), ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("inner", pa.struct([("at", pa.time64("us"))])),
        ]),
    )  # fmt: skip
    lake.folder.mkdir()
    properties = {"uri": f"sqlite:///{lake.folder / 'catalog.db'}", "warehouse": str(lake.folder)}
    with load_catalog("penstock", **properties) as catalog:
        catalog.create_namespace("penstock")
        catalog.create_table(("penstock", "types"), schema).append(rows)
    (row,) = read(spark, lake, "types").collect()
    assert row.id == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (row.at, row.inner.at) == ("00:00:00.000001", "00:01:01.000000")
    assert (bytes(row.four), row.tags, row.counts) == (b"abcd", ["a", None], {"x": 1})
    assert str(row.price) == "0.00"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"view": "tables"}, "'tables' is none of log, table"),
        ({"view": "table"}, "give one of table"),
        ({"view": "table", "subscribe": "x", "warehous": "y"}, "did you mean warehouse"),
        ({"view": "table", "table": "no.such"}, "there is no such table"),
        (
            {"view": "table", "table": "a.b", "catalogProperties": json.dumps({"token": "t"})},
            "PYICEBERG_CATALOG__PENSTOCK__TOKEN",
        ),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, lake: Lake, options: dict[str, str], says: str
) -> None:
    given = {"warehouse": str(lake.folder), **options}
    if "warehous" in given:
        del given["warehouse"]
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as told:
        spark.read.format("penstock").options(**given).load()
    assert says in str(told.value)
