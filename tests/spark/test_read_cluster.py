"""Reads of a cluster over PostgreSQL and S3: records from the bucket past the agents, fresh ones
from WALs, while objects are replaced and agents die."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chaos.world import World
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.job import compact
from penstock.pipeline.engine import LocalEngine
from support.agents import SECRET, Agent
from support.server import answers
from support.topics import Topics
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# No agent is to be fenced here, however long Spark keeps the machine from it.
SETTINGS = {"AGENT_TIMEOUT_MS": "20000", "SEGMENT_AGE_MS": "120000", "DELETE_GRACE_MS": "300000"}
BYTES_CALL = 'penstock_pipeline_calls_total{call="get '
JOINS_ALL = CompactionSettings(growth=2, small_bytes=1)


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


@pytest.fixture
def read(spark: SparkSession, world: World, secret_file: Path) -> Any:
    def read(topic: str, **options: Any) -> DataFrame:
        reader = spark.read.format("penstock").option("subscribe", topic)
        urls = ",".join(f"http://{agent.http}" for agent in world.agents.agents)
        reader = reader.option("url", urls).option("secretFile", str(secret_file))
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    return read


@pytest.fixture
def client(world: World, secret_file: Path) -> Iterator[PipelineClient]:
    urls = tuple(f"http://{agent.http}" for agent in world.agents.agents)
    with PipelineClient(ClientOptions(urls=urls, secret_file=str(secret_file))) as client:
        yield client


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in sorted(frame.select("offset", "value").collect())]


def bytes_through(agents: list[Agent]) -> list[str]:
    found = []
    for agent in agents:
        with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=60) as response:
            text = response.read().decode()
        found += [line for line in text.splitlines() if line.startswith(BYTES_CALL)]
    return found


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, end)]


def fill(topics: Topics, topic: str, count: int, step: int = 20) -> list[bytes]:
    """So many records, in raw objects of `step` each."""
    for start in range(0, count, step):
        topics.write(topic, numbered(start, start + step))
    return numbered(0, count)


def planned(frame: DataFrame) -> DataFrame:
    """A DataFrame whose tasks are planned, and not run."""
    assert frame._jdf.queryExecution().executedPlan().execute().getNumPartitions() > 0
    return frame


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_from_the_bucket(world: World, topics: Topics, read: Any, codec: str):
    topic = topics.make(1, penstock_durability="object")
    written = [b"%d " % n * 50 for n in range(300)]
    topics.write(topic, written, compression_type=codec, headers=[[("h", b"v")]] * 300)
    before = bytes_through(world.agents.agents)
    assert values(read(topic)) == written
    assert bytes_through(world.agents.agents) == before
    assert values(read(topic, objects="agent")) == written
    assert bytes_through(world.agents.agents) != before
    (headers,) = read(topic, columns="headers").distinct().collect()
    assert [tuple(header) for header in headers[0]] == [("h", b"v")]


def test_fresh_records_from_a_wal(topics: Topics, read: Any):
    topic = topics.make(1, penstock_durability="wal")
    written = fill(topics, topic, 60)
    assert values(read(topic)) == written


def test_compaction_between_planning_and_reading(topics: Topics, read: Any, client: PipelineClient):
    topic = topics.make(1, penstock_durability="object")
    written = fill(topics, topic, 200)
    frame = planned(read(topic, maxRecordsPerPartition="30", leaseMs="0"))
    summary = compact(client, LocalEngine(1), JOINS_ALL, names=[topic])
    assert summary.runs_after < summary.runs_before, summary
    assert values(frame) == written
    assert values(read(topic)) == written


def test_compaction_by_key_between_planning_and_reading(
    topics: Topics, read: Any, client: PipelineClient
):
    """Gaps in offsets are no end and no loss."""
    topic = topics.make(
        1,
        penstock_durability="object",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0",
    )
    for start in range(0, 100, 20):
        topics.write(topic, numbered(start, start + 20), keys=[b"%d" % (n % 7) for n in range(20)])
    frame = planned(read(topic, maxRecordsPerPartition="30"))
    summary = compact(client, LocalEngine(1), JOINS_ALL, names=[topic])
    assert summary.dropped_records > 0, summary
    rows = frame.select("offset", "key", "value").collect()
    offsets = [row.offset for row in sorted(rows)]
    # As a consumer sees it: the newest of each key, and offsets as they were.
    newest = {bytes(row.key): row.offset for row in sorted(rows)}
    assert newest == {
        b"%d" % key: max(n for n in range(80, 100) if (n - 80) % 7 == key) for key in range(7)
    }
    assert len(offsets) < 100
    assert [bytes(row.value) for row in sorted(rows)] == [b"%d" % offset for offset in offsets]


def test_an_agent_that_dies_while_it_is_read_from(world: World, topics: Topics, read: Any):
    topic = topics.make(1, penstock_durability="object")
    written = fill(topics, topic, 400)
    first, second = world.agents.agents
    frame = read(topic, maxRecordsPerPartition="10", objects="agent", timeoutMs="5000")
    found = []
    for row in frame.toLocalIterator():
        if not found:
            first.server.kill()
        found.append(bytes(row.value))
    assert sorted(found) == sorted(written)
    assert values(read(topic)) == written
    first.server.start()
    eventually(lambda: answers(second.server.kafka_port) and answers(first.server.kafka_port))
    world.agents.wait_live(2)


def test_what_is_in_a_dead_agent_s_wal_is_never_left_out(world: World, topics: Topics, read: Any):
    topic = topics.make(1, penstock_durability="wal")
    written = fill(topics, topic, 40)
    assert values(read(topic)) == written
    agents = world.agents.agents
    for victim in agents:
        victim.server.kill()
        try:
            found = values(read(topic, deadlineMs="3000"))
        except Exception as error:
            # Its WAL held records: an error, and no rows.
            assert "rror" in str(error)
        else:
            assert found == written
        victim.server.start()
        world.agents.wait_live(2)
    assert values(read(topic)) == written


def test_without_the_secret_nothing_is_told(spark: SparkSession, world: World, topics: Topics):
    topic = topics.make(1)
    frame = (
        spark.read.format("penstock")
        .option("subscribe", topic)
        .option("url", f"http://{world.agents.agents[0].http}")
        .load()
    )
    with pytest.raises(Exception, match="secret"):
        frame.count()


def test_plans_hold_no_secret_and_no_presigned_url(topics: Topics, read: Any):
    topic = topics.make(1, penstock_durability="object")
    fill(topics, topic, 40)
    frame = read(topic)
    assert frame.count() == 40
    execution = frame._jdf.queryExecution()
    leaf = execution.executedPlan().collectLeaves().head()
    partitions = leaf.inputPartitions()
    plan = execution.toString()
    for number in range(partitions.size()):
        plan += bytes(partitions.apply(number).pickedPartition()).decode("latin-1")
    assert topic in plan
    for word in (SECRET, "X-Amz-Signature", "X-Amz-Credential"):
        assert word not in plan
