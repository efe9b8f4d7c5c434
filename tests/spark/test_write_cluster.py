"""Writes to a cluster over PostgreSQL and S3: bytes go to the bucket past the agents, and nothing
that is kept or sent holds a secret."""

from __future__ import annotations

import pickle
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

from chaos.world import World
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.connector.write import StreamTasks, batch_writer, stream_writer
from support.agents import SECRET
from support.ports import free_port
from support.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# No agent is to be fenced here, however long Spark keeps the machine from it.
SETTINGS = {"AGENT_TIMEOUT_MS": "20000", "SEGMENT_AGE_MS": "120000", "DELETE_GRACE_MS": "300000"}
PUT_CALL = 'penstock_pipeline_calls_total{call="put '
VALUE = StructType([StructField("value", StringType())])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world"), agents=2, settings=SETTINGS) as world:
        yield world


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def topics(world: World) -> Topics:
    return Topics(world.agents.bootstrap)


@pytest.fixture(scope="module")
def options(world: World, secret_file: Path) -> dict[str, str]:
    urls = [f"http://127.0.0.1:{free_port()}"]  # nobody is there
    urls += [f"http://{agent.http}" for agent in world.agents.agents]
    return {"url": ",".join(urls), "secretFile": str(secret_file)}


@pytest.fixture(scope="module")
def client(options: dict[str, str]) -> Iterator[PipelineClient]:
    urls = tuple(options["url"].split(","))
    with PipelineClient(ClientOptions(urls=urls, secret_file=options["secretFile"])) as client:
        yield client


def rows(spark: SparkSession, topic: str, options: dict[str, str]) -> list[tuple[Any, ...]]:
    reader = spark.read.format("penstock").options(**options).option("subscribe", topic)
    return sorted(reader.load().selectExpr("string(key)", "string(value)").collect())


def put_calls(world: World) -> list[str]:
    found = []
    for agent in world.agents.agents:
        with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=60) as response:
            text = response.read().decode()
        found += [line for line in text.splitlines() if line.startswith(PUT_CALL)]
    return found


@pytest.mark.parametrize("way", ["auto", "agent"])
def test_bytes_go_to_the_bucket(
    spark: SparkSession, world: World, topics: Topics, options: dict[str, str], way: str
) -> None:
    topic = topics.make(3)
    frame = spark.range(0, 5000, 1, 3).selectExpr(
        "string(id) AS key", "concat(string(id), repeat('x', 100)) AS value"
    )
    before = put_calls(world)
    frame.write.format("penstock").mode("append").options(**options, objects=way).option(
        "topic", topic
    ).option("compression", "zstd").save()
    assert (put_calls(world) == before) == (way == "auto")
    assert rows(spark, topic, options) == sorted((str(n), str(n) + "x" * 100) for n in range(5000))


def test_a_stream_into_the_bucket(
    spark: SparkSession, topics: Topics, options: dict[str, str], tmp_path: Path
) -> None:
    source, target = topics.make(2), topics.make(2)
    for _ in range(2):
        topics.write(source, [b"%d" % n for n in range(100)], keys=[b"k"] * 100)
        query = (
            spark.readStream.format("penstock")
            .options(**options)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .select("key", "value")
            .writeStream.format("penstock")
            .options(**options)
            .option("topic", target)
            .option("writerId", "copy")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert rows(spark, target, options) == rows(spark, source, options)
    kept = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert SECRET.encode() not in kept
    assert b"X-Amz-Signature" not in kept


def test_nothing_that_spark_sends_holds_a_secret(
    topics: Topics, options: dict[str, str], client: PipelineClient
) -> None:
    topic = topics.make(1)
    batch = batch_writer(options | {"topic": topic}, VALUE, overwrite=False)
    given = {"topic": topic, "writerId": "sent", "checkpointLocation": "c", "checkpointId": "1"}
    stream = stream_writer(options | given, VALUE, overwrite=False)
    sent = [cloudpickle.dumps(batch), cloudpickle.dumps(stream)]
    for pickled in list(sent):
        writer = pickle.loads(pickled)
        message = writer.write(iter([pa.RecordBatch.from_pydict({"value": ["a", "b"]})]))
        sent += [cloudpickle.dumps(message), cloudpickle.dumps(writer), repr(writer).encode()]
    for one in sent:
        assert SECRET.encode() not in one
        assert b"X-Amz-Signature" not in one
    assert isinstance(pickle.loads(sent[1]), StreamTasks)
    batch.abort([])


def test_a_wrong_secret_is_told_without_it(
    spark: SparkSession, topics: Topics, options: dict[str, str], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("not the secret of this cluster, but as long as that one")
    wrong.chmod(0o600)
    frame = spark.range(3).selectExpr("string(id) AS value")
    with pytest.raises(PySparkException) as caught:
        frame.write.format("penstock").mode("append").options(**options).option(
            "secretFile", str(wrong)
        ).option("topic", topics.make(1)).save()
    assert "secret" in str(caught.value)
    assert "as long as that one" not in str(caught.value)
