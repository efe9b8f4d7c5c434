"""Tables on Spark's executors, and read by Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.spark_engine import SparkEngine
from penstock.pipeline.tables.job import TableSummary, run_table_once
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from support.api_server import NOW_MS, ApiServer, serve_in_thread
from support.tables import Lake, new_record, produce, records_of

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


def follow(
    spark: SparkSession, api: ApiServer, lake: Lake, topic: str, **changes: object
) -> TableSummary:
    return run_table_once(api.client, SparkEngine(spark), lake.settings(topic, **changes))


def test_without_iceberg_s_runtime_its_procedures_are_refused_and_nothing_changes(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    api.create("refused", 1)
    for number in range(5):
        produce(api, "refused", 0, [new_record(b"a", b"%d" % number)])
        follow(spark, api, lake, "refused")
    before = lake.table("refused").metadata_location
    upkeep = Maintenance(snapshot_age_ms=-DAY_MS)
    settings = lake.settings("refused")
    try:
        with pytest.raises(InvalidRequestError, match="doesn't find it by Iceberg's") as told:
            maintain_table(api.client, SparkEngine(spark), settings, upkeep, is_native=True)
    finally:
        for name in ("", ".type", ".uri", ".warehouse", ".cache-enabled"):
            spark.conf.unset(f"spark.sql.catalog.penstock{name}")
    assert "iceberg-spark-runtime-4.1" in told.value.hint
    with pytest.raises(InvalidRequestError, match="there is no Spark"):
        maintain_table(api.client, LocalEngine(1), settings, upkeep, is_native=True)
    assert lake.table("refused").metadata_location == before


def frame(spark: SparkSession, lake: Lake, topic: str) -> DataFrame:
    """The table's current snapshot: no Iceberg jar fits this Spark, so PyIceberg plans the files
    and Spark reads them."""
    files = [task.file.file_path for task in lake.table(topic).scan().plan_files()]
    return spark.read.parquet(*files)


def test_executors_write_and_spark_sql_reads(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    api.create("flights", 3)
    api.create("flights.dlq", 1)
    for partition in range(3):
        records = [
            new_record(b"%d" % n, b"%d" % (n * 10), timestamp_ms=NOW_MS + n % 2 * DAY_MS)
            for n in range(100)
        ]
        produce(api, "flights", partition, [*records, new_record(b"bad", b"", timestamp_ms=2**62)])
    summary = follow(spark, api, lake, "flights", target_file_bytes=2_000)
    assert (summary.rows, summary.bad_records) == (300, 3)
    assert len(records_of(api, "flights.dlq")) == 3
    assert follow(spark, api, lake, "flights").rows == 0
    frame(spark, lake, "flights").createOrReplaceTempView("flights")
    found = spark.sql(
        "SELECT to_date(timestamp) AS day, count(*) AS n, sum(int(string(value))) AS s "
        "FROM flights GROUP BY 1 ORDER BY 1"
    ).collect()
    spark.catalog.dropTempView("flights")
    even, odd = (3 * sum(n * 10 for n in range(first, 100, 2)) for first in (0, 1))
    assert [(row.n, row.s) for row in found] == [(150, even), (150, odd)]


def test_executors_upsert_and_join(spark: SparkSession, api: ApiServer, lake: Lake) -> None:
    api.create("keys", 2)
    for number in range(3):
        for partition in range(2):
            changes = [new_record(b"%d-%d" % (partition, key), b"%d" % number) for key in range(50)]
            produce(api, "keys", partition, [*changes, new_record(b"%d-7" % partition, None)])
        follow(spark, api, lake, "keys", mode="upsert", buckets=2)
    rows = frame(spark, lake, "keys").selectExpr("string(key)", "string(value)").collect()
    assert sorted((row[0], row[1]) for row in rows) == sorted(
        (f"{partition}-{key}", "2") for partition in range(2) for key in range(50) if key != 7
    )
    settings = lake.settings("keys", mode="upsert")
    upkeep = Maintenance(files_min=1)
    joined = maintain_table(api.client, SparkEngine(spark), settings, upkeep)
    assert joined.files_written == 2
    assert frame(spark, lake, "keys").count() == 98
