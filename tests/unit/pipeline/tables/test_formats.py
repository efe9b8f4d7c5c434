"""Decoders of values: what no column can hold is refused, hostile bytes are bad values at most."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.tables.decoders import compile_schema
from penstock.pipeline.tables.formats import BadValueError, UnsupportedSchemaError, columns_of
from penstock.pipeline.tables.schema_text import SchemaText

AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": "long"},
        {"name": "b", "type": ["null", "string"]},
        {"name": "c", "type": {"type": "array", "items": {"type": "map", "values": "bytes"}}},
        {"name": "d", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
    ],
}
JSON = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "array", "items": {"type": ["number", "null"]}},
        "c": {"type": "string", "format": "date-time"},
        "d": {"type": "object", "properties": {"e": {"type": "boolean"}}, "required": ["e"]},
    },
}


def protobuf_text() -> str:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    for number, kind in enumerate((kinds.TYPE_INT32, kinds.TYPE_STRING, kinds.TYPE_DOUBLE), 1):
        message.field.add(name=f"f{number}", number=number, type=kind, label=kinds.LABEL_REPEATED)
    return base64.b64encode(file.SerializeToString()).decode()


SCHEMAS = {
    "AVRO": SchemaText(kind="AVRO", text=json.dumps(AVRO)),
    "JSON": SchemaText(kind="JSON", text=json.dumps(JSON)),
    "PROTOBUF": SchemaText(kind="PROTOBUF", text=protobuf_text()),
}
DECODERS = {kind: compile_schema(text, framed=True) for kind, text in SCHEMAS.items()}


def avro_value() -> bytes:
    stream = io.BytesIO()
    value = {"a": 2**40, "b": "text", "c": [{"k": b"v"}], "d": "Y"}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
    return stream.getvalue()


@pytest.mark.parametrize("kind", SCHEMAS)
@given(payload=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_bad_one(kind: str, payload: bytes) -> None:
    try:
        DECODERS[kind].decode(payload)
    except BadValueError as error:
        assert str(error)


@given(st.integers(0, 40), st.integers(0, 255))
def test_damaged_avro_is_a_value_or_a_bad_one(position: int, byte: int) -> None:
    payload = bytearray(avro_value())
    payload[position % len(payload)] = byte
    try:
        DECODERS["AVRO"].decode(bytes(payload))
    except BadValueError as error:
        assert str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e", "x"]), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(json_values)
def test_any_json_is_a_value_or_a_bad_one(value: Any) -> None:
    try:
        found = DECODERS["JSON"].decode(json.dumps(value).encode())
    except BadValueError:
        return
    # Nothing was dropped on the way, and nothing became null that was not.
    assert found.keys() == value.keys()
    assert all((found[name] is None) == (value[name] is None) for name in value)


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "null"}]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "unknown"}]},
        {"type": "record", "name": "R"},
        [],
        None,
    ],
)
def test_avro_that_no_table_can_have(schema: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        text = SchemaText(kind="AVRO", text=json.dumps(schema))
        columns_of(compile_schema(text, framed=True), subject="it")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {"type": ["string", "integer"]}}},
        {
            "type": "object",
            "properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}},
        },
        {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}]}}},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
        {"type": "object", "properties": {"a.b": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        True,
    ],
)
def test_json_schemas_that_no_table_can_have(schema: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        text = SchemaText(kind="JSON", text=json.dumps(schema))
        columns_of(compile_schema(text, framed=True), subject="it")


@pytest.mark.parametrize("text", ["", "!", base64.b64encode(b"\xff\xff").decode()])
def test_protobuf_that_is_none(text: str) -> None:
    with pytest.raises(UnsupportedSchemaError):
        compile_schema(SchemaText(kind="PROTOBUF", text=text), framed=True)
