"""Whatever a record holds, its table goes on: it is a row, or a dead letter."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from crc32c import crc32c
from google.protobuf import descriptor_pb2

from penstock.model.errors import CorruptDataError
from penstock.pipeline.tables.rows import decode_records
from penstock.pipeline.tables.schema_text import JSON, PROTOBUF, SchemaText
from penstock.records.batch import CRC_FROM, HEADER_BYTES
from penstock.records.decode import CODECS, Record
from penstock.records.encode import encode_batch
from support.api_server import NOW_MS, ApiServer
from support.tables import (
    Lake,
    follow,
    new_record,
    produce,
    produce_batch,
    produce_values,
    records_of,
)

GOOD = "good"


def reasons(api: ApiServer, topic: str) -> list[str]:
    return [
        dict(record.headers)["penstock.reason"].decode()  # type: ignore[union-attr]
        for record in records_of(api, f"{topic}.dlq")
    ]


def json_schema(properties: dict[str, Any], **more: Any) -> SchemaText:
    schema = {"type": "object", "properties": properties, **more}
    return SchemaText(kind=JSON, text=json.dumps(schema))


STRING = {"type": "string"}
VALUES = {
    "a name that is no text": rb'{"\ud800": 1}',
    "names that are many": json.dumps({"x" * 2000 + str(n): 1 for n in range(50)}).encode(),
    "a string that is no text": rb'{"text": "\ud800"}',
    "the same in bytes": b'{"text": "\xed\xa0\x80"}',
    "a key of a map that is no text": rb'{"map": {"\udfff": 1}}',
    "a date that is no text": rb'{"date": "\ud800"}',
    "a uuid that is no text": rb'{"uuid": "\ud800"}',
    "a number of many digits": b'{"number": ' + b"9" * 5000 + b"}",
    "an integer of many digits": b'{"integer": ' + b"9" * 4000 + b"}",
    "a time before all times": b'{"time": "0001-01-01T00:00:00+14:00"}',
    "brackets": b"[" * 100_000,
}
SCHEMA = json_schema(
    {
        "text": STRING,
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "date": {"type": "string", "format": "date"},
        "time": {"type": "string", "format": "date-time"},
        "uuid": {"type": "string", "format": "uuid"},
        "number": {"type": "number"},
        "integer": {"type": "integer"},
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("what", VALUES)
def test_a_json_value_that_is_no_row(api: ApiServer, lake: Lake, topic: str, what: str) -> None:
    produce_values(api, topic, [b'{"text": "good"}', VALUES[what]])
    summary = follow(api, lake, topic, schema="file", value_schema=SCHEMA)
    assert (summary.rows, summary.bad_records) == (1, 1)
    (reason,) = reasons(api, topic)
    assert len(reason) < 2000
    assert records_of(api, f"{topic}.dlq")[0].value == VALUES[what]


@pytest.mark.slow
def test_protobuf_strings_that_are_no_text(api: ApiServer, lake: Lake, topic: str) -> None:
    """Those of syntax 2 come out of a message as bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="hostile.proto", syntax="proto2")
    message = file.message_type.add(name="Hostile")
    of = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="one", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    message.field.add(name="many", number=2, type=of.TYPE_STRING, label=of.LABEL_REPEATED)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    schema = SchemaText(
        kind=PROTOBUF,
        text=base64.b64encode(files.SerializeToString()).decode(),
        message="Hostile",
    )
    values = [b"\x0a\x01a\x12\x01b", b"\x0a\x02\xff\xfe", b"\x12\x01a\x12\x03\xed\xa0\x80"]
    produce_values(api, topic, values)
    summary = follow(api, lake, topic, schema="file", value_schema=schema)
    assert (summary.rows, summary.bad_records) == (1, 2)
    assert [record.value for record in records_of(api, f"{topic}.dlq")] == values[1:]


def numbered(delta: int) -> Record:
    return Record(offset_delta=delta, timestamp=NOW_MS, key=b"k", value=b"v" * 50, headers=())


def garbage(codec: str, count: int = 3) -> bytearray:
    """A batch with a right CRC around what is no record."""
    records = [numbered(n) for n in range(count)]
    batch = encode_batch(records, codec=codec)
    batch[HEADER_BYTES + 4 :] = b"\xff" * (len(batch) - HEADER_BYTES - 4)
    batch[17:21] = crc32c(batch[CRC_FROM:]).to_bytes(4, "big")
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_nobody_can_decode(
    api: ApiServer, lake: Lake, topic: str, codec: str, mode: str
) -> None:
    produce(api, topic, 0, [new_record(b"a", b"1")])
    produce_batch(api, topic, 0, garbage(codec))
    produce(api, topic, 0, [new_record(b"b", b"2")])
    summary = follow(api, lake, topic, mode=mode)
    assert (summary.rows, summary.bad_records, summary.offsets) == (2, 1, {0: 5})
    assert lake.rows(topic, "key", "value") == [(b"a", b"1"), (b"b", b"2")]
    (letter,) = records_of(api, f"{topic}.dlq")
    assert dict(letter.headers)["penstock.offset"] == b"1"
    (reason,) = reasons(api, topic)
    assert reason.startswith("offsets 1 to 3, of a batch from 1 to 3 that can't be decoded: ")
    # As it lies in the log, so that nothing is lost.
    assert letter.value is not None
    assert letter.value[16:] == garbage(codec)[16:], "but its offset and leader epoch"


def test_ranges_that_cut_such_a_batch_have_a_letter_each() -> None:
    good = encode_batch([numbered(0)])
    bad = garbage("lz4")
    body = bytes(good) + (1).to_bytes(8, "big") + bytes(bad[8:])
    pieces = [
        list(decode_records(body, partition=0, start=start, end=end))
        for start, end in [(0, 2), (2, 4), (4, 9)]
    ]
    found = [
        (row["offset"], row["reason"].split(",")[0])
        for piece in pieces
        for records in piece
        for row in records.bad.to_pylist()
    ]
    assert found == [(1, "offsets 1 to 1"), (2, "offsets 2 to 3")]
    assert [sum(records.rows.num_rows for records in piece) for piece in pieces] == [1, 0, 0]


def test_a_batch_that_is_not_what_was_sent_is_no_dead_letter() -> None:
    bad = garbage("lz4")
    bad[-1] ^= 1
    with pytest.raises(CorruptDataError, match="CRC-32C differs"):
        list(decode_records(bytes(bad), partition=0, start=0, end=9))


TEXTS = {
    "the last before the surrogates": "\ud7ff" * 40,
    "the last of all": "\U0010ffff" * 40,
    "the null character": "\0" * 40,
    "parents": "../" * 40,
    "a long one": "x" * 10_000,
    "a long one of four bytes each": "\U0001f600" * 1000,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("partition", ["none", "identity(text)"])
def test_a_text_that_is_a_row(
    api: ApiServer, lake: Lake, topic: str, what: str, partition: str
) -> None:
    produce_values(api, topic, [json.dumps({"text": TEXTS[what]}).encode(), b'{"text": "good"}'])
    settings = {"schema": "file", "value_schema": SCHEMA, "partition": partition}
    assert follow(api, lake, topic, **settings).rows == 2
    assert lake.rows(topic, "text") == [(TEXTS[what],), ("good",)]
    found = lake.table(topic).scan(row_filter=f"text >= '{GOOD}'").to_arrow()
    assert GOOD in found.column("text").to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["day(timestamp)", "hour(timestamp)", "year(timestamp)"])
@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, 10**15, 253_402_300_800_000])
def test_a_time_that_no_calendar_has(
    api: ApiServer, lake: Lake, topic: str, timestamp_ms: int, partition: str
) -> None:
    produce(api, topic, 0, [new_record(b"far", b"", timestamp_ms=timestamp_ms)])
    produce_values(api, topic, [b"near"])
    last = new_record(b"last", b"", timestamp_ms=253_402_300_799_999)
    produce(api, topic, 0, [last])
    summary = follow(api, lake, topic, partition=partition)
    assert (summary.rows, summary.bad_records, summary.behind) == (2, 1, 0)
    assert [record.key for record in records_of(api, f"{topic}.dlq")] == [b"far"]
