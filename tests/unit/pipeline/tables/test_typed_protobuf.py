"""Protobuf values become columns: by a registry's schema, a descriptor set, or a `.proto` text."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.tables import protoc
from penstock.pipeline.tables import registry as registry_module
from penstock.pipeline.tables.evolution import IncompatibleSchemaError
from penstock.pipeline.tables.protoc import compile_proto_texts
from penstock.pipeline.tables.schema_files import read_schema_file
from support.api_server import ApiServer
from support.registry import Registry
from support.tables import Lake, follow, produce_values
from support.typed import avro, record, typed, wire


def flight_descriptor() -> descriptor_pb2.FileDescriptorProto:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="f", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other").field.add(
        name="x", number=1, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL
    )
    flight = file.message_type.add(name="Flight")
    flight.oneof_decl.add(name="_gate")
    add = flight.field.add
    one = kinds.LABEL_OPTIONAL
    add(name="id", number=1, type=kinds.TYPE_INT32, label=one)
    add(name="big", number=2, type=kinds.TYPE_UINT64, label=one)
    add(
        name="gate",
        number=3,
        type=kinds.TYPE_STRING,
        label=one,
        proto3_optional=True,
        oneof_index=0,
    )
    add(
        name="at",
        number=4,
        type=kinds.TYPE_MESSAGE,
        label=one,
        type_name=".google.protobuf.Timestamp",
    )
    add(name="stops", number=5, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    return file


def flight_message(file: descriptor_pb2.FileDescriptorProto, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


@pytest.mark.slow
def test_protobuf_values_are_columns(
    api: ApiServer, lake: Lake, topic: str, registry: Registry
) -> None:
    file = flight_descriptor()
    # The first message of the file is what the wire format's index 0 means.
    file.message_type[0].CopyFrom(file.message_type[1])
    del file.message_type[1]
    text = base64.b64encode(file.SerializeToString()).decode()
    number = registry.register(f"{topic}-value", text, kind="PROTOBUF")
    flight = flight_message(file, "f.Flight")
    full = flight(id=1, big=2**64 - 1, gate="B2", stops=["ATL"])
    full.at.FromMilliseconds(1_500)
    produce_values(
        api,
        topic,
        [
            wire(number, b"\0" + full.SerializeToString()),
            wire(number, b"\x02\0" + flight().SerializeToString()),
            wire(number, b"\x02\x02" + flight().SerializeToString()),
            wire(number, b"\0\xff"),
            wire(number, b""),
        ],
    )
    summary = typed(api, lake, topic, registry)
    assert (summary.rows, summary.bad_records) == (2, 3)
    at = dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=dt.UTC)
    assert lake.rows(topic, "id", "big", "gate", "at", "stops") == [
        (1, Decimal(2**64 - 1), "B2", at, ["ATL"]),
        (0, Decimal(0), None, None, []),
    ]


@pytest.mark.slow
def test_a_descriptor_set_of_a_file(api: ApiServer, lake: Lake, topic: str, tmp_path: Path) -> None:
    file = flight_descriptor()
    known = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    path = tmp_path / "flight.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[known, file]).SerializeToString())
    schema = read_schema_file(path, message="f.Flight")
    message = flight_message(file, "f.Flight")
    produce_values(api, topic, [message(id=5).SerializeToString()])
    follow(api, lake, topic, schema="file", value_schema=schema)
    assert lake.rows(topic, "id") == [(5,)]
    with pytest.raises(InvalidRequestError, match=r"f\.Other, f\.Flight"):
        read_schema_file(path)


PROTO = """
syntax = "proto3";
package f;
import "google/protobuf/duration.proto";
import "common/airport.proto";
message Flight {
  int32 id = 1;
  optional string gate = 2;
  Airport origin = 3;  // Zürich, for one: texts are not of ASCII alone.
  google.protobuf.Duration air_time = 4;
}
"""
AIRPORT = """
syntax = "proto3";
package f;
message Airport { string code = 1; }
"""


@pytest.mark.slow
def test_the_text_of_a_proto_file(api: ApiServer, lake: Lake, topic: str, tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "flights").mkdir()
    (tmp_path / "common" / "airport.proto").write_text(AIRPORT)
    path = tmp_path / "flights" / "flight.proto"
    path.write_text(PROTO)
    schema = read_schema_file(path, folders=[tmp_path])
    assert schema.message == "f.Flight"
    produce_values(api, topic, [b"\x08\x05\x1a\x05\n\x03ATL\x22\x02\x08\x09"])
    follow(api, lake, topic, schema="file", value_schema=schema)
    assert lake.rows(topic, "id", "gate", "origin", "air_time") == [
        (5, None, {"code": "ATL"}, {"seconds": 9, "nanos": 0})
    ]


@pytest.mark.slow
def test_a_proto_file_that_can_t_be_compiled_says_why(tmp_path: Path) -> None:
    path = tmp_path / "flight.proto"
    path.write_text(PROTO)
    with pytest.raises(InvalidRequestError, match=r"common/airport\.proto: File not found"):
        read_schema_file(path)
    path.write_text('syntax = "proto3"; message A { int32 a = 1 }')
    with pytest.raises(InvalidRequestError, match='Expected ";"'):
        read_schema_file(path)
    with pytest.raises(InvalidRequestError, match="it is in none of"):
        read_schema_file(path, folders=[tmp_path / "other"])
    path.write_text(AIRPORT + "message B { int32 a = 1; }")
    with pytest.raises(InvalidRequestError, match=r"--message says which: f\.Airport, f\.B"):
        read_schema_file(path)
    assert read_schema_file(path, message="f.B").message == "f.B"


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "airport.proto"
    path.write_text(AIRPORT)
    monkeypatch.setattr(protoc, "_COMPILER", "penstock_has_no_such_package")
    with pytest.raises(InvalidRequestError) as told:
        read_schema_file(path)
    assert "pip install grpcio-tools" in told.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("gives_descriptors", [True, False])
def test_a_registry_s_protobuf_schema_with_an_import(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, gives_descriptors: bool
) -> None:
    """A registry that knows `format=serialized`, and one that has only the texts."""
    with_import = compile_proto_texts(
        "flight.proto", PROTO, {"common/airport.proto": AIRPORT}, subject="test"
    )
    found = {file.name: file for file in with_import.file}
    texts = {"flight.proto": PROTO, "common/airport.proto": AIRPORT}

    def schema(name: str) -> str:
        if gives_descriptors:
            return base64.b64encode(found[name].SerializeToString()).decode()
        return texts[name]

    registry.register("airport", schema("common/airport.proto"), kind="PROTOBUF")
    number = registry.register(
        f"{topic}-value",
        schema("flight.proto"),
        kind="PROTOBUF",
        # Google's own import is none of the references: registries leave it out.
        references=[{"name": "common/airport.proto", "subject": "airport", "version": 1}],
    )
    produce_values(api, topic, [wire(number, b"\0\x08\x05\x1a\x05\n\x03ATL")])
    typed(api, lake, topic, registry)
    assert lake.rows(topic, "id", "origin", "air_time") == [(5, {"code": "ATL"}, None)]


@pytest.mark.slow
def test_a_schema_is_asked_for_once_in_the_life_of_the_process(
    api: ApiServer, lake: Lake, topic: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "_KNOWN_MAX", 2)
    text = 'syntax = "proto3"; message A { int32 id = 1; }'
    number = registry.register(f"{topic}-value", text, kind="PROTOBUF")
    for key in (1, 2):
        produce_values(api, topic, [wire(number, b"\0\x08" + bytes([key]))])
        typed(api, lake, topic, registry)
    assert lake.rows(topic, "id") == [(1,), (2,)]
    asked = [f"/schemas/ids/{number}", f"/schemas/ids/{number}?format=serialized"]
    assert registry.asked == asked
    # Of another registry it is another one's, and an id that is missing may come.
    schemas = registry_module.Registry(registry.url)
    late = 1_000_000
    assert schemas.schema(late).is_missing
    registry.register("late", '"int"', schema_id=late)
    assert schemas.schema(late).text == '"int"'
    other = registry_module.Registry(f"{registry.url}/other")
    assert other.schema(number).is_missing
    # Few are remembered: the first one is asked for anew.
    for n in range(2):
        schemas.schema(registry.register("more", json.dumps(["int", "long"][n])))
    registry.asked.clear()
    schemas.schema(number)
    assert registry.asked == asked


@pytest.mark.parametrize("name", ["../airport.proto", "/tmp/airport.proto", "a\0b"])
def test_an_import_s_name_leads_nowhere_else(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="an import named"):
        compile_proto_texts("flight.proto", PROTO, {name: AIRPORT}, subject="test")


@pytest.mark.parametrize(
    "name",
    ["", ".", "x" * 300, "\ud800", "f", "f/flight.proto", "./f/flight.proto", "f/flight.proto/a"],
)
def test_an_import_s_name_is_a_file_of_its_own(name: str) -> None:
    """One of the text's own would be imported in its place, or the text laid over it."""
    text = 'syntax = "proto3"; message A { int32 a = 1; }'
    with pytest.raises(InvalidRequestError, match="a file named"):
        compile_proto_texts("f/flight.proto", text, {name: AIRPORT}, subject="test")
    with pytest.raises(InvalidRequestError, match="a file named"):
        compile_proto_texts("flight.proto", text + "\ud800", {}, subject="test")


@pytest.mark.slow
def test_a_file_s_schema_evolves_as_a_registry_s(
    api: ApiServer, lake: Lake, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "flight.avsc"
    schema: dict[str, Any] = record(("id", "int"))
    path.write_text(json.dumps(schema))
    (value,) = avro(0, schema, {"id": 1})
    produce_values(api, topic, [value[5:]])
    follow(api, lake, topic, schema="file", value_schema=read_schema_file(path))
    wider = record(("id", "int"), ("gate", ["null", "string"]))
    path.write_text(json.dumps(wider))
    (value,) = avro(0, wider, {"id": 2, "gate": "C"})
    produce_values(api, topic, [value[5:]])
    follow(api, lake, topic, schema="file", value_schema=read_schema_file(path))
    assert lake.rows(topic, "id", "gate") == [(1, None), (2, "C")]
    path.write_text(json.dumps(record(("gate", ["null", "string"]))))
    produce_values(api, topic, [b""])
    with pytest.raises(IncompatibleSchemaError, match="column id is gone"):
        follow(api, lake, topic, schema="file", value_schema=read_schema_file(path))
