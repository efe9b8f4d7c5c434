"""Streams written to a real embedded server: each row once, whatever is killed and run again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException

from penstock.model.errors import ConflictError, FencedError, InvalidRequestError
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.connector.write_columns import find_columns
from penstock.pipeline.connector.write_commit import (
    checkpoint_incarnation,
    commit_write,
    open_write,
)
from penstock.pipeline.connector.write_options import parse_write_options
from penstock.pipeline.connector.write_plan import WritePlan
from penstock.pipeline.connector.write_task import write_rows
from support.server import REPOSITORY, ServerProcess
from support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTING_SECONDS_MAX = 600


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


class Rows:
    """A folder of text files that a stream reads; lines are "FILE:N"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.written: list[str] = []

    def add(self, count: int) -> None:
        name = f"{len(list(self.folder.iterdir())):03}"
        lines = [f"{name}:{n}" for n in range(count)]
        # As whole as the stream may find it.
        hidden = self.folder.parent / f"{name}.tmp"
        hidden.write_text("\n".join(lines) + "\n")
        hidden.rename(self.folder / f"{name}.txt")
        self.written += lines


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "rows")


class Stream:
    """Runs a stream from a folder into a topic until it has written all there is."""

    def __init__(self, spark: SparkSession, url: str, rows: Rows, topic: str) -> None:
        self._spark = spark
        self._options = {"url": url, "topic": topic}
        self._rows = rows

    def run(self, checkpoint: Path, **options: str) -> None:
        frame = (
            self._spark.readStream.format("text")
            .option("maxFilesPerTrigger", "1")
            .load(str(self._rows.folder))
        )
        writer = frame.writeStream.format("penstock").option("checkpointLocation", str(checkpoint))
        for name, value in (self._options | options).items():
            writer = writer.option(name, value)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()


def consumed(server: ServerProcess, topic: str, partitions: int) -> Counter[str]:
    """Values of all records by a real consumer."""
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "t", "enable.auto.commit": False}
    )
    values: Counter[str] = Counter()
    try:
        for partition in range(partitions):
            place = TopicPartition(topic, partition, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=60)
            consumer.assign([place])
            seen = 0
            while seen < end:
                message = consumer.poll(120)
                assert message is not None
                assert message.error() is None, message.error()
                values[message.value().decode()] += 1
                seen = message.offset() + 1
    finally:
        consumer.close()
    return values


def orphans(server: ServerProcess, client: PipelineClient) -> set[str]:
    """Objects of jobs that nothing names."""
    named = {key for page in client.runs() for key in page.object_keys}
    found = {
        f"segments/{path.parent.name}/{path.name}"
        for path in server.data.rglob("segments/*/job-*.seg")
    }
    return found - named


def test_a_stream_that_goes_on_writes_each_row_once(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str, rows: Rows, tmp_path: Path
) -> None:
    topic = topics.make(3)
    stream = Stream(spark, url, rows, topic)
    for count in (40, 1, 300):
        rows.add(count)
    stream.run(tmp_path / "checkpoint", writerId="going-on", compression="lz4")
    assert consumed(server, topic, 3) == Counter(rows.written)
    rows.add(20)
    stream.run(tmp_path / "checkpoint", writerId="going-on")
    stream.run(tmp_path / "checkpoint", writerId="going-on")
    assert consumed(server, topic, 3) == Counter(rows.written)


def test_a_batch_that_spark_forgot_gets_its_first_answer(
    spark: SparkSession,
    server: ServerProcess,
    topics: Topics,
    url: str,
    client: PipelineClient,
    rows: Rows,
    tmp_path: Path,
) -> None:
    """Spark notes a batch after its sink has committed it, and runs it again if it has not."""
    topic = topics.make(2)
    stream = Stream(spark, url, rows, topic)
    checkpoint = tmp_path / "checkpoint"
    rows.add(50)
    rows.add(60)
    stream.run(checkpoint, writerId="forgetful")
    before = orphans(server, client)
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    stream.run(checkpoint, writerId="forgetful")
    assert consumed(server, topic, 2) == Counter(rows.written)
    assert len(orphans(server, client) - before) >= 1
    rows.add(5)
    stream.run(checkpoint, writerId="forgetful")
    assert consumed(server, topic, 2) == Counter(rows.written)


def test_a_new_checkpoint_with_a_used_writer_is_refused(
    spark: SparkSession, server: ServerProcess, topics: Topics, url: str, rows: Rows, tmp_path: Path
) -> None:
    topic = topics.make(1)
    stream = Stream(spark, url, rows, topic)
    rows.add(10)
    stream.run(tmp_path / "first", writerId="taken")
    with pytest.raises(PySparkException, match="choose another writerId"):
        stream.run(tmp_path / "second", writerId="taken")
    assert consumed(server, topic, 1) == Counter(rows.written)
    stream.run(tmp_path / "second", writerId="free")
    assert sum(consumed(server, topic, 1).values()) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "a stream needs one"),
        ({"writerId": "w", "batchId": "3"}, "Spark's numbers"),
        ({"writerId": "w", "topic": "nowhere"}, "there is no such topic"),
    ],
)
def test_wrong_options_are_named(
    spark: SparkSession,
    topics: Topics,
    url: str,
    rows: Rows,
    tmp_path: Path,
    options: dict[str, str],
    message: str,
) -> None:
    rows.add(1)
    with pytest.raises(PySparkException, match=message):
        Stream(spark, url, rows, topics.make(1)).run(tmp_path / "checkpoint", **options)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_driver_loses_and_doubles_nothing(
    spark: SparkSession,
    server: ServerProcess,
    topics: Topics,
    url: str,
    client: PipelineClient,
    rows: Rows,
    tmp_path: Path,
    when: str,
) -> None:
    """Killed when objects are put and not committed, or committed and not noted by Spark."""
    topic = topics.make(2)
    checkpoint = tmp_path / "checkpoint"
    rows.add(80)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        str(REPOSITORY / folder) for folder in ("src", "tests")
    )
    program = REPOSITORY / "tests" / "support" / "dying_writer.py"
    died = subprocess.run(
        [sys.executable, program, url, topic, rows.folder, checkpoint, when],
        env=environment,
        capture_output=True,
        text=True,
        timeout=STARTING_SECONDS_MAX,
        check=False,
    )
    assert died.returncode != 0, died.stderr[-2000:]
    assert not (checkpoint / "commits" / "0").exists()
    assert orphans(server, client) or when == "after"
    assert sum(consumed(server, topic, 2).values()) == (80 if when == "after" else 0)
    rows.add(7)
    Stream(spark, url, rows, topic).run(checkpoint, writerId=f"dying-{when}")
    assert consumed(server, topic, 2) == Counter(rows.written)


# -- what drivers do to one another, without Spark ----------------------------------------------


def planned(client: PipelineClient, url: str, topic: str, incarnation: str) -> WritePlan:
    options = parse_write_options(
        {"url": url, "topic": topic, "writerId": f"w-{topic}", "checkpointLocation": "c"},
        streaming=True,
    )
    columns = find_columns([("value", "string")], topic=topic)
    return open_write(client, options, columns, incarnation=incarnation)


def chunk(text: str, count: int = 10) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"value": [f"{text}:{n}" for n in range(count)]})]


def commit(
    client: PipelineClient, topic: str, outputs: list[Any], batch: int, incarnation: str
) -> Any:
    return commit_write(
        client, outputs, writer_id=f"w-{topic}", batch_id=batch, incarnation=incarnation
    )


def test_of_two_drivers_with_one_checkpoint_one_batch_is_written(
    server: ServerProcess, topics: Topics, url: str, client: PipelineClient
) -> None:
    topic = topics.make(1)
    outputs = [
        [write_rows(planned(client, url, topic, "same"), chunk(name))] for name in ("a", "b")
    ]
    first = commit(client, topic, outputs[1], 0, "same")
    second = commit(client, topic, outputs[0], 0, "same")
    assert not first.repeated
    assert second.repeated
    assert second.ranges == first.ranges
    assert consumed(server, topic, 1) == Counter(f"b:{n}" for n in range(10))


def test_of_two_drivers_with_two_checkpoints_one_is_refused(
    server: ServerProcess, topics: Topics, url: str, client: PipelineClient
) -> None:
    topic = topics.make(1)
    plans = [planned(client, url, topic, name) for name in ("one", "two")]
    outputs = [[write_rows(plan, chunk(name))] for plan, name in zip(plans, "ab", strict=True)]
    commit(client, topic, outputs[0], 0, "one")
    with pytest.raises(ConflictError, match="choose another writerId"):
        commit(client, topic, outputs[1], 0, "two")
    with pytest.raises(ConflictError, match="choose another writerId"):
        planned(client, url, topic, "two")
    with pytest.raises(ConflictError, match="is at 1"):
        commit(
            client, topic, [write_rows(planned(client, url, topic, "one"), chunk("c"))], 1, "one"
        )
        commit(
            client, topic, [write_rows(planned(client, url, topic, "one"), chunk("d"))], 0, "one"
        )
    expected = [f"{name}:{n}" for name in "ac" for n in range(10)]
    assert consumed(server, topic, 1) == Counter(expected)


def test_a_job_that_is_over_writes_nothing(
    server: ServerProcess, topics: Topics, url: str, client: PipelineClient
) -> None:
    topic = topics.make(1)
    plan = planned(client, url, topic, "same")
    output = write_rows(plan, chunk("a"))
    client.close_job(plan.job)
    with pytest.raises(FencedError):
        commit(client, topic, [output], 0, "same")
    with pytest.raises((FencedError, ConflictError)):
        write_rows(plan, chunk("a"))
    with pytest.raises(FencedError):
        write_rows(msgspec.structs.replace(plan, opened_ms=0), chunk("a"))
    assert not consumed(server, topic, 1)
    # The next attempt has a job of its own.
    commit(client, topic, [write_rows(planned(client, url, topic, "same"), chunk("a"))], 0, "same")
    assert sum(consumed(server, topic, 1).values()) == 10


def test_a_topic_that_is_deleted_meanwhile_refuses_all(
    server: ServerProcess, topics: Topics, url: str, client: PipelineClient
) -> None:
    kept, gone = topics.make(1), topics.make(1)
    options = parse_write_options(
        {"url": url, "writerId": "both", "checkpointLocation": "c"}, streaming=True
    )
    columns = find_columns([("value", "string"), ("topic", "string")], topic="")
    plan = open_write(client, options, columns, incarnation="same")
    batch = pa.RecordBatch.from_pydict({"value": ["a", "b"], "topic": [kept, gone]})
    output = write_rows(plan, [batch])
    topics.delete(gone)
    with pytest.raises(ConflictError):
        commit_write(client, [output], writer_id="both", batch_id=0, incarnation="same")
    assert not consumed(server, kept, 1)


def test_a_checkpoint_is_known_by_its_id(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata").write_text(f'{{"id":"id of {name}"}}')
    assert checkpoint_incarnation(str(tmp_path / "one")) == "id of one"
    assert checkpoint_incarnation((tmp_path / "two").as_uri() + "/") == "id of two"


@pytest.mark.parametrize("content", [None, "", "{}", '{"id":""}', '{"id":7}', "[]"])
def test_a_checkpoint_whose_id_cannot_be_read_is_refused(
    tmp_path: Path, content: str | None
) -> None:
    """Its place would stand for what is begun anew there, too, and batches would be lost."""
    if content is not None:
        (tmp_path / "metadata").write_text(content)
    with pytest.raises(InvalidRequestError, match="checkpointId"):
        checkpoint_incarnation(str(tmp_path))
