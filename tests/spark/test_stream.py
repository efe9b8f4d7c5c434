"""Streams from a real server by Spark, stopped and started again from their checkpoints: each
record once, whatever happens to topics in between."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from support.server import ServerProcess
from support.spark_workers import kill_python_workers
from support.topics import Topics
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS_MAX = 600


class SinkFailedError(Exception):
    pass


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


class Query:
    """A query that is run again and again from one checkpoint; it keeps what each batch gave."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[str]] = {}
        self.fail_in: int | None = None
        self.then: Callable[[], object] = lambda: None
        """Called by each batch."""
        self.query: Any = None

    def frame(self, topic: str | None = None, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("penstock").option("url", self.url)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    def start(self, topic: str | None = None, *, now: bool = True, **options: str) -> Any:
        def keep(batch: DataFrame, number: int) -> None:
            rows = [bytes(row.value).decode() for row in batch.select("value").collect()]
            if self.fail_in == number:
                self.fail_in = None
                raise SinkFailedError(number)
            # A sink that is idempotent by the batch's number, as exactly once needs one.
            self.batches[number] = rows
            self.then()

        writer = self.frame(topic, **options).writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        writer = (
            writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
        )
        self.query = writer.start()
        return self.query

    def run(self, topic: str | None = None, **options: str) -> list[str]:
        """Read what is there now, and end. Returns: all values that any batch had, sorted."""
        query = self.start(topic, **options)
        assert query.awaitTermination(SECONDS_MAX), "still running"
        return self.values()

    def values(self) -> list[str]:
        return sorted(value for batch in self.batches.values() for value in batch)

    def offsets(self) -> dict[str, Any]:
        """The source's offsets that were checkpointed last."""
        last = max((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        value: dict[str, Any] = json.loads(last.read_text().splitlines()[-1])
        return value


@pytest.fixture
def query(spark: SparkSession, server: ServerProcess, tmp_path: Path) -> Iterator[Query]:
    query = Query(spark, f"http://{server.http}", tmp_path)
    yield query
    for active in spark.streams.active:
        active.stop()


def numbered(start: int, end: int, prefix: str = "") -> list[bytes]:
    return [f"{prefix}{n}".encode() for n in range(start, end)]


def as_values(*lists: list[bytes]) -> list[str]:
    return sorted(value.decode() for values in lists for value in values)


def test_each_record_once_over_restarts(query: Query, topics: Topics):
    topic = topics.make(2)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "70"}
    written: list[list[bytes]] = []
    for run in range(3):
        for partition in range(2):
            written.append(numbered(100 * run, 100 * run + 100, f"{partition}:"))
            topics.write(topic, written[-1], partition=partition)
        assert query.run(topic, **options) == as_values(*written)
    assert max(len(batch) for batch in query.batches.values()) <= 71
    assert len(query.batches) >= 9
    offsets = query.offsets()
    assert offsets["version"] == 1
    assert offsets["topics"][topic]["partitions"] == {"0": 300, "1": 300}


def test_a_batch_that_failed_is_run_again_with_the_same_records(query: Query, topics: Topics):
    topic = topics.make(1)
    topics.write(topic, numbered(0, 50))
    query.fail_in = 1
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    with pytest.raises(PySparkException, match="SinkFailedError"):
        query.run(topic, **options)
    assert query.values() == as_values(numbered(0, 20))
    topics.write(topic, numbered(50, 60))
    assert query.run(topic, **options) == as_values(numbered(0, 60))
    assert sorted(query.batches[1]) == as_values(numbered(20, 40))


def test_a_first_batch_at_latest_that_failed_loses_nothing(query: Query, topics: Topics):
    """Spark keeps nothing of where a query began: our offsets do."""
    topic = topics.make(1)
    topics.write(topic, numbered(0, 10))
    query.start(topic, now=False, startingOffsets="latest")
    eventually(lambda: 0 in query.batches, timeout_seconds=SECONDS_MAX)
    query.query.stop()
    assert query.values() == []
    topics.write(topic, numbered(10, 20))
    query.fail_in = 1
    with pytest.raises(PySparkException, match="SinkFailedError"):
        query.run(topic, startingOffsets="latest")
    assert query.run(topic, startingOffsets="latest") == as_values(numbered(10, 20))


def test_latest_fixes_the_start_before_the_first_batch_is_done(query: Query, topics: Topics):
    topic = topics.make(1)
    fail_first_at_latest(query, topics, topic)
    topics.write(topic, numbered(10, 20))
    # Spark 4.1 ends after the batch that is run again, which is empty.
    query.run(topic, startingOffsets="latest")
    assert query.run(topic, startingOffsets="latest") == as_values(numbered(10, 20))


def test_the_start_is_in_the_first_batch(query: Query, topics: Topics):
    topic = topics.make(1)
    fail_first_at_latest(query, topics, topic)
    began = query.offsets()["topics"][topic]
    assert began["from"] == began["partitions"] == {"0": 10}


def fail_first_at_latest(query: Query, topics: Topics, topic: str) -> None:
    topics.write(topic, numbered(0, 10))
    query.fail_in = 0
    query.start(topic, now=False, startingOffsets="latest")
    with pytest.raises(PySparkException, match="SinkFailedError"):
        query.query.awaitTermination(SECONDS_MAX)


def test_python_workers_that_are_killed_lose_and_double_nothing(query: Query, topics: Topics):
    """Tasks' and the planner's: the query fails or not, and goes on from its checkpoint."""
    topic = topics.make(2)
    for partition in range(2):
        topics.write(topic, numbered(0, 200, f"{partition}:"), partition=partition)
    written = as_values(numbered(0, 200, "0:"), numbered(0, 200, "1:"))
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    failures = 0
    while query.values() != written:
        query.start(topic, now=False, **options)
        done = len(query.batches)
        eventually(
            lambda done=done: len(query.batches) > done or not query.query.isActive,
            timeout_seconds=SECONDS_MAX,
        )
        if failures < 3:
            eventually(
                lambda: kill_python_workers(query.spark) or not query.query.isActive,
                timeout_seconds=SECONDS_MAX,
            )
        else:
            eventually(
                lambda: query.values() == written or not query.query.isActive,
                timeout_seconds=SECONDS_MAX,
            )
        failures += query.query.exception() is not None
        query.query.stop()
    assert failures >= 3
    assert query.values() == written


def test_partitions_and_topics_that_come_later(query: Query, topics: Topics):
    first = topics.make(1, name="later-a")
    topics.write(first, numbered(0, 5, "a"))
    options = {"subscribePattern": "later-.*"}
    query.start(now=False, **options, startingOffsets="earliest")
    eventually(
        lambda: query.values() == as_values(numbered(0, 5, "a")), timeout_seconds=SECONDS_MAX
    )
    topics.grow(first, 2)
    topics.write(first, numbered(0, 5, "p"), partition=1)
    second = topics.make(1, name="later-b")
    topics.write(second, numbered(0, 5, "b"))
    expected = as_values(*(numbered(0, 5, letter) for letter in "apb"))
    eventually(lambda: query.values() == expected, timeout_seconds=SECONDS_MAX)
    query.query.stop()
    topics.write(topics.make(1, name="later-c"), numbered(0, 5, "c"))
    assert query.run(**options) == sorted([*expected, *as_values(numbered(0, 5, "c"))])
    assert sorted(query.offsets()["topics"]) == ["later-a", "later-b", "later-c"]


def test_two_topics_by_name(query: Query, topics: Topics):
    one, other = topics.make(1), topics.make(1)
    topics.write(one, numbered(0, 5, "x"))
    topics.write(other, numbered(0, 5, "y"))
    found = query.run(f"{one},{other}", startingOffsets="earliest")
    assert found == as_values(numbered(0, 5, "x"), numbered(0, 5, "y"))


def test_an_available_now_query_ends_though_more_comes(query: Query, topics: Topics):
    """As many records in each batch as it reads."""
    topic = topics.make(1)
    topics.write(topic, numbered(0, 30))
    starts = itertools.count(30, 10)

    def write_more() -> None:
        start = next(starts)
        topics.write(topic, numbered(start, start + 10))

    query.then = write_more
    found = query.run(topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert found == as_values(numbered(0, 30))


def test_a_topic_made_anew_is_an_error(query: Query, topics: Topics):
    for allowed in ("true", "false"):
        query.checkpoint = query.checkpoint.parent / allowed
        query.batches.clear()
        topic = topics.make(1)
        topics.write(topic, numbered(0, 5))
        query.run(topic, startingOffsets="earliest")
        topics.delete(topic)
        topics.make(1, name=topic)
        topics.write(topic, numbered(0, 9))
        with pytest.raises(PySparkException, match="it was deleted and made again"):
            query.run(topic, failOnDataLoss=allowed)
        assert query.values() == as_values(numbered(0, 5))


def test_a_deleted_topic(query: Query, topics: Topics):
    one, other = topics.make(1), topics.make(1)
    topics.write(one, numbered(0, 5, "x"))
    topics.write(other, numbered(0, 5, "y"))
    both = f"{one},{other}"
    query.run(both, startingOffsets="earliest")
    topics.delete(one)
    topics.write(other, numbered(5, 9, "y"))
    with pytest.raises(PySparkException, match="was deleted while it was being read"):
        query.run(both)
    expected = as_values(numbered(0, 5, "x"), numbered(0, 9, "y"))
    assert query.run(both, failOnDataLoss="false") == expected


def test_a_deleted_topic_of_a_pattern(query: Query, topics: Topics):
    """Deleted, and then made again, unread: other topics go on, and it is no new one."""
    for name in ("gone-a", "gone-b"):
        topics.write(topics.make(1, name=name), numbered(0, 5, name))
    options = {"subscribePattern": "gone-.*"}
    query.run(**options, startingOffsets="earliest")
    topics.delete("gone-a")
    topics.write("gone-b", numbered(5, 9, "gone-b"))
    with pytest.raises(PySparkException, match="was deleted while it was being read"):
        query.run(**options)
    expected = as_values(numbered(0, 5, "gone-a"), numbered(0, 9, "gone-b"))
    assert query.run(**options, failOnDataLoss="false") == expected
    topics.write(topics.make(1, name="gone-a"), numbered(0, 5))
    with pytest.raises(PySparkException, match="it was deleted and made again"):
        query.run(**options, failOnDataLoss="false")
    assert query.values() == expected


def test_records_that_retention_took(query: Query, topics: Topics):
    topic = topics.make(1)
    topics.write(topic, numbered(0, 5))
    query.run(topic, startingOffsets="earliest")
    topics.write(topic, numbered(5, 20))
    topics.trim(topic, 0, 12)
    with pytest.raises(PySparkException) as gone:
        query.run(topic)
    for part in (f"topic {topic}", "partition 0", "offset 5 is wanted", "begins at 12"):
        assert part in str(gone.value)
    assert query.run(topic, failOnDataLoss="false") == as_values(numbered(0, 5), numbered(12, 20))
    assert query.offsets()["topics"][topic]["lost"] == 7
    progress = json.loads(query.query.lastProgress["sources"][0]["endOffset"])
    assert progress["topics"][topic]["lost"] == 7


def test_offsets_of_a_later_release_are_refused(query: Query, topics: Topics):
    topic = topics.make(1)
    topics.write(topic, numbered(0, 5))
    query.run(topic, startingOffsets="earliest")
    for path in (query.checkpoint / "offsets").glob("[0-9]*"):
        text = path.read_text()
        assert '{"version": 1, ' in text
        path.write_text(text.replace('{"version": 1, ', '{"version": 3, '))
        # Spark keeps a checksum beside each file.
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    topics.write(topic, numbered(5, 9))
    with pytest.raises(PySparkException, match="version 3 is unknown; this release knows 1"):
        query.run(topic)


def test_no_batch_before_there_is_enough(query: Query, topics: Topics):
    topic = topics.make(1)
    topics.write(topic, numbered(0, 3))
    query.start(
        topic,
        now=False,
        startingOffsets="earliest",
        minOffsetsPerTrigger="50",
        maxTriggerDelay="1h",
    )
    eventually(
        lambda: len(query.values()) == 3, timeout_seconds=SECONDS_MAX
    )  # the first batch doesn't wait
    topics.write(topic, numbered(3, 40))
    eventually(
        lambda: query.query.status["message"] == "Waiting for data to arrive",
        timeout_seconds=SECONDS_MAX,
    )
    topics.write(topic, numbered(40, 60))
    eventually(lambda: len(query.values()) >= 53, timeout_seconds=SECONDS_MAX)
    # Not one of the 37 and one of the 20; if these came in two requests, perhaps without the last.
    first, second = (len(query.batches[number]) for number in sorted(query.batches))
    assert first == 3
    assert second >= 50
