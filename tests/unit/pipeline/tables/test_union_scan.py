"""One view of table and log, without Spark: each record once, whatever happens meanwhile."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual

import penstock.tables
from penstock.model.errors import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
)
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.lease import JobLease
from penstock.pipeline.tables import union, union_rows, union_scan
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.maintenance import Maintenance, maintain_table
from support.api_server import NOW_MS, ApiServer, replacement
from support.registry import Registry
from support.tables import Lake, follow, new_record, produce, produce_values
from support.typed import avro, record, typed
from support.waiting import eventually


def read(api: ApiServer, lake: Lake, topic: str, **options: Any) -> pa.Table:
    (url,) = api.client.options.urls
    return penstock.tables.read(topic, url=url, warehouse=str(lake.folder), **options)


def places(rows: pa.Table, prefix: str = "") -> list[tuple[int, int]]:
    columns = (f"{prefix}partition", f"{prefix}offset")
    return sorted(zip(*(rows.column(name).to_pylist() for name in columns), strict=True))


def half_filled(api: ApiServer, lake: Lake, topic: str, **changes: Any) -> None:
    for partition in (0, 1):
        produce_values(api, topic, [b"%d" % n for n in range(5)], partition)
    follow(api, lake, topic, **changes)
    for partition in (0, 1):
        produce_values(api, topic, [b"%d" % n for n in range(5, 8)], partition)


@pytest.mark.slow
def test_table_and_log_are_one_with_the_tables_columns(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    produce(api, topic, 0, [new_record(b"k", b"1", headers=[("h", b"x")])])
    follow(api, lake, topic)
    produce(api, topic, 0, [new_record(b"k", None, headers=[("h", None)])])
    rows = read(api, lake, topic).sort_by("offset")
    assert rows.column_names == ["key", "value", "partition", "offset", "timestamp", "headers"]
    assert rows.column("value").to_pylist() == [b"1", None]
    assert rows.column("headers").to_pylist() == [
        [{"key": "h", "value": b"x"}],
        [{"key": "h", "value": None}],
    ]
    follow(api, lake, topic)
    assert read(api, lake, topic).sort_by("offset").equals(rows), (
        "the same once the table holds all"
    )


@pytest.mark.slow
def test_each_record_is_there_once_and_columns_and_filters_go_to_both_sides(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    half_filled(api, lake, topic)
    everything = [(partition, offset) for partition in (0, 1) for offset in range(8)]
    assert places(read(api, lake, topic)) == everything
    some = read(api, lake, topic, columns=["offset", "partition"], row_filter="offset >= 3")
    assert some.column_names == ["offset", "partition"]
    assert places(some) == [place for place in everything if place[1] >= 3]
    with pytest.raises(InvalidRequestError, match="hasn't got it"):
        read(api, lake, topic, columns=["no"])
    for wrong in ("offset >", "no = 1", "value = 'not bytes'"):
        with pytest.raises(InvalidRequestError, match="read table and log row_filter"):
            read(api, lake, topic, row_filter=wrong)


def test_duckdb_reads_it(api: ApiServer, lake: Lake, topic: str) -> None:
    half_filled(api, lake, topic)
    (url,) = api.client.options.urls
    with penstock.tables.scan(topic, url=url, warehouse=str(lake.folder)) as rows:
        found = duckdb.from_arrow(rows).aggregate('count(*), max("offset")').fetchall()
    assert found == [(16, 7)]
    topic_id = api.topics[topic][0]
    assert topic_id not in {job.name for job in api.client.jobs()}, "its pin has ended"


def maintain(api: ApiServer, lake: Lake, topic: str) -> None:
    upkeep = Maintenance(snapshot_age_ms=0, orphan_age_ms=0, files_min=2)
    maintain_table(api.client, LocalEngine(1), lake.settings(topic), upkeep)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before the table", "after the table", "before the log is read"])
def test_commits_joins_and_expiry_between_the_steps_change_nothing(
    api: ApiServer, lake: Lake, topic: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_filled(api, lake, topic)
    produce_values(api, topic, [b"more"])
    follow(api, lake, topic)
    produce_values(api, topic, [b"tail"] * 3)

    def meanwhile() -> None:
        follow(api, lake, topic)
        produce_values(api, topic, [b"too late"])
        follow(api, lake, topic)
        maintain(api, lake, topic)

    around(monkeypatch, step, meanwhile)
    found = read(api, lake, topic)
    late = found.column("value").to_pylist().count(b"too late")
    assert late == (step == "before the table"), "what the newest snapshot holds is in it"
    expected = [(0, offset) for offset in range(12 + late)] + [(1, n) for n in range(8)]
    assert places(found) == expected
    # Once the pin has ended, expiry takes what it held.
    files = lake.files(topic)
    follow(api, lake, topic)
    produce_values(api, topic, [b"x"])
    follow(api, lake, topic)
    maintain(api, lake, topic)
    maintain(api, lake, topic)
    assert set(files) - set(lake.files(topic))


def around(patch: pytest.MonkeyPatch, step: str, meanwhile: Callable[[], None]) -> None:
    """Let something happen once, at a step of a view."""
    owner, name = {
        "before the table": (union, "load_table"),
        "after the table": (union, "load_table"),
        "before the log is read": (union_rows, "read_range"),
    }[step]
    real: Any = getattr(owner, name)
    done: list[bool] = []

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if step.startswith("before") and not done:
            done.append(True)
            meanwhile()
        answer = real(*arguments, **named)
        if step.startswith("after") and not done:
            done.append(True)
            meanwhile()
        return answer

    patch.setattr(owner, name, wrapped)


@pytest.mark.slow
def test_what_is_in_neither_is_an_error_that_names_it(
    api: ApiServer, lake: Lake, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    half_filled(api, lake, topic)
    api.trim(topic, 1, 7)
    with pytest.raises(NotFoundError, match=f"{topic}-1: .*below 5 and the log begins at 7: 2 off"):
        read(api, lake, topic)
    found = places(read(api, lake, topic, fail_on_data_loss=False))
    assert f"{topic}-1: the table holds offsets below 5" in caplog.text
    assert [offset for partition, offset in found if partition == 1] == [0, 1, 2, 3, 4, 7]


@pytest.mark.slow
def test_an_agent_that_lags_behind_cleaning_is_asked_again_and_not_for_ever(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that replays its journal for long says where cleaning is, and old watermarks."""
    half_filled(api, lake, topic)
    lags = 3
    pauses: list[float] = []
    real = PipelineClient.topics

    def topics(self: PipelineClient, **wanted: Any) -> Any:
        nonlocal lags
        found = real(self, **wanted)
        if "topic_ids" in wanted and lags > 0:
            lags -= 1
            (one,) = found.topics
            ahead = [replace(at, clean_end=at.high_watermark + 7) for at in one.partitions]
            return replace(found, topics=[replace(one, partitions=ahead)])
        return found

    monkeypatch.setattr(PipelineClient, "topics", topics)
    monkeypatch.setattr(union, "pause", pauses.append)
    assert len(places(read(api, lake, topic))) == 16
    assert pauses == [0.0, 0.01, 0.02, 0.04]
    lags = 1_000
    with pytest.raises(RetryableError, match=r"has come to offset 15, .* knows records up to 8"):
        read(api, lake, topic)
    assert sum(pauses) < 20


def test_what_is_deleted_while_it_is_read_is_an_error(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_filled(api, lake, topic)
    around(monkeypatch, "before the log is read", lambda: api.trim(topic, 0, 8))
    with pytest.raises(Exception, match=f"topic {topic}: offset 5 is wanted, the log begins at 8"):
        read(api, lake, topic)


@pytest.mark.slow
def test_readers_see_each_record_once_while_everything_else_goes_on(
    api: ApiServer, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producing, commits, joins, expiry, segments and retention go on, as fast as they can, also
    between what a reader plans and what it reads."""
    topic = "busy"
    api.create(topic, 2, {"penstock.table": "iceberg", "retention.bytes": "1"})
    api.create(f"{topic}.dlq", 1)
    acknowledged = [0, 0]
    over = threading.Event()
    followed: list[None] = []
    trimmed: list[int] = []
    real = union_scan.plan_files

    def plan_slowly(*arguments: Any) -> Any:
        files = real(*arguments)
        rounds, passes = len(followed), len(trimmed)
        eventually(lambda: len(followed) > rounds + 1)
        eventually(lambda: len(trimmed) > passes + 1)
        return files

    monkeypatch.setattr(union_scan, "plan_files", plan_slowly)

    def produce_on() -> None:
        while not over.wait(0.005):
            for partition in (0, 1):
                produce_values(api, topic, [b"x"] * 3, partition)
                acknowledged[partition] += 3

    def follow_on() -> None:
        upkeep = Maintenance(snapshot_age_ms=0, orphan_age_ms=0, files_min=2)
        settings = lake.settings(topic)
        while not over.is_set():
            run_table_once(client, LocalEngine(1), settings)
            maintain_table(client, LocalEngine(1), settings, upkeep)
            followed.append(None)

    def trim_on() -> None:
        while not over.wait(0.01):
            api.drain()
            trimmed.append(api.on_loop(api.server.parts.log.keeper.trim_expired()))

    with PipelineClient(api.client.options) as client, ThreadPoolExecutor(3) as threads:
        produce_values(api, topic, [b"x"])
        acknowledged[0] = 1
        follow(api, lake, topic)
        others = [threads.submit(work) for work in (produce_on, follow_on, trim_on)]
        try:
            for _ in range(3):
                before = list(acknowledged)
                found = places(read(api, lake, topic))
                for partition in (0, 1):
                    offsets = [offset for number, offset in found if number == partition]
                    assert offsets == list(range(len(offsets)))
                    assert len(offsets) >= before[partition]
        finally:
            over.set()
        for other in others:
            other.result(60)
    assert sum(trimmed) > 0, "retention had something to do"


def test_another_topics_table_is_refused(api: ApiServer, lake: Lake, topic: str) -> None:
    half_filled(api, lake, topic)
    api.create("another")
    with pytest.raises(InvalidRequestError, match="it holds rows of topic"):
        read(api, lake, "another", table=f"penstock.{topic}")
    with pytest.raises(NotFoundError, match="there is no such table"):
        read(api, lake, "another")
    with pytest.raises(NotFoundError, match="there is no such topic"):
        read(api, lake, "nowhere")


def test_a_column_that_another_program_renamed_is_refused(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    half_filled(api, lake, topic)
    with lake.table(topic).update_schema() as update:
        update.rename_column("value", "payload")
    with pytest.raises(InvalidRequestError, match="value is gone"):
        read(api, lake, topic)


@pytest.mark.slow
def test_cleaning_that_passed_the_pin_is_an_error(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = api.topics[topic][0]
    api.produce(topic, 0, count=1)
    follow(api, lake, topic)
    for _ in range(2):
        api.produce(topic, 0, count=1)
    api.drain()

    def clean() -> None:
        # The record at offset 1 has a newer one of its key; here that is past the pinned end.
        api.produce(topic, 0, count=1)
        api.drain()
        with JobLease(api.client, kind="test", name="tests") as job:
            request = replacement(
                api.client, api.objects, job, topic_id, kept=lambda base: base in {0, 3}
            )
            assert api.client.replace(request).codes == [""]

    around(monkeypatch, "before the log is read", clean)
    with pytest.raises(ConflictError, match="cleaned offsets 1 to 2 since"):
        read(api, lake, topic)
    assert places(read(api, lake, topic)) == [(0, 0), (0, 3)]


# -- schemas ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_newer_schemas_add_their_columns_and_dead_letters_are_no_rows(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    one = record(("a", "long"))
    two = record(("a", "long"), ("b", ["null", "string"]))
    first = registry.register(f"{topic}-value", one)
    second = registry.register(f"{topic}-value", two)
    produce_values(api, topic, avro(first, one, {"a": 1}))
    typed(api, lake, topic, registry)
    produce_values(api, topic, [*avro(first, one, {"a": 2}), b"no value", None])
    produce_values(api, topic, avro(second, two, {"a": 3, "b": "x"}))
    before = lake.table(topic).metadata_location
    rows = read(api, lake, topic, registry=registry.url).sort_by("kafka_offset")
    assert rows.column("a").to_pylist() == [1, 2, 3]
    assert rows.column("b").to_pylist() == [None, None, "x"]
    assert lake.table(topic).metadata_location == before, "the table stays as it is"
    pruned = read(
        api, lake, topic, registry=registry.url, row_filter="b is null", columns=["kafka_offset"]
    )
    assert sorted(pruned.column("kafka_offset").to_pylist()) == [0, 1]
    typed(api, lake, topic, registry)
    assert set(lake.table(topic).schema().column_names) >= {"a", "b"}
    after = read(api, lake, topic, registry=registry.url).sort_by("kafka_offset")
    assert after.select(["a", "b"]).equals(rows.select(["a", "b"]))


def test_values_of_all_types_are_the_same_before_and_after_they_are_stored(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    schema = record(
        ("id", "int"),
        ("carrier", {"type": "enum", "name": "Carrier", "symbols": ["AA", "DL"]}),
        ("delay", ["null", "double"]),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("wall", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("hour", {"type": "int", "logicalType": "time-millis"}),
        ("trace", {"type": "string", "logicalType": "uuid"}),
        ("stops", {"type": "array", "items": record(("airport", "string")) | {"name": "Stop"}}),
        ("tags", {"type": "map", "values": ["null", "long"]}),
        ("raw", {"type": "fixed", "name": "Four", "size": 4}),
    )
    value = {
        "id": 7, "carrier": "DL", "delay": None, "price": Decimal("12.34"),
        "at": dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), "wall": 1_700_000_000_000_000,
        "day": dt.date(2024, 2, 29), "hour": dt.time(12, 30), "trace": uuid.UUID(int=5),
        "stops": [{"airport": "ATL"}], "tags": {"a": 1, "b": None}, "raw": b"abcd",
    }  # fmt: skip
    number = registry.register(f"{topic}-value", schema)
    for _ in range(2):
        produce_values(api, topic, avro(number, schema, value, {**value, "delay": 0.5}))
        typed(api, lake, topic, registry)
    produce_values(api, topic, avro(number, schema, {**value, "tags": {}, "stops": []}))
    before = read(api, lake, topic, registry=registry.url).sort_by("kafka_offset")
    assert before.num_rows == 5
    typed(api, lake, topic, registry)
    assert read(api, lake, topic, registry=registry.url).sort_by("kafka_offset").equals(before)


@pytest.mark.slow
def test_a_schema_that_would_stop_the_table_stops_the_view(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    one, two = record(("a", "long")), record(("a", "string"))
    produce_values(api, topic, avro(registry.register("s", one), one, {"a": 1}))
    typed(api, lake, topic, registry)
    with pytest.raises(InvalidRequestError, match="the option registry is its URL"):
        read(api, lake, topic)
    produce_values(api, topic, avro(registry.register("s", two), two, {"a": "x"}))
    with pytest.raises(InvalidRequestError) as viewed:
        read(api, lake, topic, registry=registry.url)
    with pytest.raises(InvalidRequestError) as followed:
        typed(api, lake, topic, registry)
    assert str(viewed.value) == str(followed.value)


def test_a_newer_schema_of_the_topics_configs_is_followed(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    def schema(*names: str) -> dict[str, str]:
        text = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
        return {
            "penstock.table.schema": "text",
            "penstock.table.schema.text": json.dumps(text),
        }

    api.alter(topic, schema("a"))
    produce_values(api, topic, [b'{"a": 1}'])
    follow(api, lake, topic)
    api.alter(topic, schema("a", "b"))
    produce_values(api, topic, [b'{"a": 2, "b": 3}'])
    rows = read(api, lake, topic).sort_by("a")
    assert list(zip(*(rows.column(name).to_pylist() for name in "ab"), strict=True)) == [
        (1, None),
        (2, 3),
    ]


# -- one row per key -------------------------------------------------------------------------------


def of_keys(rows: pa.Table) -> dict[bytes, bytes]:
    keys = rows.column("key").to_pylist()
    assert len(set(keys)) == len(keys), "a key twice"
    return dict(zip(keys, rows.column("value").to_pylist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_view_of_keys_is_what_the_table_will_be(
    api: ApiServer, lake: Lake, topic: str, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(3):
        for _ in range(chance.randrange(1, 4)):
            # Keys move between partitions, and times go back: the newest is hard to tell.
            changes = [
                new_record(
                    b"%d" % chance.randrange(30),
                    None if chance.random() < 0.3 else b"%d" % chance.randrange(1000),
                    timestamp_ms=NOW_MS + chance.randrange(50),
                )
                for _ in range(chance.randrange(1, 25))
            ]
            produce(api, topic, chance.randrange(2), [*changes, new_record(None, b"bad")])
        if not lake.folder.exists():
            follow(api, lake, topic, mode="upsert", buckets=4)
            continue
        found = of_keys(read(api, lake, topic))
        few = of_keys(read(api, lake, topic, row_filter=GreaterThanOrEqual("value", b"5")))
        follow(api, lake, topic, mode="upsert", target_file_bytes=400)
        assert found == dict(lake.rows(topic, "key", "value"))
        assert few == {key: value for key, value in found.items() if value >= b"5"}


@pytest.mark.slow
def test_keys_of_a_schema_are_the_same_though_it_is_widened(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    values = record(("n", "int"))
    narrow = record(("id", "int"), ("region", "string")) | {"name": "Key"}
    wide = record(("id", "long"), ("region", "string")) | {"name": "Key"}
    number = registry.register(f"{topic}-value", values)
    one, two = (registry.register(f"{topic}-key", schema) for schema in (narrow, wide))
    keys = [{"id": n, "region": region} for n in range(9) for region in ("a", "b")]
    old, new = avro(one, narrow, *keys), avro(two, wide, *keys)
    stored = [avro(number, values, {"n": n})[0] for n in range(3)]
    options: dict[str, Any] = {"key_kind": "registry", "mode": "upsert", "buckets": 2}
    produce(api, topic, 0, [new_record(key, stored[0]) for key in old])
    typed(api, lake, topic, registry, **options)
    changes = [(new[3], 1), (old[5], 1), (new[5], 2), (old[6], None), (None, 1)]
    produce(
        api,
        topic,
        0,
        [new_record(key, None if n is None else stored[n]) for key, n in changes],
    )

    def seen() -> list[tuple[int, str, int]]:
        rows = read(api, lake, topic, registry=registry.url, columns=["kafka_key", "n"])
        return sorted(
            (row["kafka_key"]["id"], row["kafka_key"]["region"], row["n"])
            for row in rows.to_pylist()
        )

    before = seen()
    assert len(before) == 17
    assert [n for _, _, n in before].count(0) == 15
    typed(api, lake, topic, registry, **options)
    assert seen() == before


@pytest.mark.slow
def test_a_stored_row_that_is_newer_stays_though_the_filter_excludes_it(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    produce(api, topic, 0, [new_record(b"k", b"new", timestamp_ms=NOW_MS + 9)])
    follow(api, lake, topic, mode="upsert", buckets=2)
    produce(api, topic, 1, [new_record(b"k", b"old", timestamp_ms=NOW_MS)])
    assert of_keys(read(api, lake, topic)) == {b"k": b"new"}
    assert of_keys(read(api, lake, topic, row_filter=EqualTo("value", b"old"))) == {}


@pytest.mark.slow
def test_a_table_that_is_too_far_behind_to_be_merged_in_memory_is_refused(
    api: ApiServer, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(api, topic, 0, [new_record(b"k", b"1")])
    follow(api, lake, topic, mode="upsert", buckets=2)
    produce(api, topic, 0, [new_record(b"%d" % n, b"x" * 1000) for n in range(9)])
    monkeypatch.setattr(union_rows, "LOG_BYTES_MAX", 5000)
    with pytest.raises(InvalidRequestError, match="pipeline table brings the table up to date"):
        read(api, lake, topic)
