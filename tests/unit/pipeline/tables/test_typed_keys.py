"""Keys of a schema: the key column is what it says, and tells an upsert table's rows apart."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from penstock.model.errors import InvalidRequestError
from penstock.pipeline.tables.evolution import IncompatibleSchemaError
from penstock.pipeline.tables.schema_files import read_schema_file
from support.api_server import ApiServer
from support.registry import Registry
from support.tables import Lake, follow, new_record, produce, records_of
from support.typed import avro, reasons, record, typed, wire

VALUE = record(("n", "int"))


def value_of(registry: Registry, topic: str) -> Any:
    """What gives values of a registered schema."""
    number = registry.register(f"{topic}-value", VALUE)
    return lambda n: avro(number, VALUE, {"n": n})[0]


def named(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return record(*fields) | {"name": name}


def by_key(api: ApiServer, lake: Lake, topic: str, registry: Registry, **changes: Any) -> Any:
    return typed(api, lake, topic, registry, key_kind="registry", **changes)


@pytest.mark.slow
def test_a_key_is_a_column_of_its_schema(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    value = value_of(registry, topic)
    schema = named("Key", ("id", "long"), ("region", ["null", "string"]))
    number = registry.register(f"{topic}-key", schema)
    (key,) = avro(number, schema, {"id": 7, "region": None})
    records = [
        new_record(key, value(1)),
        new_record(None, value(2)),
        new_record(b"no schema", value(3)),
        new_record(key[:-1], value(4)),
        new_record(wire(99, b"x"), value(5)),
        new_record(key, b"bad"),
    ]
    produce(api, topic, 0, records)
    summary = by_key(api, lake, topic, registry)
    assert (summary.rows, summary.bad_records) == (2, 4)
    assert lake.rows(topic, "n", "kafka_key") == [(1, {"id": 7, "region": None}), (2, None)]
    assert [entry.key for entry in records_of(api, f"{topic}.dlq")] == [
        entry.key for entry in records[2:]
    ]
    assert reasons(api, topic) == [
        "the key does not begin with a schema id",
        "its key: not of its Avro schema: EOFError",
        "its key: the registry has no schema 99",
        "the value does not begin with a schema id",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "schema", "payload", "key"),
    [
        ("AVRO", "string", b"\x06abc", "abc"),
        ("AVRO", "long", b"\x0e", 7),
        ("JSON", {"type": "integer"}, b"7", 7),
        (
            "JSON",
            {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
            b'{"id": 7}',
            {"id": 7},
        ),
        (
            "PROTOBUF",
            'syntax = "proto3"; message Key { int64 id = 1; }',
            b"\0\x08\x07",
            {"id": 7},
        ),
    ],
)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_keys_of_every_format(
    api: ApiServer,
    lake: Lake,
    topic: str,
    registry: Registry,
    kind: str,
    schema: Any,
    payload: bytes,
    key: Any,
    mode: str,
) -> None:
    value = value_of(registry, topic)
    text = schema if kind == "PROTOBUF" else json.dumps(schema)
    number = registry.register(f"{topic}-key", text, kind=kind)
    for n in (1, 2):
        produce(api, topic, 0, [new_record(wire(number, payload), value(n))])
        by_key(api, lake, topic, registry, mode=mode)
    rows = [(1, key), (2, key)] if mode == "append" else [(2, key)]
    assert lake.rows(topic, "n", "kafka_key") == rows


@pytest.mark.slow
def test_rows_are_upserted_by_the_key_and_not_by_its_bytes(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    """A key's bytes begin with the id of its schema: they change with it, and the key doesn't."""
    value = value_of(registry, topic)
    narrow = named("Key", ("id", "int"), ("region", "string"))
    wide = named("Key", ("id", "long"), ("region", "string"))
    one = registry.register(f"{topic}-key", narrow)
    two = registry.register(f"{topic}-key", wide)
    # More keys than buckets, so that files hold several keys.
    keys = [{"id": n, "region": region} for n in range(9) for region in ("a", "b")]
    old = avro(one, narrow, *keys)
    new = avro(two, wide, *keys)
    produce(api, topic, 0, [new_record(key, value(n)) for n, key in enumerate(old)])
    by_key(api, lake, topic, registry, mode="upsert", buckets=2)
    schema = lake.table(topic).schema()
    assert schema.identifier_field_names() == {"kafka_key.id", "kafka_key.region"}
    assert schema.find_field("kafka_key").required
    produce(
        api,
        topic,
        0,
        [
            new_record(new[3], value(103)),
            new_record(new[4], None),
            new_record(old[5], value(105)),
            new_record(new[5], value(205)),
            new_record(old[6], None),
            new_record(None, value(0)),
            new_record(b"bad", None),
        ],
    )
    summary = by_key(api, lake, topic, registry, mode="upsert", buckets=2)
    assert (summary.rows, summary.bad_records) == (4, 2)
    expected = {n: n for n in range(18)} | {3: 103, 5: 205}
    del expected[4], expected[6]
    found = zip(lake.rows(topic, "kafka_key"), lake.rows(topic, "n"), strict=True)
    assert {keys.index(key): n for (key,), (n,) in found} == expected
    assert sorted(reasons(api, topic)) == ["no key", "the key does not begin with a schema id"]


@pytest.mark.slow
def test_a_field_more_in_the_key_is_a_column_of_an_append_table_and_stops_an_upsert_table(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    value = value_of(registry, topic)
    first = named("Key", ("id", "int"))
    second = named("Key", ("id", "int"), ("region", ["null", "string"]))
    one = registry.register(f"{topic}-key", first)
    two = registry.register(f"{topic}-key", second)
    both: dict[str, dict[str, Any]] = {"append": {}, "upsert": {"table": f"penstock.{topic}_u"}}
    produce(api, topic, 0, [new_record(avro(one, first, {"id": 1})[0], value(1))])
    for mode, changes in both.items():
        by_key(api, lake, topic, registry, mode=mode, **changes)
    (key,) = avro(two, second, {"id": 1, "region": "x"})
    produce(api, topic, 0, [new_record(key, value(2))])
    summary = by_key(api, lake, topic, registry)
    assert summary.columns_added == ["kafka_key.region"]
    assert lake.rows(topic, "kafka_key", "n") == [
        ({"id": 1, "region": None}, 1),
        ({"id": 1, "region": "x"}, 2),
    ]
    with pytest.raises(IncompatibleSchemaError, match=r"kafka_key\.region is new in the key"):
        by_key(api, lake, topic, registry, mode="upsert", **both["upsert"])
    assert lake.rows(f"{topic}_u", "n") == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "one"), [(named("Key", ("id", "int")), {"id": 1}), ("bytes", b"1")]
)
def test_a_table_s_key_stays_what_it_was_made_with(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, schema: Any, one: Any
) -> None:
    """Also where a schema says that keys are bytes: these lack the header that the others have."""
    value = value_of(registry, topic)
    number = registry.register(f"{topic}-key", schema if schema != "bytes" else '"bytes"')
    (key,) = avro(number, schema, one)
    produce(api, topic, 0, [new_record(key, value(1))])
    typed(api, lake, topic, registry)
    produce(api, topic, 0, [new_record(key, value(2))])
    with pytest.raises(IncompatibleSchemaError, match="its keys are bytes"):
        by_key(api, lake, topic, registry)
    other = {"table": f"penstock.{topic}_other"}
    by_key(api, lake, topic, registry, **other)
    with pytest.raises(IncompatibleSchemaError, match="its keys are of a schema"):
        typed(api, lake, topic, registry, **other)


@pytest.mark.slow
def test_the_schema_of_a_file_beside_a_registry_s_values(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, tmp_path: Path
) -> None:
    value = value_of(registry, topic)
    path = tmp_path / "key.proto"
    path.write_text('syntax = "proto3"; message Key { int64 id = 1; string region = 2; }')
    schema = read_schema_file(path, is_key=True)
    for n, key in ((1, b"\x08\x05"), (2, b"\x08\x06"), (3, b"\x08\x05\x12\0")):
        # The third spells out an empty field, which the first leaves out: the same key.
        produce(api, topic, 0, [new_record(key, value(n))])
        typed(api, lake, topic, registry, key_kind="file", key_schema=schema, mode="upsert")
    assert sorted(lake.rows(topic, "n", "kafka_key")) == [
        (2, {"id": 6, "region": ""}),
        (3, {"id": 5, "region": ""}),
    ]
    path = tmp_path / "key.avsc"
    path.write_text('"string"')
    assert read_schema_file(path, is_key=True).text == '"string"'
    with pytest.raises(InvalidRequestError, match="it has no columns"):
        read_schema_file(path)


KEY_PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Kind { NONE = 0; FIRST = 1; }
message Inner { string a = 1; }
message Key { int64 id = 1; Kind kind = 2; google.protobuf.Timestamp at = 3; Inner inner = 4; }
"""


@pytest.mark.slow
def test_a_protobuf_key_that_holds_more_than_its_column_is_a_bad_record(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, tmp_path: Path
) -> None:
    """Cut to what a column holds it would be another key, whose row it would replace."""
    value = value_of(registry, topic)
    path = tmp_path / "key.proto"
    path.write_text(KEY_PROTO)
    schema = read_schema_file(path, message="Key", is_key=True)
    upserted = {"key_kind": "file", "key_schema": schema, "mode": "upsert"}
    good = [
        b"\x08\x05",
        b"\x08\x05\x10\x01",
        b"\x08\x05\x10\x07",
        b"\x08\x05\x1a\x03\x10\xe8\x07",  # 1,000 ns
        b"\x08\x05\x22\x00",
        b"\x08\x05\x22\x03\x0a\x01x",
    ]
    bad = [
        b"\x08\x05\x1a\x03\x10\xe9\x07",  # 1,001 ns
        b"\x08\x05\x28\x01",  # a fifth field
        b"\x08\x05\x22\x05\x0a\x01x\x10\x01",  # a second one of Inner
    ]
    produce(api, topic, 0, [new_record(key, value(n)) for n, key in enumerate(good + bad)])
    summary = typed(api, lake, topic, registry, **upserted)
    assert (summary.rows, summary.bad_records) == (len(good), len(bad))
    assert sorted(reasons(api, topic)) == [
        "its key: a timestamp of 1001 ns besides its seconds",
        *["its key: it has fields besides its Protobuf schema's"] * 2,
    ]
    # Another name of the enum's number is the same key.
    path.write_text(KEY_PROTO.replace("FIRST", "RENAMED"))
    upserted["key_schema"] = read_schema_file(path, message="Key", is_key=True)
    produce(api, topic, 0, [new_record(good[1], value(100))])
    assert typed(api, lake, topic, registry, **upserted).rows == 1
    found = {
        (key["kind"], key["at"], str(key["inner"])): n
        for key, n in lake.rows(topic, "kafka_key", "n")
    }
    at = dt.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC)
    assert found == {
        (0, None, "None"): 0,
        (1, None, "None"): 100,
        (7, None, "None"): 2,
        (0, at, "None"): 3,
        (0, None, "{'a': ''}"): 4,
        (0, None, "{'a': 'x'}"): 5,
    }


@pytest.mark.slow
def test_a_json_key_that_holds_more_than_its_column_is_a_bad_record(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, tmp_path: Path
) -> None:
    value = value_of(registry, topic)
    path = tmp_path / "key.json"
    properties = {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}}
    required = ["id", "at"]
    path.write_text(json.dumps({"type": "object", "properties": properties, "required": required}))
    schema = read_schema_file(path, is_key=True)
    keys = [
        ("5", "2024-02-29T12:00:00.123456Z"),
        ("5.0", "2024-02-29T12:00:00.123456000Z"),  # the same
        ("5e0", "2024-02-29T13:00:00.123456+01:00"),  # the same
        ("5", "2024-02-29T12:00:00.1234561Z"),
        ("5", "2024-02-29T12:00:00,123456001Z"),
        ("5.00000000000000000001", "2024-02-29T12:00:00.123456Z"),
        ("5e-9999999999999999999999", "2024-02-29T12:00:00.123456Z"),
    ]
    records = [
        new_record(f'{{"id": {number}, "at": "{at}"}}'.encode(), value(n))
        for n, (number, at) in enumerate(keys)
    ]
    produce(api, topic, 0, records)
    upserted = {"key_kind": "file", "key_schema": schema, "mode": "upsert"}
    summary = typed(api, lake, topic, registry, **upserted)
    assert (summary.rows, summary.bad_records) == (1, 4)
    assert lake.rows(topic, "n") == [(2,)]


@pytest.mark.slow
def test_a_registry_alone_makes_no_raw_topic_typed(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be in the environment, and `pipeline run` takes the topic for raw."""
    monkeypatch.setenv("PENSTOCK_PIPELINE_REGISTRY", registry.url)
    value = value_of(registry, topic)
    produce(api, topic, 0, [new_record(b"k", value(7))])
    arguments = ["pipeline", "table", "--topic", topic, "--url", api.client.options.urls[0]]
    arguments += ["--warehouse", str(lake.folder), "--engine", "local", "--workers", "1"]
    done = CliRunner().invoke(root, arguments)
    assert done.exit_code == 0, done.output
    assert lake.rows(topic, "value") == [(value(7),)]
    typed = [*arguments, "--table", f"typed_{topic}", "--value-schema", "registry"]
    done = CliRunner().invoke(root, typed)
    assert done.exit_code == 0, done.output
    assert lake.rows(f"typed_{topic}", "n") == [(7,)]
    api.alter(topic, {"penstock.table.schema": "registry"})
    done = CliRunner().invoke(root, [*arguments, "--table", f"also_{topic}"])
    assert done.exit_code == 0, done.output
    assert lake.rows(f"also_{topic}", "n") == [(7,)]


def test_the_command_takes_a_value_s_file_beside_a_registry_that_the_topic_s_keys_ask_for(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, tmp_path: Path
) -> None:
    path = tmp_path / "value.avsc"
    path.write_text(json.dumps(VALUE))
    (framed,) = avro(0, VALUE, {"n": 7})
    number = registry.register(f"{topic}-key", '"long"')
    produce(api, topic, 0, [new_record(wire(number, b"\x0e"), framed[5:])])
    arguments = ["pipeline", "table", "--topic", topic, "--url", api.client.options.urls[0]]
    arguments += ["--warehouse", str(lake.folder), "--engine", "local", "--workers", "1"]
    arguments += ["--value-schema", str(path), "--registry", registry.url]
    api.alter(topic, {"penstock.table.key.schema": "registry"})
    done = CliRunner().invoke(root, arguments)
    assert done.exit_code == 0, done.output
    assert lake.rows(topic, "n", "kafka_key") == [(7, 7)]


def test_partition_by_a_key_s_field(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    value = value_of(registry, topic)
    schema = named("Key", ("region", "string"))
    number = registry.register(f"{topic}-key", schema)
    keys = avro(number, schema, *({"region": region} for region in "aba"))
    produce(api, topic, 0, [new_record(key, value(n)) for n, key in enumerate(keys)])
    by_key(api, lake, topic, registry, partition="identity(kafka_key.region)")
    scan = lake.table(topic).scan(row_filter="kafka_key.region == 'a'")
    assert len(list(scan.plan_files())) == 1
    assert sorted(scan.to_arrow().column("n").to_pylist()) == [0, 2]


def test_keys_without_any_schema_make_no_table(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    value = value_of(registry, topic)
    produce(api, topic, 0, [new_record(b"k", value(1))])
    with pytest.raises(InvalidRequestError, match="none of its first keys begins with the id"):
        by_key(api, lake, topic, registry)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": "raw", "key_kind": "registry"}, "its keys have a schema, and its values none"),
        ({"key_kind": "registry", "registry": ""}, "needs the registry's URL"),
        ({"key_kind": "file"}, "key schema file needs a schema file"),
        ({"key_kind": "x"}, "it is raw, registry or file"),
    ],
)
def test_settings_that_can_t_be(
    api: ApiServer, lake: Lake, topic: str, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "value.avsc"
    path.write_text(json.dumps(VALUE))
    given = {"schema": "file", "value_schema": read_schema_file(path)} | changes
    with pytest.raises(InvalidRequestError, match=problem):
        follow(api, lake, topic, **given)
