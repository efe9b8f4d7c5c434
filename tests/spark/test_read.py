"""Batch reads of a real embedded server by Spark: what was written is what is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from support.server import ServerProcess
from support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 500
BASE_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    server = ServerProcess(folder / "data", folder / "server.log")
    server.start()
    yield server
    status = server.stop()
    assert status == 0, server.tail()


@pytest.fixture(scope="module")
def topics(server: ServerProcess) -> Topics:
    return Topics(server.bootstrap)


@pytest.fixture
def read(spark: SparkSession, server: ServerProcess) -> Any:
    def read(topic: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("penstock").option("url", f"http://{server.http}")
        if topic is not None:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return read


@pytest.fixture(scope="module")
def numbers(topics: Topics) -> str:
    """A topic of three partitions: value "P:N" at offset N, a second apart."""
    name = topics.make(3)
    for partition in range(3):
        topics.write(
            name,
            [f"{partition}:{n}".encode() for n in range(ROWS)],
            partition=partition,
            timestamps=[BASE_MS + 1000 * n for n in range(ROWS)],
            batch_num_messages=50,
        )
    return name


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value.decode() for row in frame.select("value").collect())


def expected(*spans: tuple[int, int, int]) -> list[str]:
    return sorted(f"{p}:{n}" for p, start, end in spans for n in range(start, end))


ALL = expected((0, 0, ROWS), (1, 0, ROWS), (2, 0, ROWS))


def test_rows_are_what_was_written(read: Any, topics: Topics):
    topic = topics.make(1)
    topics.write(
        topic,
        [b"one", None, b""],
        keys=[b"k", None, b""],
        timestamps=[BASE_MS, BASE_MS + 1, BASE_MS - 5],
        headers=[[("h", b"1"), ("h", None), ("é", b"")], [], [("x", b"y")]],
    )
    rows = [row.asDict(recursive=True) for row in read(topic, includeHeaders="true").collect()]
    rows.sort(key=lambda row: row["offset"])
    for row in rows:
        row["timestamp"] = round(row["timestamp"].timestamp() * 1000)
    common = {"topic": topic, "partition": 0, "timestampType": 0}
    assert rows == [
        common
        | {
            "key": b"k",
            "value": b"one",
            "offset": 0,
            "timestamp": BASE_MS,
            "headers": [
                {"key": "h", "value": b"1"},
                {"key": "h", "value": None},
                {"key": "é", "value": b""},
            ],
        },
        common
        | {
            "key": None,
            "value": None,
            "offset": 1,
            "timestamp": BASE_MS + 1,
            "headers": None,
        },
        common
        | {
            "key": b"",
            "value": b"",
            "offset": 2,
            "timestamp": BASE_MS - 5,
            "headers": [{"key": "x", "value": b"y"}],
        },
    ]


def test_log_append_time(read: Any, topics: Topics):
    topic = topics.make(1, message_timestamp_type="LogAppendTime")
    topics.write(topic, [b"x"], timestamps=[5])
    (row,) = read(topic).collect()
    assert row.timestampType == 1
    assert row.timestamp.timestamp() > BASE_MS / 1000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(read: Any, topics: Topics, codec: str):
    topic = topics.make(1)
    written = [b"%d " % n * 50 for n in range(2000)]
    topics.write(topic, written, compression_type=codec)
    rows = read(topic, columns="offset,value").collect()
    assert [bytes(row.value) for row in sorted(rows)] == written


def test_all_of_it_by_any_number_of_tasks(read: Any, numbers: str):
    assert values(read(numbers)) == ALL
    frame = read(numbers, minPartitions="7", partitionBytes="1000", parallelism="2")
    assert frame.rdd.getNumPartitions() >= 7
    assert values(frame) == ALL
    frame = read(numbers, maxRecordsPerPartition="100")
    assert max(frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()) == 100
    assert values(frame) == ALL


def test_an_empty_topic(read: Any, topics: Topics):
    assert read(topics.make(2)).count() == 0


def test_fresh_records_are_seen(read: Any, topics: Topics):
    """Still in the WAL: the server's segments are made much later than this."""
    topic = topics.make(1)
    for n in range(5):
        topics.write(topic, [b"%d" % n])
        assert read(topic).count() == n + 1


@pytest.mark.parametrize(
    ("options", "spans"),
    [
        (
            {"startingOffsets": '{"T":{"0":490,"1":-2,"2":499}}', "endingOffsets": "latest"},
            [(0, 490, ROWS), (1, 0, ROWS), (2, 499, ROWS)],
        ),
        (
            {"endingOffsets": '{"T":{"0":1,"1":0,"2":-1}}'},
            [(0, 0, 1), (2, 0, ROWS)],
        ),
        ({"startingTimestamp": str(BASE_MS + 498_001)}, [(p, 499, ROWS) for p in range(3)]),
        ({"endingTimestamp": str(BASE_MS + 2000)}, [(p, 0, 2) for p in range(3)]),
        (
            {
                "startingOffsetsByTimestamp": f'{{"T":{{"0":{BASE_MS},"1":{BASE_MS + 498_000},'
                f'"2":{BASE_MS + 10**9}}}}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [(0, 0, ROWS), (1, 498, ROWS)],
        ),
        (
            {
                "endingOffsetsByTimestamp": f'{{"T":{{"0":{BASE_MS},"1":{BASE_MS + 10**9},'
                f'"2":{BASE_MS + 3000}}}}}'
            },
            [(1, 0, ROWS), (2, 0, 3)],
        ),
    ],
)
def test_where_it_begins_and_ends(read: Any, numbers: str, options: Any, spans: Any):
    given = {name: value.replace('"T"', f'"{numbers}"') for name, value in options.items()}
    assert values(read(numbers, **given)) == expected(*spans)


def test_assigned_partitions_and_patterns(read: Any, numbers: str, topics: Topics):
    frame = read(assign=f'{{"{numbers}":[2,0]}}')
    assert values(frame) == expected((0, 0, ROWS), (2, 0, ROWS))
    for letter in "ab":
        topics.write(topics.make(1, name=f"pattern-{letter}"), [letter.encode()])
    assert values(read(subscribePattern="pattern-.")) == ["a", "b"]
    assert values(read(subscribePattern="pattern-b|nothing")) == ["b"]
    assert values(read("pattern-a,pattern-b")) == ["a", "b"]


@pytest.mark.parametrize(
    ("condition", "spans"),
    [
        ("partition = 1", [(1, 0, ROWS)]),
        ("partition IN (0, 2) AND offset < 10", [(0, 0, 10), (2, 0, 10)]),
        ("partition <> 1 AND offset >= 495", [(0, 495, ROWS), (2, 495, ROWS)]),
        ("offset = 7", [(0, 7, 8), (1, 7, 8), (2, 7, 8)]),
        (
            "offset BETWEEN 3 AND 5 OR offset = 7",
            [(p, n, n + 1) for p in range(3) for n in (3, 4, 5, 7)],
        ),
        ("partition = 1 AND offset IN (4, 9)", [(1, 4, 5), (1, 9, 10)]),
        ("topic = 'another'", []),
        (
            (
                f"timestamp >= timestamp_millis({BASE_MS + 490_000}) AND "
                f"timestamp < timestamp_millis({BASE_MS + 492_000})"
            ),
            [(p, 490, 492) for p in range(3)],
        ),
        (f"timestamp = timestamp_millis({BASE_MS + 5000})", [(p, 5, 6) for p in range(3)]),
        ("cast(value AS STRING) = '2:3'", [(2, 3, 4)]),
    ],
)
@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters(read: Any, numbers: str, condition: str, spans: Any, pushed: str):
    frame = read(numbers, filterPushdown=pushed).where(condition)
    assert values(frame) == expected(*spans)


def test_filters_leave_out_what_needs_no_reading(read: Any, numbers: str):
    """A filter that is heeded plans fewer tasks: three ranges, then one, then none."""
    options = {"maxRecordsPerPartition": str(ROWS), "filterPushdown": "true"}
    assert read(numbers, **options).rdd.getNumPartitions() == 3
    frame = read(numbers, **options).where("partition = 1 AND offset > 5")
    assert frame.rdd.getNumPartitions() == 1
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan
    # As many rows as the tasks gave, before Spark's filter: the time index was asked.
    late = read(numbers, **options).where(f"timestamp >= timestamp_millis({BASE_MS + 490_000})")
    scan = late._jdf.queryExecution().executedPlan().collectLeaves().head()
    assert scan.execute().count() == 3 * 10


def test_uses_of_one_dataframe_leave_one_another_alone(read: Any, numbers: str):
    """Why filters are heeded only where that is asked for: Spark keeps one plan per DataFrame."""
    frame = read(numbers)
    both = frame.where("partition = 1").union(frame.where("partition = 2"))
    assert values(both) == expected((1, 0, ROWS), (2, 0, ROWS))
    assert frame.where("partition = 1").count() == ROWS
    assert frame.count() == 3 * ROWS
    assert frame.where("offset < 10").count() == 30


def test_columns(read: Any, spark: SparkSession, numbers: str, server: ServerProcess):
    frame = read(numbers, columns="offset, partition")
    assert frame.columns == ["offset", "partition"]
    assert frame.count() == 3 * ROWS
    assert frame.selectExpr("sum(offset)").first()[0] == 3 * sum(range(ROWS))
    given = (
        spark.read.format("penstock")
        .schema("value binary, topic string")
        .option("url", f"http://{server.http}")
        .option("subscribe", numbers)
        .load()
    )
    assert {row.topic for row in given.collect()} == {numbers}
    assert values(given) == ALL


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "no-such-topic"}, "there is no such topic"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"kafka.bootstrap.servers": "x"}, "give url"),
        ({"startingOffsets": '{"T":{"0":501,"1":0,"2":0}}'}, "its high watermark is 500"),
        ({"startingTimestamp": str(BASE_MS + 10**9)}, "startingOffsetsByTimestampStrategy"),
        ({"maxOffsetsPerTrigger": "5"}, "a batch has no triggers"),
    ],
)
def test_refusals_reach_the_user(read: Any, numbers: str, options: Any, says: str):
    given = {name: value.replace('"T"', f'"{numbers}"') for name, value in options.items()}
    with pytest.raises(PySparkException) as refusal:
        read(None if "subscribe" in given else numbers, **given).count()
    assert says in str(refusal.value)


def test_records_that_were_deleted(read: Any, topics: Topics):
    topic = topics.make(1)
    topics.write(topic, [b"%d" % n for n in range(20)])
    topics.trim(topic, 0, 12)
    assert values(read(topic)) == sorted(str(n) for n in range(12, 20))
    beginning = f'{{"{topic}":{{"0":5}}}}'
    with pytest.raises(Exception, match="offset 5 is wanted, the log begins at 12"):
        read(topic, startingOffsets=beginning).count()
    frame = read(topic, startingOffsets=beginning, failOnDataLoss="false")
    assert values(frame) == sorted(str(n) for n in range(12, 20))


def planned(frame: DataFrame) -> DataFrame:
    """A DataFrame whose tasks are planned, and not run."""
    assert frame._jdf.queryExecution().executedPlan().execute().getNumPartitions() >= 0
    return frame


def test_retention_between_planning_and_reading(read: Any, topics: Topics):
    for lossy in ("true", "false"):
        topic = topics.make(1)
        topics.write(topic, [b"%d" % n for n in range(20)])
        frame = planned(read(topic, failOnDataLoss=lossy))
        topics.trim(topic, 0, 12)
        if lossy == "true":
            with pytest.raises(Exception, match="offset 0 is wanted, the log begins at 12"):
                frame.collect()
        else:
            assert values(frame) == sorted(str(n) for n in range(12, 20))


def test_deletion_between_planning_and_reading(read: Any, topics: Topics):
    for lossy in ("true", "false"):
        topic = topics.make(1)
        topics.write(topic, [b"%d" % n for n in range(20)])
        frame = planned(read(topic, failOnDataLoss=lossy))
        topics.delete(topic)
        if lossy == "true":
            with pytest.raises(Exception, match="was deleted while it was being read"):
                frame.collect()
        else:
            assert frame.collect() == []
