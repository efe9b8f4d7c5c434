"""Values that do not fit their schema are rows, letters, or stop the table: the topic says it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.tables
from penstock.pipeline.tables.columns import REST_COLUMN
from penstock.pipeline.tables.evolution import IncompatibleSchemaError
from penstock.pipeline.tables.formats import BadValueError
from penstock.pipeline.tables.json_schema import JsonDecoder
from penstock.pipeline.tables.parts import BARE, VALUE, PartPlan, PartReader
from penstock.pipeline.tables.schema_text import JSON, SchemaText
from penstock.pipeline.tables.settings import DEAD_LETTER, IGNORE, REST
from support.api_server import ApiServer
from support.registry import Registry
from support.tables import Lake, follow, produce_values
from support.typed import avro, reasons, record, typed

INCOMPATIBLE = "penstock.table.schema.incompatible"
UNKNOWN = "penstock.table.schema.unknown"


def read(api: ApiServer, lake: Lake, topic: str, **options: Any) -> pa.Table:
    (url,) = api.client.options.urls
    return penstock.tables.read(topic, url=url, warehouse=str(lake.folder), **options)


def text_of(**properties: Any) -> dict[str, str]:
    schema = {"type": "object", "properties": properties}
    return {
        "penstock.table.schema": "text",
        "penstock.table.schema.text": json.dumps(schema),
    }


# -- schemas that the table can't follow ----------------------------------------------------------


@pytest.mark.slow
def test_records_of_a_schema_that_the_table_cannot_follow_are_letters_and_the_table_goes_on(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    one, two = record(("a", "long")), record(("a", "string"))
    three = record(("a", "long"), ("b", ["null", "long"]))
    ids = [registry.register(f"{topic}-value", schema) for schema in (one, two, three)]
    produce_values(api, topic, avro(ids[0], one, {"a": 1}))
    typed(api, lake, topic, registry)
    produce_values(api, topic, avro(ids[1], two, {"a": "x"}, {"a": "y"}))
    produce_values(api, topic, avro(ids[2], three, {"a": 3, "b": 4}))
    with pytest.raises(IncompatibleSchemaError):
        typed(api, lake, topic, registry)
    api.alter(topic, {INCOMPATIBLE: "dead-letter"})
    view = read(api, lake, topic, registry=registry.url).sort_by("kafka_offset")
    assert (view.column("a").to_pylist(), view.column("b").to_pylist()) == ([1, 3], [None, 4])
    summary = typed(api, lake, topic, registry)
    assert (summary.rows, summary.bad_records) == (1, 2)
    assert lake.rows(topic, "a", "b", "kafka_offset") == [(1, None, 0), (3, 4, 3)]
    (reason, _) = reasons(api, topic)
    assert reason == f"schema {ids[1]} of {topic}: column a is string, and long in the table"
    assert read(api, lake, topic, registry=registry.url).num_rows == 2
    # Met again, in a run of its own, and by a run that need follow nothing.
    produce_values(api, topic, avro(ids[1], two, {"a": "z"}))
    assert typed(api, lake, topic, registry).bad_records == 1
    assert typed(api, lake, topic, registry).bad_records == 0
    api.alter(topic, {INCOMPATIBLE: "stop"})
    produce_values(api, topic, avro(ids[1], two, {"a": "z"}))
    with pytest.raises(IncompatibleSchemaError):
        typed(api, lake, topic, registry)


@pytest.mark.slow
def test_a_text_that_the_table_cannot_follow_leaves_the_last_one_in_force(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    api.alter(topic, text_of(a={"type": "integer"}))
    produce_values(api, topic, [b'{"a":1}'])
    follow(api, lake, topic)
    api.alter(topic, text_of(a={"type": "string"}))
    produce_values(api, topic, [b'{"a":2}', b'{"a":"x"}'])
    with pytest.raises(IncompatibleSchemaError):
        follow(api, lake, topic)
    api.alter(topic, {INCOMPATIBLE: "dead-letter"})
    assert read(api, lake, topic).num_rows == 2
    assert follow(api, lake, topic).bad_records == 1
    assert lake.rows(topic, "a") == [(1,), (2,)]
    # A text that can be followed is, the one that was refused between them or not.
    api.alter(topic, text_of(a={"type": "integer"}, b={"type": "string"}))
    produce_values(api, topic, [b'{"a":3,"b":"y"}'])
    assert follow(api, lake, topic).columns_added == ["b"]


# -- properties that a schema does not name -------------------------------------------------------

NESTED = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "in": {"type": "object", "properties": {"b": {"type": ["integer", "null"]}}},
        "list": {
            "type": "array",
            "items": {"type": "object", "properties": {"c": {"type": "integer"}}},
        },
        "closed": {
            "type": "object",
            "properties": {"d": {"type": "integer"}},
            "additionalProperties": False,
        },
    },
    "required": ["a"],
}


def decoder(unknown: str) -> JsonDecoder:
    return JsonDecoder(SchemaText(kind=JSON, text=json.dumps(NESTED)), unknown=unknown)


@pytest.mark.parametrize(
    ("value", "row", "rest"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1, "x": [1, {"y": None}]}, {"a": 1}, {"x": [1, {"y": None}]}),
        ({"a": 1, "in": {"b": 2, "z": 1}}, {"a": 1, "in": {"b": 2}}, {"in": {"b": 2, "z": 1}}),
        (
            {"a": 1, "in": {"b": 2}, "list": [{"c": 1}, {"c": 2, "z": 1}]},
            {"a": 1, "in": {"b": 2}, "list": [{"c": 1}, {"c": 2}]},
            {"list": [{"c": 1}, {"c": 2, "z": 1}]},
        ),
        ({"a": 1, "kafka_rest": "mine"}, {"a": 1}, {"kafka_rest": "mine"}),
    ],
)
def test_unknown_properties_are_ignored_or_kept_as_they_were(
    value: dict[str, Any], row: dict[str, Any], rest: Any
) -> None:
    payload = json.dumps(value).encode()
    assert decoder(IGNORE).decode(payload) == row
    found = decoder(REST).decode(payload)
    text = found.pop(REST_COLUMN, None)
    assert found == row
    assert (None if text is None else json.loads(text)) == rest
    if rest is None:
        assert decoder(DEAD_LETTER).decode(payload) == row
    else:
        with pytest.raises(BadValueError, match="besides its schema"):
            decoder(DEAD_LETTER).decode(payload)


@pytest.mark.parametrize("unknown", [IGNORE, REST])
def test_what_is_bad_stays_bad(unknown: str) -> None:
    bad = [b'{"x":1}', b'{"a":"1","x":1}', b'{"a":1,"closed":{"d":1,"x":1}}']
    if unknown == REST:
        bad.append(b'{"a":1,"x":1e400}')
    for payload in bad:
        with pytest.raises(BadValueError):
            decoder(unknown).decode(payload)


keys = st.sampled_from(["a", "in", "list", "closed", "b", "c", "d", "x", REST_COLUMN])
values = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(keys, values, max_size=4), max_size=6))
def test_many_at_once_are_what_one_by_one_they_are(given: list[dict[str, Any]]) -> None:
    """And what dead letters have none of is the same whatever the policy."""
    payloads = [json.dumps(value).encode(errors="surrogatepass") for value in given]
    kind = pa.struct(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("in", pa.struct([pa.field("b", pa.int64())])),
            pa.field("list", pa.list_(pa.struct([pa.field("c", pa.int64())]))),
            pa.field("closed", pa.struct([pa.field("d", pa.int64())])),
            pa.field(REST_COLUMN, pa.string()),
        ]
    )
    text = SchemaText(kind=JSON, text=json.dumps(NESTED))
    for unknown in (IGNORE, REST, DEAD_LETTER):
        reader = PartReader(PartPlan(BARE, {0: text}, unknown=unknown), kind, VALUE)
        read = reader.read(pa.chunked_array([pa.array(payloads, pa.binary())]))
        expected: list[Any] = []
        for payload in payloads:
            try:
                expected.append(decoder(unknown).decode(payload))
            except BadValueError:
                expected.append(None)
        good = [value for value in expected if value is not None]
        is_good = np.array([value is not None for value in expected], dtype=bool)
        assert read.of_rows(is_good).to_pylist() == pa.array(good, kind).to_pylist()
        assert sorted(read.reasons) == np.flatnonzero(~is_good).tolist()


@pytest.mark.slow
def test_a_table_keeps_what_its_schema_does_not_name_once_it_is_told_to(
    api: ApiServer, lake: Lake, topic: str
) -> None:
    api.alter(topic, text_of(a={"type": "integer"}))
    produce_values(api, topic, [b'{"a":1}', b'{"a":2,"x":"y"}'])
    assert follow(api, lake, topic).bad_records == 1
    api.alter(topic, {UNKNOWN: "ignore"})
    produce_values(api, topic, [b'{"a":3,"x":"y"}'])
    assert read(api, lake, topic).num_rows == 2
    assert follow(api, lake, topic).bad_records == 0
    snapshot = lake.table(topic).current_snapshot()
    api.alter(topic, {UNKNOWN: "rest"})
    produce_values(api, topic, [b'{"a":4,"x":"y"}', b'{"a":5}'])
    view = read(api, lake, topic).sort_by("kafka_offset")
    assert view.column(REST_COLUMN).to_pylist() == [None, None, '{"x":"y"}', None]
    assert REST_COLUMN not in lake.table(topic).schema().column_names, "a reader changes nothing"
    follow(api, lake, topic)
    kept = [(1, None), (3, None), (4, '{"x":"y"}'), (5, None)]
    assert lake.rows(topic, "a", REST_COLUMN) == kept
    assert read(api, lake, topic).sort_by("kafka_offset").equals(view)
    back = lake.table(topic).scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    assert REST_COLUMN not in back.column_names, "time travel has the columns of then"
    # The column is of no schema: a newer one need not name it, and a policy less leaves it there.
    api.alter(topic, {**text_of(a={"type": "integer"}, x={"type": "string"}), UNKNOWN: "ignore"})
    produce_values(api, topic, [b'{"a":6,"x":"z","w":1}'])
    follow(api, lake, topic)
    assert lake.rows(topic, "a", "x", REST_COLUMN)[-1] == (6, "z", None)
