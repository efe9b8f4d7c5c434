"""DataFrames written to a real embedded server, read by a real consumer and by our connector."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException

from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.records.decode import CODECS
from support.server import ServerProcess
from support.topics import Topics
from support.twins.murmur import partition_of_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = datetime.now(tz=UTC).replace(microsecond=0)
HEADERS = "headers array<struct<key:string,value:binary>>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    server = ServerProcess(folder / "data", folder / "server.log")
    server.start()
    yield server
    status = server.stop()
    assert status == 0, server.tail()


@pytest.fixture(scope="module")
def url(server: ServerProcess) -> str:
    return f"http://{server.http}"


@pytest.fixture(scope="module")
def topics(server: ServerProcess) -> Topics:
    return Topics(server.bootstrap)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[PipelineClient]:
    with PipelineClient(ClientOptions(urls=(url,))) as client:
        yield client


def consumed(bootstrap: str, topic: str, partitions: int) -> list[Any]:
    """All records of a topic by a real consumer, partition by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False}
    )
    records = []
    try:
        for partition in range(partitions):
            place = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=60)
            consumer.assign([place])
            seen = 0
            while seen < end:
                message = consumer.poll(120)
                assert message is not None, f"{topic}-{partition} ended at {seen} of {end}"
                assert message.error() is None, message.error()
                records.append(message)
                seen = message.offset() + 1
    finally:
        consumer.close()
    return records


def write(frame: DataFrame, url: str, **options: Any) -> None:
    writer = frame.write.format("penstock").mode("append").option("url", url)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save()


def refused(frame: DataFrame, url: str, **options: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        write(frame, url, **options)
    return str(caught.value)


@pytest.mark.parametrize("codec", CODECS)
def test_a_consumer_reads_what_was_written(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str, codec: str
) -> None:
    topic = topics.make(3)
    rows = [
        (
            None if n % 7 == 0 else f"key-{n}",
            None if n % 11 == 0 else bytes([n % 256]) * (n % 90),
            [("a", b"1"), ("ü", None)] if n % 3 == 0 else None,
            NOW - timedelta(milliseconds=n) if n % 2 else None,
        )
        for n in range(500)
    ]
    frame = spark.createDataFrame(
        rows, f"key string, value binary, {HEADERS}, timestamp timestamp"
    ).repartition(3)
    write(frame, url, topic=topic, compression=codec, batchBytes=2000)
    records = consumed(server.bootstrap, topic, 3)

    def shape(key: Any, value: Any, headers: Any) -> tuple[Any, ...]:
        return (
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            tuple((name, None if v is None else bytes(v)) for name, v in headers or ()),
        )

    written = Counter(
        shape(None if key is None else key.encode(), value, headers)
        for key, value, headers, _ in rows
    )
    assert Counter(shape(r.key(), r.value(), r.headers()) for r in records) == written
    times = {r.key(): r.timestamp()[1] for r in records if r.key()}
    for key, _, _, timestamp in rows:
        if key is not None and timestamp is not None:
            assert times[key.encode()] == int(timestamp.timestamp() * 1000)
        elif key is not None:
            assert abs(times[key.encode()] - NOW.timestamp() * 1000) < 3_600_000
    for record in records:
        if record.key() is not None:
            assert record.partition() == partition_of_key(record.key(), 3)
    for partition in range(3):
        offsets = [record.offset() for record in records if record.partition() == partition]
        assert offsets == list(range(len(offsets)))


def test_what_was_read_can_be_written_as_it_is(
    spark: SparkSession, topics: Topics, url: str
) -> None:
    source, target = topics.make(2), topics.make(2)
    for partition in range(2):
        topics.write(
            source,
            [b"v%d" % n for n in range(50)],
            keys=[b"k%d" % n for n in range(50)],
            partition=partition,
            timestamps=[int(NOW.timestamp() * 1000) - n for n in range(50)],
            headers=[[("h", b"%d" % n)] for n in range(50)],
        )

    def read(topic: str) -> DataFrame:
        reader = spark.read.format("penstock").option("url", url)
        return reader.option("subscribe", topic).option("includeHeaders", "true").load()

    write(read(source).drop("topic"), url, topic=target)
    columns = ["partition", "offset", "key", "value", "timestamp", "headers"]
    rows = [sorted(map(str, read(t).select(*columns).collect())) for t in (source, target)]
    assert rows[0] == rows[1]


def test_rows_go_where_they_say(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str
) -> None:
    first, second = topics.make(2), topics.make(4)
    rows = [(name, n % 2, f"{name}:{n}") for n in range(40) for name in (first, second)]
    rows += [(second, 3, "last"), (second, None, "anywhere")]
    frame = spark.createDataFrame(rows, "topic string, partition int, value string")
    write(frame, url)
    records = consumed(server.bootstrap, first, 2) + consumed(server.bootstrap, second, 4)
    placed = {(r.topic(), r.partition(), r.value().decode()) for r in records}
    assert {row for row in placed if row[2] != "anywhere"} == {
        row for row in rows if row[1] is not None
    }
    assert len(records) == len(rows)
    # As in Kafka's sink: the option takes the column's place.
    only = topics.make(4)
    write(frame, url, topic=only)
    assert len(consumed(server.bootstrap, only, 4)) == len(rows)


def test_the_order_of_rows_is_kept(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str
) -> None:
    topic = topics.make(2)
    frame = spark.range(0, 30_000, 1, 3).selectExpr("'same' AS key", "string(id) AS value")
    write(frame, url, topic=topic, batchBytes=5000, objectBytes=65536)
    values = [int(record.value()) for record in consumed(server.bootstrap, topic, 2)]
    assert values == list(range(30_000))


def test_large_rows_go_into_several_objects(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str, client: PipelineClient
) -> None:
    topic = topics.make(2)
    frame = spark.range(0, 600, 1, 1).selectExpr(
        "string(id) AS key", "repeat(string(id % 10), 100000) AS value"
    )
    write(frame, url, topic=topic, objectBytes=1 << 20)
    (state,) = client.topics(names=[topic]).topics
    objects = {key for page in client.runs() for key in page.object_keys if "/job-" in key}
    assert len(objects) >= 3
    assert sum(partition.high_watermark for partition in state.partitions) == 600
    values = {r.value()[:1] for r in consumed(server.bootstrap, topic, 2)}
    assert values == {b"%d" % n for n in range(10)}


def test_keyless_rows_are_spread_over_partitions(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str
) -> None:
    topic = topics.make(4)
    frame = spark.range(0, 4000, 1, 1).selectExpr("repeat('x', 100) AS value")
    write(frame, url, topic=topic, batchBytes=10_000)
    records = consumed(server.bootstrap, topic, 4)
    counts = Counter(record.partition() for record in records)
    assert set(counts) == {0, 1, 2, 3}
    assert min(counts.values()) > 500


def test_a_log_append_time_topic_stamps_rows(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str
) -> None:
    topic = topics.make(1, message_timestamp_type="LogAppendTime")
    rows = [("a", datetime(2001, 1, 1, tzinfo=UTC))]
    write(spark.createDataFrame(rows, "value string, timestamp timestamp"), url, topic=topic)
    (record,) = consumed(server.bootstrap, topic, 1)
    kind, time = record.timestamp()
    assert kind == 2
    assert time >= NOW.timestamp() * 1000 - 1000


def test_topics_limits_are_those_of_produce(
    spark: SparkSession, topics: Topics, url: str, client: PipelineClient
) -> None:
    small = topics.make(1, max_message_bytes="2000")
    compacted = topics.make(1, cleanup_policy="compact")
    early = topics.make(1, message_timestamp_before_max_ms="60000")
    one = spark.createDataFrame([("x" * 5000,)], "value string")
    assert "max.message.bytes is 2000" in refused(one, url, topic=small)
    assert "rows have no key; the topic is compacted" in refused(one, url, topic=compacted)
    old = spark.createDataFrame(
        [("k", "v", NOW - timedelta(hours=1))], "key string, value string, timestamp timestamp"
    )
    assert "message.timestamp.before.max.ms is 60000" in refused(old, url, topic=early)
    ahead = spark.createDataFrame(
        [("v", NOW + timedelta(hours=9))], "value string, timestamp timestamp"
    )
    assert "message.timestamp.after.max.ms" in refused(ahead, url, topic=small)
    for topic in client.topics(names=[small, compacted, early]).topics:
        assert [partition.high_watermark for partition in topic.partitions] == [0]


def test_wrong_places_are_named(spark: SparkSession, topics: Topics, url: str) -> None:
    topic = topics.make(2)
    one = spark.createDataFrame([("v",)], "value string")
    assert "topic nowhere: there is no such topic" in refused(one, url, topic="nowhere")
    wrong = spark.createDataFrame([("v", 2)], "value string, partition int")
    assert f"{topic}-2: the topic has 2 partitions" in refused(wrong, url, topic=topic)
    named = spark.createDataFrame([("v", "gone")], "value string, topic string")
    assert "topic gone: there is no such topic" in refused(named, url)
    null = spark.createDataFrame([("v", topic), ("w", None)], "value string, topic string")
    assert "rows have none" in refused(null, url)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "t"}, "did you mean topic"),
        ({"kafka.bootstrap.servers": "h:1"}, "give url"),
        ({"topic": "t", "compression": "brotli"}, "none of none, gzip"),
        ({"topic": "t", "writerId": "w"}, "both writerId and batchId"),
        ({"topic": "t", "batchId": "1"}, "both writerId and batchId"),
        ({"topic": "t", "writerId": "once-x", "batchId": "1"}, "given by Penstock"),
        ({}, "give the option topic"),
    ],
)
def test_wrong_options_are_named(
    spark: SparkSession, url: str, options: dict[str, str], message: str
) -> None:
    assert message in refused(spark.createDataFrame([("v",)], "value string"), url, **options)


def test_columns_of_other_types_are_refused(spark: SparkSession, topics: Topics, url: str) -> None:
    topic = topics.make(1)
    numbers = spark.createDataFrame([(1,)], "value int")
    assert "its type is int, not string or binary" in refused(numbers, url, topic=topic)
    keys = spark.createDataFrame([("k",)], "key string")
    assert "column value: it is missing" in refused(keys, url, topic=topic)


def test_a_log_is_not_overwritten(spark: SparkSession, topics: Topics, url: str) -> None:
    topic = topics.make(1)
    frame = spark.createDataFrame([("v",)], "value string")
    with pytest.raises(PySparkException, match="appended to"):
        frame.write.format("penstock").mode("overwrite").option("url", url).option(
            "topic", topic
        ).save()


def test_a_write_opens_one_job_and_closes_it(
    spark: SparkSession, topics: Topics, url: str, client: PipelineClient
) -> None:
    topic = topics.make(1)
    client.info()  # it tries until somebody listens

    def calls() -> Counter[str]:
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
            text = response.read().decode()
        pattern = r'penstock_pipeline_calls_total\{call="(\w+) \d+"\} (\d+)'
        made: Counter[str] = Counter()
        for name, count in re.findall(pattern, text):
            made[name] += int(count)  # of each status there is a line
        return made

    before = calls()
    write(spark.range(0, 100, 1, 5).selectExpr("string(id) AS value"), url, topic=topic)
    made = calls() - before
    assert made["open_job"] == made["write"] == 1
    assert made["close_job"] >= 1
    assert made["renew_job"] == 0  # it took no fifth of the lease
    before = calls()
    refused(spark.createDataFrame([("v", 9)], "value string, partition int"), url, topic=topic)
    made = calls() - before
    assert made["open_job"] == 1
    assert made["close_job"] >= 1
    assert made["write"] == 0


def test_an_empty_frame_writes_nothing(
    spark: SparkSession, topics: Topics, url: str, client: PipelineClient
) -> None:
    topic = topics.make(1)
    write(spark.createDataFrame([], "value string"), url, topic=topic)
    assert client.topics(names=[topic]).topics[0].partitions[0].high_watermark == 0


def test_a_batch_with_writer_and_number_is_written_once(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str, client: PipelineClient
) -> None:
    topic = topics.make(2)
    frame = spark.range(100).selectExpr("string(id) AS value")
    for _ in range(2):
        write(frame, url, topic=topic, writerId="nightly", batchId=20260101)
    assert len(consumed(server.bootstrap, topic, 2)) == 100
    write(frame, url, topic=topic, writerId="nightly", batchId=20260102)
    assert len(consumed(server.bootstrap, topic, 2)) == 200
    assert "writer nightly is at 20260102" in refused(
        frame, url, topic=topic, writerId="nightly", batchId=20260101
    )
    known = client.writer("nightly")
    assert known is not None
    assert known.batch_id == 20260102
    for _ in range(2):
        write(frame, url, topic=topic)
    assert len(consumed(server.bootstrap, topic, 2)) == 400


def test_a_task_that_is_tried_again_leaves_only_an_orphan(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str, tmp_path: Path
) -> None:
    """The first attempt puts its object and dies; so does a twin that is run beside."""
    from penstock.pipeline.connector.write_columns import find_columns
    from penstock.pipeline.connector.write_commit import commit_write, open_write
    from penstock.pipeline.connector.write_options import parse_write_options
    from penstock.pipeline.connector.write_task import write_rows

    topic = topics.make(1)
    options = parse_write_options(
        {"url": url, "topic": topic, "writerId": "twins", "batchId": "0"}, streaming=False
    )
    columns = find_columns([("value", "string")], topic=topic)
    rows = spark.range(100).selectExpr("string(id) AS value").toArrow().combine_chunks()
    with PipelineClient(options.api) as client:
        plan = open_write(client, options, columns, incarnation="")
        twins = [write_rows(plan, rows.to_batches()) for _ in range(2)]
        assert twins[0].objects != twins[1].objects
        commit_write(client, twins[1:], writer_id="twins", batch_id=0, incarnation="batch")
        named = {key for page in client.runs() for key in page.object_keys}
        assert twins[1].objects[0].key in named
        assert twins[0].objects[0].key not in named
    assert len(consumed(server.bootstrap, topic, 1)) == 100
