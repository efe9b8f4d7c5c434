"""`option("view", "table+log")`: a table and the records beyond it, each once, in Spark."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark.errors import PySparkException

import penstock.spark
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from support import union_streamer
from support.api_server import NOW_MS, ApiServer, serve_in_thread
from support.registry import serve_registry
from support.server import REPOSITORY
from support.spark_workers import kill_python_workers
from support.tables import Lake, follow, new_record, produce, produce_values
from support.typed import avro, record, typed
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SECONDS_MAX = 600


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path_factory.mktemp("server")) as api:
        yield api


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "warehouse")


def create(api: ApiServer, topic: str) -> None:
    api.create(topic, 2)
    api.create(f"{topic}.dlq", 1)


def fill(api: ApiServer, topic: str, *numbers: int) -> None:
    for partition in (0, 1):
        produce(
            api,
            topic,
            partition,
            [new_record(b"k%d" % n, b"v%d" % n, timestamp_ms=NOW_MS + n) for n in numbers],
        )


def read(spark: SparkSession, api: ApiServer, lake: Lake, topic: str, **options: Any) -> DataFrame:
    given = {"view": "table+log", "subscribe": topic, "warehouse": str(lake.folder), **options}
    return spark.read.format("penstock").option("url", url_of(api)).options(**given).load()


def url_of(api: ApiServer) -> str:
    (url,) = api.client.options.urls
    return url


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted(
        (row.partition, row.offset) for row in frame.select("partition", "offset").collect()
    )


def everything(count: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(count)]


def test_each_record_is_counted_once_whatever_happens_after_it_is_loaded(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    create(api, "rows")
    for n in range(4):
        fill(api, "rows", n)
        follow(api, lake, "rows")
    fill(api, "rows", *range(4, 10))
    frame = read(spark, api, lake, "rows", partitionBytes="4000")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,partition:int,offset:bigint,timestamp:timestamp,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    # What comes after is not of this DataFrame, and what goes stays for it.
    fill(api, "rows", *range(10, 13))
    follow(api, lake, "rows")
    upkeep = Maintenance(snapshot_age_ms=0, orphan_age_ms=0, files_min=2)
    fill(api, "rows", 13)
    follow(api, lake, "rows")
    done = maintain_table(api.client, LocalEngine(1), lake.settings("rows"), upkeep)
    assert (done.files_joined > 0, done.snapshots_expired) == (True, 0)
    assert places(frame) == everything(10)
    assert frame.count() == 20
    assert frame.join(frame, ["partition", "offset"]).count() == 20
    values = [bytes(row.value) for row in frame.where("partition = 0").orderBy("offset").collect()]
    assert values == [b"v%d" % n for n in range(10)]
    assert places(read(spark, api, lake, "rows")) == everything(14)
    some = read(spark, api, lake, "rows", columns="offset,partition")
    assert some.columns == ["offset", "partition"]
    chosen = (
        spark.read.format("penstock")
        .option("url", url_of(api))
        .options(view="table+log", subscribe="rows", warehouse=str(lake.folder))
        .schema("offset bigint")
        .load()
    )
    assert chosen.agg({"offset": "sum"}).collect()[0][0] == 2 * sum(range(14))


def test_registered_views_have_the_log_too(spark: SparkSession, api: ApiServer, lake: Lake) -> None:
    create(api, "viewed")
    fill(api, "viewed", 0, 1)
    follow(api, lake, "viewed")
    fill(api, "viewed", 2)
    for url, count in (("", 4), (url_of(api), 6)):
        assert penstock.spark.register(spark, warehouse=str(lake.folder), url=url) == ["viewed"]
        assert spark.sql("SELECT count(*) FROM viewed").collect()[0][0] == count
    spark.catalog.dropTempView("viewed")


def test_filters_go_to_both_sides_and_change_no_answer(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    create(api, "some")
    fill(api, "some", *range(5))
    follow(api, lake, "some")
    fill(api, "some", *range(5, 9))
    whole = read(spark, api, lake, "some")
    for where in (
        "partition = 1 AND offset > 6",
        "key = X'6B37'",
        "offset IN (2, 8)",
        "offset < 3",
    ):
        pushed = read(spark, api, lake, "some", filterPushdown="true").where(where)
        assert places(pushed) == places(whole.where(where)) != []
    pushed = read(spark, api, lake, "some", filterPushdown="true").where("offset > 6")
    assert pushed.rdd.getNumPartitions() == 1, "no file, and the end of the log"


def test_newer_schemas_add_columns_and_dead_letters_are_no_rows(
    spark: SparkSession, api: ApiServer, lake: Lake
) -> None:
    one, two = record(("a", "long")), record(("a", "long"), ("b", ["null", "string"]))
    create(api, "typed")
    with serve_registry() as registry:
        first, second = registry.register("typed", one), registry.register("typed", two)
        produce_values(api, "typed", avro(first, one, {"a": 1}))
        typed(api, lake, "typed", registry)
        produce_values(api, "typed", [b"bad", *avro(second, two, {"a": 2, "b": "x"})])
        frame = read(spark, api, lake, "typed", registry=registry.url)
        assert {"a", "b", "kafka_offset"} <= set(frame.columns)
        found = sorted((row.a, row.b) for row in frame.select("a", "b").collect())
        assert found == [(1, None), (2, "x")]


def test_of_a_key_the_newest_counts(spark: SparkSession, api: ApiServer, lake: Lake) -> None:
    create(api, "keys")
    changes: Callable[[dict[bytes, bytes | None]], None] = lambda given: produce(  # noqa: E731
        api, "keys", 0, [new_record(key, value) for key, value in given.items()]
    )
    changes({b"%d" % n: b"old" for n in range(20)})
    follow(api, lake, "keys", mode="upsert", buckets=4)
    changes({b"1": b"new", b"2": None, b"20": b"new", b"21": None})
    frame = read(spark, api, lake, "keys")
    expected = {b"%d" % n: b"old" for n in range(20) if n != 2} | {b"1": b"new", b"20": b"new"}
    follow(api, lake, "keys", mode="upsert")
    rows = frame.select("key", "value").collect()
    assert {bytes(row.key): bytes(row.value) for row in rows} == expected
    assert frame.count() == len(rows) == len(expected)
    assert read(spark, api, lake, "keys").count() == len(expected)
    one = read(spark, api, lake, "keys", filterPushdown="true").where("key = X'31'").collect()
    assert [bytes(row.value) for row in one] == [b"new"]


def test_what_is_gone_is_told(spark: SparkSession, api: ApiServer, lake: Lake) -> None:
    create(api, "gone")
    fill(api, "gone", *range(4))
    follow(api, lake, "gone")
    fill(api, "gone", *range(4, 8))
    frame = read(spark, api, lake, "gone")
    api.trim("gone", 1, 6)
    with pytest.raises(Exception, match="offset 4 is wanted, the log begins at 6"):
        frame.collect()
    with pytest.raises(Exception, match=r"gone-1: .* 2 offsets are in neither"):
        read(spark, api, lake, "gone")
    assert read(spark, api, lake, "gone", failOnDataLoss="false").count() == 14


# -- streams ---------------------------------------------------------------------------------------


def streamed(spark: SparkSession, api: ApiServer, lake: Lake, topic: str, **options: Any) -> Any:
    given = {"view": "table+log", "subscribe": topic, "warehouse": str(lake.folder), **options}
    stream = spark.readStream.format("penstock").option("url", url_of(api))
    return stream.options(**given).load()


def ends(checkpoint: Path) -> list[dict[str, Any]]:
    """The offsets of all batches that were begun, in order."""
    found = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [json.loads(path.read_text().splitlines()[-1]) for path in found]


def in_three_files(api: ApiServer, lake: Lake, topic: str) -> None:
    """Ten records of each of two partitions, of which the table has six in three files."""
    create(api, topic)
    for n in range(3):
        fill(api, topic, 2 * n, 2 * n + 1)
        follow(api, lake, topic)
    fill(api, topic, *range(6, 10))


def test_a_stream_reads_the_table_and_goes_over_to_the_log_though_its_workers_are_killed(
    spark: SparkSession, api: ApiServer, lake: Lake, tmp_path: Path
) -> None:
    """The planner's process and tasks' are killed in the last batch of the table, and in the first
    ones of the log."""
    in_three_files(api, lake, "streamed")
    checkpoint = tmp_path / "checkpoint"
    batches: dict[int, list[tuple[int, int]]] = {}
    kills = {2: 1, 3: 2, 4: 1}

    def keep(batch: DataFrame, number: int) -> None:
        if kills.get(number, 0) > 0:
            kills[number] -= 1
            kill_python_workers(spark)
            raise ConnectionAbortedError("the sink was killed, too")
        # A sink that is idempotent by the batch's number, as exactly once needs one.
        batches[number] = places(batch)

    failures = 0
    while True:
        writer = streamed(spark, api, lake, "streamed", maxOffsetsPerTrigger="4").writeStream
        query = (
            writer.foreachBatch(keep)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(SECONDS_MAX)
            break
        except PySparkException:
            failures += 1
            # The table goes on meanwhile, and would let the snapshot go.
            follow(api, lake, "streamed")
            upkeep = Maintenance(snapshot_age_ms=0, orphan_age_ms=0, files_min=2)
            maintain_table(api.client, LocalEngine(1), lake.settings("streamed"), upkeep)
    assert failures == 4
    assert sorted(place for rows in batches.values() for place in rows) == everything(10)
    read = [end["table"]["read"] for end in ends(checkpoint)]
    assert read == [1, 2, 3, 3, 3]
    assert [len(batches[number]) for number in range(5)] == [4] * 5


def test_a_driver_that_is_killed_at_the_hand_over_loses_and_doubles_nothing(
    spark: SparkSession, api: ApiServer, lake: Lake, tmp_path: Path
) -> None:
    in_three_files(api, lake, "killed")
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    where = (url_of(api), "killed", str(lake.folder), str(out), str(checkpoint))
    program = REPOSITORY / "tests" / "support" / "union_streamer.py"
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}/tests"}

    def table_is_planned() -> bool:
        return any(end["table"]["read"] == end["table"]["files"] for end in ends(checkpoint))

    def log_is_planned() -> bool:
        return any(
            sum(topic["partitions"].values()) > 12
            for end in ends(checkpoint)
            for topic in end["topics"].values()
        )

    for is_there in (table_is_planned, log_is_planned):
        process = subprocess.Popen(
            [sys.executable, program, *where],
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            eventually(
                lambda process=process, is_there=is_there: is_there() or process.poll() is not None,
                timeout_seconds=SECONDS_MAX,
            )
            died = process.poll() is not None
        finally:
            for victim in (*psutil.Process(process.pid).children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    victim.kill()
            _, errors = process.communicate()
        assert not died, errors[-3000:]
        fill(api, "killed", 99)
        follow(api, lake, "killed")
    query = union_streamer.start(spark, *where).trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS_MAX)
    assert places(spark.read.parquet(str(out))) == everything(12)


def test_streams_of_other_checkpoints_and_of_tables_by_key_are_refused(
    spark: SparkSession, api: ApiServer, lake: Lake, tmp_path: Path
) -> None:
    create(api, "bykey")
    produce(api, "bykey", 0, [new_record(b"k", b"v")])
    follow(api, lake, "bykey", mode="upsert", buckets=4)
    with pytest.raises(Exception, match="it has one row per key, and a stream can't take back"):
        frame = streamed(spark, api, lake, "bykey")
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "a"))
        query.start().awaitTermination(SECONDS_MAX)
