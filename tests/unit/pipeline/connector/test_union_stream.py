"""The stream of table and log, driven as Spark does it, without Spark's engine: each record once,
whatever happens between its batches and to its process."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from penstock.model.errors import InvalidRequestError, NotFoundError, PenstockError
from penstock.model.table_names import PIN_JOB
from penstock.pipeline.connector.source import PenstockDataSource
from penstock.pipeline.connector.union_stream import UnionStreamReader
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.ranges import LogTruncatedError
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from support.api_server import NOW_MS, ApiServer, serve_in_thread
from support.registry import serve_registry
from support.tables import Lake, follow, new_record, produce, produce_values
from support.typed import avro, record, typed

Place = tuple[int, int]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path_factory.mktemp("server")) as api:
        yield api


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "warehouse")


def create(api: ApiServer, topic: str, partitions: int = 2) -> None:
    api.create(topic, partitions)
    api.create(f"{topic}.dlq", 1)


def fill(api: ApiServer, topic: str, count: int = 3, partitions: int = 2) -> None:
    for partition in range(partitions):
        produce_values(api, topic, [b"v"] * count, partition)


def maintain(api: ApiServer, lake: Lake, topic: str) -> None:
    upkeep = Maintenance(snapshot_age_ms=0, orphan_age_ms=0, files_min=2)
    maintain_table(api.client, LocalEngine(1), lake.settings(topic), upkeep)


def pins(api: ApiServer, topic: str) -> list[int]:
    topic_id = api.topics[topic][0]
    return [job.job for job in api.client.jobs() if (job.kind, job.name) == (PIN_JOB, topic_id)]


class Query:
    """A query and its checkpoint: ends of batches, of which the last may not be committed."""

    def __init__(self, api: ApiServer, lake: Lake, topic: str, **options: str) -> None:
        (url,) = api.client.options.urls
        self.options = {
            "view": "table+log",
            "url": url,
            "subscribe": topic,
            "warehouse": str(lake.folder),
            **options,
        }
        self.kept: list[str] = []
        self.committed = 0
        self.rows: list[dict[str, Any]] = []
        self.reader: UnionStreamReader | None = None

    def restart(self, *columns: str, **options: str) -> None:
        """Begin as a process of its own: what it knew is in the checkpoint alone.

        Args:
            columns: by the user's schema; all, if none is given.
        """
        self.stop()
        self.options |= options
        source = PenstockDataSource(CaseInsensitiveDict(self.options))
        schema = longs(*columns) if columns else source.schema()
        assert isinstance(schema, StructType)
        source = pickle.loads(pickle.dumps(source))
        reader = source.streamReader(schema)
        assert isinstance(reader, UnionStreamReader)
        self.reader = reader

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()
            self.reader = None

    def begin(self) -> Any:
        assert self.reader is not None
        if not self.committed:
            return as_kept(self.reader.initialOffset())
        return json.loads(self.kept[self.committed - 1])

    def plan(self, rows_max: int | None = None) -> list[InputPartition]:
        """The tasks of the next batch, or of the one that was planned and not committed."""
        assert self.reader is not None
        start = self.begin()
        if len(self.kept) == self.committed:
            limit = ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)
            end = as_kept(self.reader.latestOffset(start, limit))
            if end == start:
                return []
            self.kept.append(json.dumps(end))
        return list(self.reader.partitions(start, json.loads(self.kept[-1])))

    def read(self, tasks: list[InputPartition]) -> list[dict[str, Any]]:
        assert self.reader is not None
        reader = pickle.loads(pickle.dumps(self.reader))
        batches = [batch for task in tasks for batch in reader.read(task)]
        return pa.Table.from_batches(batches).to_pylist() if batches else []

    def batch(self, rows_max: int | None = None) -> list[Place]:
        """Run and commit one; []: there is nothing to read."""
        rows = self.read(self.plan(rows_max))
        self.committed = len(self.kept)
        self.rows += rows
        return places(rows)

    def drain(self) -> None:
        while self.batch():
            pass

    def drain_by(self, rows_max: int) -> None:
        while self.batch(rows_max):
            pass

    @property
    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kept[-1])["table"]
        return found


def longs(*columns: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in columns])


def as_kept(offsets: Any) -> Any:
    return json.loads(json.dumps(offsets))


def places(rows: list[dict[str, Any]]) -> list[Place]:
    prefix = "" if rows and "offset" in rows[0] else "kafka_"
    return sorted((row.get(f"{prefix}partition", 0), row[f"{prefix}offset"]) for row in rows)


def everything(count: int, partitions: int = 2) -> list[Place]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


@pytest.fixture
def queries() -> Iterator[list[Query]]:
    made: list[Query] = []
    yield made
    for query in made:
        query.stop()


@pytest.fixture
def stored(api: ApiServer, lake: Lake, queries: list[Query], request: Any) -> tuple[str, Query]:
    """A topic whose table has three commits of six rows, and a query of it."""
    topic = f"s{abs(hash(request.node.name)) % 10**12}"
    create(api, topic)
    for _ in range(3):
        fill(api, topic)
        follow(api, lake, topic)
    query = Query(api, lake, topic)
    queries.append(query)
    return topic, query


def test_it_goes_over_from_the_table_to_the_log_in_bounded_batches(
    api: ApiServer, stored: tuple[str, Query]
) -> None:
    topic, query = stored
    fill(api, topic, 2)
    query.restart()
    seen = [query.batch(7), query.batch(7), query.batch(7), query.batch(7)]
    assert [len(rows) for rows in seen] == [6, 6, 6, 4]
    assert seen[3] == [(0, 9), (0, 10), (1, 9), (1, 10)]
    assert places(query.rows) == everything(11)
    assert query.batch() == []
    fill(api, topic, 1)
    assert query.batch() == [(0, 11), (1, 11)]
    assert query.rows[0].keys() == {"key", "value", "partition", "offset", "timestamp", "headers"}
    ends = [json.loads(text) for text in query.kept]
    assert [end["table"]["read"] for end in ends] == [1, 2, 3, 3, 3]
    assert {end["version"] for end in ends} == {2}
    (at_hand_over,) = ends[2]["topics"].values()
    assert at_hand_over["partitions"] == {"0": 9, "1": 9}


def test_no_more_files_in_a_batch_than_are_allowed(stored: tuple[str, Query]) -> None:
    _, query = stored
    query.restart(maxFilesPerTrigger="2")
    assert [len(query.batch()) for _ in range(3)] == [12, 6, 0]


def test_restarts_commits_joins_and_expiry_change_nothing_while_it_is_pinned(
    api: ApiServer, lake: Lake, stored: tuple[str, Query]
) -> None:
    topic, query = stored
    query.restart()
    planned = query.plan(7)
    (pin,) = pins(api, topic)
    fill(api, topic, 2)
    follow(api, lake, topic)
    maintain(api, lake, topic)
    # The process dies in its first batch, which is the same again, though the table has moved.
    query.restart()
    again = query.plan(7)
    assert places(query.read(again)) == places(query.read(planned))
    query.batch(7)
    for _ in range(2):
        fill(api, topic, 1)
        follow(api, lake, topic)
        maintain(api, lake, topic)
        query.restart()
        assert len(query.batch(7)) == 6
        assert query.table["pin"] == pin
        assert pins(api, topic) == [pin], "the one that load() opened again is let go"
    assert query.batch() == [(p, offset) for p in (0, 1) for offset in range(9, 13)]
    assert places(query.rows) == everything(13)
    assert query.batch() == []
    assert pins(api, topic) == [], "it has come to the log's end"


def test_the_log_is_held_until_the_stream_has_come_to_its_end(
    api: ApiServer, lake: Lake, stored: tuple[str, Query]
) -> None:
    topic, query = stored
    fill(api, topic, 4)
    follow(api, lake, topic)
    query.restart()
    fill(api, topic, 4)
    query.batch()
    assert query.table["read"] == query.table["files"]
    query.restart()
    (pin,) = pins(api, topic)[:1]
    assert query.batch(2) != []
    assert pins(api, topic) == [pin]
    assert query.table["pin"] == pin
    while query.batch(2):
        pass
    assert pins(api, topic) == []
    fill(api, topic, 1)
    query.batch()
    assert "pin" not in query.table
    assert places(query.rows) == everything(18)


def test_a_snapshot_that_is_gone_is_an_error_that_says_what_to_do(
    api: ApiServer, lake: Lake, stored: tuple[str, Query], caplog: pytest.LogCaptureFixture
) -> None:
    topic, query = stored
    query.restart()
    query.batch(7)
    query.stop()
    for pin in pins(api, topic):
        api.client.close_job(pin)
    query.restart()
    with caplog.at_level(logging.WARNING):
        assert len(query.batch(7)) == 6
    assert "is over" in caplog.text, "it is still there, and held by nothing until now"
    query.stop()
    for pin in pins(api, topic):
        api.client.close_job(pin)
    fill(api, topic)
    follow(api, lake, topic)
    maintain(api, lake, topic)
    query.restart()
    with pytest.raises(NotFoundError, match=r"was expired before .*begin a new checkpoint"):
        query.batch(7)


def test_files_that_are_not_those_that_were_counted_are_an_error(
    stored: tuple[str, Query],
) -> None:
    _, query = stored
    query.restart()
    query.batch(7)
    query.kept[-1] = query.kept[-1].replace(f'"sum": {query.table["sum"]}', '"sum": 1')
    with pytest.raises(NotFoundError, match="snapshot"):
        query.batch(7)


def test_the_order_of_files_is_that_of_their_least_timestamps(
    api: ApiServer, lake: Lake, queries: list[Query]
) -> None:
    create(api, "aged")
    for age in (2, 3, 1):
        produce(api, "aged", 0, [new_record(b"k", b"%d" % age, timestamp_ms=NOW_MS - age)])
        follow(api, lake, "aged")
    query = Query(api, lake, "aged")
    queries.append(query)
    query.restart()
    query.drain_by(1)
    assert [row["value"] for row in query.rows] == [b"3", b"2", b"1"]


def test_a_query_that_begins_long_after_it_was_loaded_pins_the_newest_snapshot(
    api: ApiServer, lake: Lake, stored: tuple[str, Query]
) -> None:
    topic, query = stored
    query.restart()
    for pin in pins(api, topic):
        api.client.close_job(pin)
    fill(api, topic)
    follow(api, lake, topic)
    assert len(query.batch()) == 24
    assert pins(api, topic) == [query.table["pin"]]


def test_partitions_that_come_later_are_read_from_their_first_record(
    api: ApiServer, lake: Lake, stored: tuple[str, Query]
) -> None:
    topic, query = stored
    query.restart()
    query.batch(7)
    api.grow(topic, 3)
    fill(api, topic, 2, partitions=3)
    follow(api, lake, topic)
    query.restart()
    query.drain()
    assert places(query.rows) == [*everything(11), (2, 0), (2, 1)]


def test_an_empty_table_and_one_that_begins_late(
    api: ApiServer, lake: Lake, queries: list[Query]
) -> None:
    create(api, "empty")
    follow(api, lake, "empty")
    create(api, "late")
    fill(api, "late", 4)
    follow(api, lake, "late", begin="latest")
    for topic, first in (("empty", 0), ("late", 4)):
        query = Query(api, lake, topic)
        queries.append(query)
        query.restart()
        # In its first batch a query dies that has no table's part.
        fill(api, topic, 2)
        planned = places(query.read(query.plan()))
        fill(api, topic, 1)
        query.restart()
        assert places(query.read(query.plan())) == planned
        query.drain()
        query.drain()
        expected = [(p, first + offset) for p in (0, 1) for offset in range(3)]
        assert places(query.rows) == expected


def test_a_table_with_one_row_per_key_is_refused(
    api: ApiServer, lake: Lake, queries: list[Query]
) -> None:
    create(api, "keys")
    produce(api, "keys", 0, [new_record(b"k", b"v")])
    follow(api, lake, "keys", mode="upsert", buckets=2)
    query = Query(api, lake, "keys")
    queries.append(query)
    with pytest.raises(InvalidRequestError, match="one row per key"):
        query.restart()
    query.restart("offset")
    with pytest.raises(InvalidRequestError, match="one row per key"):
        query.batch()


def test_a_checkpoint_of_another_view_or_table_is_refused(
    api: ApiServer, lake: Lake, stored: tuple[str, Query]
) -> None:
    topic, query = stored
    query.restart()
    query.batch()
    log = {"url": query.options["url"], "subscribe": topic}
    source = PenstockDataSource(CaseInsensitiveDict(log))
    reader: Any = source.streamReader(longs("offset"))
    with pytest.raises(InvalidRequestError, match=f"it is of table penstock.{topic}, too"):
        reader.latestOffset(json.loads(query.kept[-1]), ReadAllAvailable())
    kept = query.kept[-1]
    query.kept[-1] = json.dumps(reader.initialOffset())
    with pytest.raises(InvalidRequestError, match="it is of the log alone"):
        query.batch()
    reader.stop()
    query.kept[-1] = kept.replace(f"penstock.{topic}", "penstock.other")
    with pytest.raises(InvalidRequestError, match=r"of table penstock.other, and the options say"):
        query.batch()
    query.kept[-1] = kept.replace('"version": 2', '"version": 3')
    with pytest.raises(InvalidRequestError, match="version 3 is unknown; this release knows 1 and"):
        query.batch()


def test_what_is_deleted_before_it_was_read_is_an_error_or_counted(
    api: ApiServer, stored: tuple[str, Query]
) -> None:
    topic, query = stored
    fill(api, topic, 4)
    query.restart()
    query.batch()
    api.trim(topic, 1, 11)
    with pytest.raises(LogTruncatedError, match="offset 9 is wanted, the log begins at 11"):
        query.batch()
    query.restart(failOnDataLoss="false")
    query.drain()
    assert places(query.rows) == [one for one in everything(13) if one not in {(1, 9), (1, 10)}]
    assert json.loads(query.kept[-1])["topics"][topic]["lost"] == 2


# -- schemas ---------------------------------------------------------------------------------------


def test_newer_schemas_stop_a_query_until_it_is_started_again_and_letters_are_no_rows(
    api: ApiServer, lake: Lake, queries: list[Query]
) -> None:
    one = record(("a", "long"))
    two = record(("a", "long"), ("b", ["null", "string"]))
    three = record(("a", "string"))
    create(api, "typed")
    with serve_registry() as registry:
        first, second = registry.register("typed", one), registry.register("typed", two)
        third = registry.register("typed", three)
        produce_values(api, "typed", avro(first, one, {"a": 1}))
        typed(api, lake, "typed", registry)
        query = Query(api, lake, "typed", registry=registry.url)
        some = Query(api, lake, "typed", registry=registry.url, columns="a,kafka_offset")
        queries += [query, some]
        for each in (query, some):
            each.restart()
            assert [row["a"] for row in each.read(each.plan())] == [1]
            each.batch()
        # An id that the registry lacks is a dead letter, and not a newer schema.
        produce_values(api, "typed", [b"bad", b"\0\0\0\7\7x", *avro(first, one, {"a": 2})])
        for each in (query, some):
            each.batch()
            assert each.rows[1]["a"] == 2
        produce_values(api, "typed", avro(second, two, {"a": 3, "b": "x"}))
        some.batch()
        assert [row["a"] for row in some.rows] == [1, 2, 3]
        with pytest.raises(InvalidRequestError, match=r"a newer schema came, with b, .* again"):
            query.batch()
        # Whether the table has followed it meanwhile or not.
        query.restart()
        rows = query.read(query.plan())
        assert [(row["a"], row["b"]) for row in rows] == [(3, "x")]
        query.batch()
        produce_values(api, "typed", avro(first, one, {"a": 4}))
        assert query.batch(), "it knows the column, though neither table nor batch has it"
        typed(api, lake, "typed", registry)
        query.restart()
        produce_values(api, "typed", avro(first, one, {"a": 4}))
        assert query.batch()
        assert query.rows[-3]["b"] == "x"
        assert (query.rows[-1]["a"], query.rows[-1]["b"]) == (4, None)
        produce_values(api, "typed", avro(third, three, {"a": "no"}))
        with pytest.raises(PenstockError, match=r"a .*string"):
            query.batch()


def test_another_schema_text_is_followed_when_it_is_started_again(
    api: ApiServer, lake: Lake, queries: list[Query]
) -> None:
    def said(**fields: str) -> dict[str, str]:
        properties = {name: {"type": kind} for name, kind in fields.items()}
        text = json.dumps({"type": "object", "properties": properties, "required": ["a"]})
        return {"penstock.table.schema": "text", "penstock.table.schema.text": text}

    api.create("texts", 1, said(a="integer"))
    api.create("texts.dlq", 1)
    produce_values(api, "texts", [b'{"a":1}'])
    follow(api, lake, "texts")
    query = Query(api, lake, "texts")
    queries.append(query)
    query.restart()
    query.drain()
    api.alter("texts", said(a="integer", b="string"))
    produce_values(api, "texts", [b'{"a":2,"b":"x"}'])
    with pytest.raises(InvalidRequestError, match="a newer schema came, with b"):
        query.batch()
    query.restart()
    query.drain()
    assert [(row["a"], row.get("b")) for row in query.rows] == [(1, None), (2, "x")]


def test_a_column_that_is_not_there_is_refused(stored: tuple[str, Query]) -> None:
    _, query = stored
    query.restart("offset", "nope")
    with pytest.raises(InvalidRequestError, match="column 'nope'"):
        query.batch()
