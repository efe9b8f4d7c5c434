"""Typed tables: values by the schemas of a real registry over HTTP, or of a file."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest

from penstock.model.errors import InvalidRequestError, RetryableError
from penstock.pipeline.tables import registry as registry_module
from penstock.pipeline.tables.evolution import IncompatibleSchemaError
from support.api_server import ApiServer
from support.registry import Registry
from support.tables import Lake, follow, new_record, produce, produce_values, records_of
from support.typed import avro, reasons, record, typed, wire


def test_avro_values_are_columns(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    schema = record(
        ("id", "int"),
        ("carrier", {"type": "enum", "name": "Carrier", "symbols": ["AA", "DL"]}),
        ("delay", ["null", "double"]),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("trace", {"type": "string", "logicalType": "uuid"}),
        ("stops", {"type": "array", "items": record(("airport", "string")) | {"name": "Stop"}}),
        ("tags", {"type": "map", "values": ["null", "long"]}),
        ("raw", {"type": "fixed", "name": "Four", "size": 4}),
    )
    number = registry.register(f"{topic}-value", schema)
    at = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
    value = {
        "id": 7,
        "carrier": "DL",
        "delay": None,
        "price": Decimal("12.34"),
        "at": at,
        "day": dt.date(2024, 2, 29),
        "trace": uuid.UUID(int=5),
        "stops": [{"airport": "ATL"}],
        "tags": {"a": 1, "b": None},
        "raw": b"abcd",
    }
    produce_values(api, topic, avro(number, schema, value))
    summary = typed(api, lake, topic, registry)
    assert (summary.rows, summary.bad_records) == (1, 0)
    (row,) = lake.table(topic).scan().to_arrow().to_pylist()
    assert row["tags"] == [("a", 1), ("b", None)]
    assert row["trace"] == str(uuid.UUID(int=5))
    plain = {key: row[key] for key in value if key not in ("tags", "trace")}
    assert plain == {key: value[key] for key in plain}
    assert (row["kafka_partition"], row["kafka_offset"], row["kafka_key"]) == (0, 0, None)
    # Fields without null are required columns: readers may rely on them.
    required = {column.name for column in lake.table(topic).schema().fields if column.required}
    assert required == (value.keys() - {"delay"}) | {
        "kafka_partition",
        "kafka_offset",
        "kafka_headers",
    }


@pytest.mark.slow
def test_a_newer_schema_adds_columns_and_widens_types(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    first = record(("id", "int"), ("speed", "float"))
    one = registry.register(f"{topic}-value", first)
    produce_values(api, topic, avro(one, first, {"id": 1, "speed": 0.5}))
    typed(api, lake, topic, registry)
    second = record(
        ("id", "long"),
        ("speed", "double"),
        ("gate", "string"),
        ("seat", record(("row", "int")) | {"name": "S"}),
    )
    two = registry.register(f"{topic}-value", second)
    large = {"id": 2**40, "speed": 0.1, "gate": "B2", "seat": {"row": 3}}
    # Old and new ones mixed, as while producers are rolled over.
    produce_values(
        api,
        topic,
        avro(two, second, large) + avro(one, first, {"id": 2, "speed": 0.25}),
    )
    summary = typed(api, lake, topic, registry)
    assert sorted(summary.columns_added) == ["gate", "seat"]
    assert lake.rows(topic, "id", "speed", "gate", "seat") == [
        (1, 0.5, None, None),
        (2**40, 0.1, "B2", {"row": 3}),
        (2, 0.25, None, None),
    ]
    produce_values(api, topic, avro(two, second, large | {"id": 3}))
    assert typed(api, lake, topic, registry).columns_added == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([("id", "int")], "column name is gone"),
        ([("id", "int"), ("title", ["null", "string"])], "column name is gone"),
        ([("id", "string"), ("name", ["null", "string"])], "column id is string, and int in the"),
        ([("id", "double"), ("name", ["null", "string"])], "column id is double, and int in the"),
        ([("id", ["null", "int"]), ("name", ["null", "string"])], "column id may be null"),
    ],
)
def test_any_other_change_stops_this_table_alone_and_nothing_becomes_null(
    api: ApiServer,
    lake: Lake,
    topic: str,
    registry: Registry,
    fields: list[tuple[str, Any]],
    problem: str,
) -> None:
    first = record(("id", "int"), ("name", ["null", "string"]))
    one = registry.register(f"{topic}-value", first)
    produce_values(api, topic, avro(one, first, {"id": 1, "name": "a"}))
    typed(api, lake, topic, registry)
    other = record(*fields)
    two = registry.register(f"{topic}-value", other)
    produce_values(api, topic, [wire(two, b"\x02\x02\x02\x02")])
    produce_values(api, topic, avro(one, first, {"id": 2, "name": "b"}), partition=1)
    with pytest.raises(IncompatibleSchemaError, match=problem):
        typed(api, lake, topic, registry)
    assert lake.rows(topic, "id", "name") == [(1, "a")]
    (progress,) = api.client.tables(api.topics[topic][0])
    assert '"status":"stopped"' in progress.state
    assert problem in progress.state
    assert progress.offsets == [(0, 1)], "retention goes on waiting for what the table lacks"
    # Another table of the same server and warehouse goes on.
    api.create(f"{topic}-other")
    produce_values(api, f"{topic}-other", [b"x"])
    assert follow(api, lake, f"{topic}-other").rows == 1


@pytest.mark.slow
def test_bad_values_are_set_aside_and_the_table_goes_on(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    schema = record(("id", "int"), ("name", "string"))
    number = registry.register(f"{topic}-value", schema)
    (good,) = avro(number, schema, {"id": 1, "name": "a"})
    values = [good, b"plain text", None, wire(99, b"x"), good[:-1], good + b"!", b"", good]
    produce_values(api, topic, values)
    summary = typed(api, lake, topic, registry)
    assert (summary.rows, summary.bad_records) == (2, 6)
    assert lake.rows(topic, "id", "kafka_offset") == [(1, 0), (1, 7)]
    assert [record.value for record in records_of(api, f"{topic}.dlq")] == values[1:-1]
    assert reasons(api, topic) == [
        "the value does not begin with a schema id",
        "no value",
        "the registry has no schema 99",
        "not of its Avro schema: EOFError",
        "not of its Avro schema: 1 bytes are left over",
        "the value does not begin with a schema id",
    ]


@pytest.mark.slow
def test_json_values_are_columns(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": ["string", "null"]},
            "ratio": {"type": "number"},
            "day": {"type": "string", "format": "date"},
            "at": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "extra": {"type": "object", "additionalProperties": {"type": "boolean"}},
        },
        "$defs": {"tag": {"type": "object", "properties": {"t": {"type": "string"}}}},
        "required": ["id", "name"],
    }
    number = registry.register(f"{topic}-value", schema, kind="JSON")
    values: list[Any] = [
        {"id": 1, "name": None, "ratio": 2, "day": "2024-02-29", "at": "2024-02-29T12:00:00+02:00",
         "tags": [{"t": "x"}], "extra": {"a": True}},
        {"id": 2, "name": "b"},
        {"id": "3", "name": "c"},
        {"id": 4},
        {"id": 5, "name": "e", "unknown": 1},
        {"id": 6.5, "name": "f"},
        {"id": 7, "name": "g", "day": "tomorrow"},
        {"id": 2**63, "name": "h"},
    ]  # fmt: skip
    payloads = [wire(number, json.dumps(value).encode()) for value in values]
    produce_values(api, topic, [*payloads, wire(number, b"{")])
    summary = typed(api, lake, topic, registry)
    assert (summary.rows, summary.bad_records) == (2, 7)
    first, second = lake.table(topic).scan().to_arrow().sort_by("id").to_pylist()
    assert first["at"] == dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)
    assert (first["ratio"], first["day"]) == (2.0, dt.date(2024, 2, 29))
    assert (first["tags"], first["extra"]) == ([{"t": "x"}], [("a", True)])
    assert (second["id"], second["name"], second["ratio"]) == (2, "b", None)
    assert reasons(api, topic)[:6] == [
        "id is not an integer",
        "name is missing",
        "the value has properties besides its schema's: unknown",
        "id is not an integer",
        "day is no date",
        "id is beyond 64 bits",
    ]


@pytest.mark.slow
def test_references_are_followed(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    airport = record(("code", "string")) | {"name": "Airport"}
    registry.register("airport", airport)
    flight = record(("origin", "Airport"))
    reference = {"name": "Airport", "subject": "airport", "version": 1}
    number = registry.register(f"{topic}-value", flight, references=[reference])
    produce_values(api, topic, [wire(number, b"\x06ATL")])
    typed(api, lake, topic, registry)
    assert lake.rows(topic, "origin") == [({"code": "ATL"},)]


def test_references_of_a_json_schema_are_followed(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    airport = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    registry.register("airport", airport, kind="JSON")
    flight = {"type": "object", "properties": {"origin": {"$ref": "airport.json"}}}
    number = registry.register(
        f"{topic}-value",
        flight,
        kind="JSON",
        references=[{"name": "airport.json", "subject": "airport", "version": 1}],
    )
    produce_values(api, topic, [wire(number, b'{"origin": {"code": "ATL"}}')])
    typed(api, lake, topic, registry)
    assert lake.rows(topic, "origin") == [({"code": "ATL"},)]


@pytest.mark.slow
def test_partition_by_a_value_s_field(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    schema = record(("carrier", "string"), ("id", "int"))
    number = registry.register(f"{topic}-value", schema)
    values = [{"carrier": carrier, "id": n} for n, carrier in enumerate(("AA", "DL", "AA"))]
    produce_values(api, topic, avro(number, schema, *values))
    partition = "identity(carrier), day(timestamp)"
    assert typed(api, lake, topic, registry, partition=partition).files == 2
    scan = lake.table(topic).scan(row_filter="carrier == 'AA'")
    assert len(list(scan.plan_files())) == 1
    assert sorted(scan.to_arrow().column("id").to_pylist()) == [0, 2]


@pytest.mark.slow
def test_a_registry_that_is_away_stops_nothing_for_good(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_RETRIES", 0)
    schema = record(("id", "int"))
    number = registry.register(f"{topic}-value", schema)
    produce_values(api, topic, avro(number, schema, {"id": 1}))
    registry.failures = 1
    with pytest.raises(RetryableError):
        typed(api, lake, topic, registry)
    assert typed(api, lake, topic, registry).rows == 1
    assert records_of(api, f"{topic}.dlq") == []


@pytest.mark.slow
def test_a_registry_s_user_comes_from_the_environment(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = record(("id", "int"))
    number = registry.register(f"{topic}-value", schema)
    produce_values(api, topic, avro(number, schema, {"id": 1}))
    registry.user = base64.b64encode(b"me:mine").decode()
    with pytest.raises(InvalidRequestError, match="HTTP 401"):
        typed(api, lake, topic, registry)
    monkeypatch.setenv("PENSTOCK_REGISTRY_USER", "me")
    monkeypatch.setenv("PENSTOCK_REGISTRY_PASSWORD", "mine")
    assert typed(api, lake, topic, registry).rows == 1
    with pytest.raises(InvalidRequestError, match="holds a user"):
        follow(
            api, lake, topic, schema="registry", registry=registry.url.replace("//", "//me:mine@")
        )


def test_no_table_before_there_is_a_record(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    assert typed(api, lake, topic, registry).commits == 0
    assert not list(lake.catalog().list_namespaces())


@pytest.mark.slow
def test_a_dropped_column_stops_the_table(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    schema = record(("id", "int"), ("name", ["null", "string"]))
    number = registry.register(f"{topic}-value", schema)
    produce_values(api, topic, avro(number, schema, {"id": 1, "name": "a"}))
    typed(api, lake, topic, registry)
    with lake.table(topic).update_schema() as update:
        update.delete_column("name")
    produce_values(api, topic, avro(number, schema, {"id": 2, "name": "b"}))
    with pytest.raises(IncompatibleSchemaError, match="column name"):
        typed(api, lake, topic, registry)


def test_a_field_that_is_named_as_a_column_of_every_table(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    schema = record(("kafka_offset", "long"))
    number = registry.register(f"{topic}-value", schema)
    produce_values(api, topic, avro(number, schema, {"kafka_offset": 1}))
    with pytest.raises(InvalidRequestError, match="named as a column that every table has"):
        typed(api, lake, topic, registry)


@pytest.mark.slow
def test_typed_values_are_upserted_and_evolve(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    first = record(("n", "int"))
    one = registry.register(f"{topic}-value", first)

    old = avro(one, first, {"n": 1}, {"n": 2}, {"n": 3})
    produce(api, topic, 0, [new_record(b"abc"[i : i + 1], value) for i, value in enumerate(old)])
    typed(api, lake, topic, registry, mode="upsert", buckets=2)
    second = record(("n", "long"), ("note", ["null", "string"]))
    two = registry.register(f"{topic}-value", second)
    (large,) = avro(two, second, {"n": 2**40, "note": "x"})
    produce(
        api,
        topic,
        0,
        [
            new_record(b"a", None),
            new_record(b"b", large),
            new_record(b"c", b"no value of any schema"),
            new_record(None, large),
            new_record(b"d", old[2]),
        ],
    )
    summary = typed(api, lake, topic, registry, mode="upsert", buckets=2)
    assert (summary.bad_records, summary.columns_added) == (2, ["note"])
    # A bad value changes nothing: its key's row stays.
    assert sorted(lake.rows(topic, "kafka_key", "n", "note")) == [
        (b"b", 2**40, "x"),
        (b"c", 3, None),
        (b"d", 3, None),
    ]
    assert sorted(reasons(api, topic)) == ["no key", "the value does not begin with a schema id"]


@pytest.mark.slow
def test_a_schema_in_a_topics_config_needs_no_registry(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    fields: dict[str, Any] = {"id": {"type": "integer"}}
    config = {"penstock.table.schema": "text"}
    api.alter(topic, config)
    produce_values(api, topic, [b'{"id": 1}', b"{}"])
    with pytest.raises(InvalidRequestError, match=r"penstock\.table\.schema\.text"):
        follow(api, lake, topic)
    text = json.dumps({"type": "object", "properties": fields})
    api.alter(topic, {"penstock.table.schema.text": text})
    assert follow(api, lake, topic).rows == 2
    # A newer text adds its columns.
    fields["name"] = {"type": "string"}
    text = json.dumps({"type": "object", "properties": fields})
    api.alter(topic, {"penstock.table.schema.text": text})
    produce_values(api, topic, [b'{"id": 2, "name": "two"}'])
    assert follow(api, lake, topic).columns_added == ["name"]
    assert lake.rows(topic, "id", "name") == [(1, None), (None, None), (2, "two")]


def test_a_schema_in_a_topics_config_is_avro_where_it_is_a_record(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    text = json.dumps(record(("id", "int")))
    api.alter(topic, {"penstock.table.schema": "text", "penstock.table.schema.text": text})
    produce_values(api, topic, [b"\x0e"])
    assert follow(api, lake, topic).rows == 1
    assert lake.rows(topic, "id") == [(7,)]
