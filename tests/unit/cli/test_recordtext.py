"""Lines become records and records lines."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cli.recordtext import (
    Place,
    json_lines,
    read_any_json_line,
    read_json_line,
    read_text_line,
    text_lines,
)
from penstock.model.errors import InvalidRequestError
from penstock.records.decode import Record, decode_batch
from penstock.records.encode import encode_batch

HERE = Place("f", 7)
some_bytes = st.none() | st.binary(max_size=20)
messages = st.builds(
    lambda time_ms, **fields: Message(topic="t", partition=3, timestamp=(1, time_ms), **fields),
    time_ms=st.integers(min_value=1, max_value=1 << 50),
    offset=st.integers(min_value=0, max_value=1 << 62),
    key=some_bytes,
    value=some_bytes,
    headers=st.none() | st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3),
)


@given(messages)
def test_a_record_printed_as_json_is_produced_again_as_it_was(message: Message) -> None:
    line = json_lines([message])
    assert line.count(b"\n") == 1
    again = read_json_line(line, headers=[], place=HERE)
    assert (again.key, again.value) == (message.key(), message.value())
    assert again.headers == (message.headers() or [])
    assert (again.timestamp, again.partition) == (message.timestamp()[1], 3)


def shown(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


@given(st.lists(messages, max_size=3))
def test_lines_of_json_are_as_json_writes_them(several: list[Message]) -> None:
    expected = [
        {
            "topic": "t",
            "partition": 3,
            "offset": message.offset(),
            "timestamp": message.timestamp()[1],
            "key": shown(message.key()),
            "value": shown(message.value()),
            "headers": [[name, shown(item)] for name, item in message.headers() or []],
        }
        for message in several
    ]
    lines = [json.dumps(value, ensure_ascii=False) + "\n" for value in expected]
    assert json_lines(several) == "".join(lines).encode()


plain_values = st.none() | st.text(max_size=4) | st.integers() | st.floats() | st.booleans()
values = plain_values | st.lists(plain_values, max_size=2)
fields = {
    "value": values,
    "key": values | st.just({"base64": "AA=="}),
    "headers": values | st.lists(st.tuples(st.text(max_size=3), values), max_size=2),
    "timestamp": values,
    "partition": values,
    "topic": values,
    "offset": values,
    "Value": values,
}
lines_of_json = st.fixed_dictionaries({}, optional=fields).map(json.dumps)


def outcome(read: Any, line: bytes) -> Any:
    try:
        return read(line, headers=[("h", b"x")], place=HERE)
    except InvalidRequestError as error:
        return str(error)


@given((lines_of_json | st.text(max_size=8)).map(str.encode))
@example(b'{"value": "\\ud800"}')
@example(b'{"value": "a", "value": "b"}')
@example(b'{"value": "a", "partition": 1.0, "timestamp": 2.0}')
@example(b'{"value": "a", "timestamp": 0}')
@example(b'\xef\xbb\xbf{"value": "a"}')
@example(b'{"value": "a", "offset": NaN}')
@example(b'{"value": "a", "partition": 123456789012345678901234567890}')
def test_lines_are_read_as_the_slow_way_reads_them(line: bytes) -> None:
    assert outcome(read_json_line, line) == outcome(read_any_json_line, line)


def test_a_json_value_that_is_no_text_is_produced_as_json() -> None:
    record = read_json_line(b'{"value": {"a": [1]}, "key": 5}', headers=[], place=HERE)
    assert json.loads(record.value or b"") == {"a": [1]}
    assert (record.key, record.timestamp, record.partition) == (b"5", None, None)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{",
        b'{"value": "", "headers": 5}',
        b'{"value": "", "key": {"base64": "%"}}',
        b'{"value": "", "key": {"base64": 5}}',
        b'{"value": "", "partition": "x"}',
        b'{"value": "", "partition": Infinity}',
        b'{"value": "", "partition": NaN}',
        b'{"value": "", "timestamp": 1e999}',
        b'{"value": "", "timestamp": 99999999999999999999}',
        b'{"value": "", "timestamp": 9223372036854775808}',
        b'{"value": "", "timestamp": -2}',
        b'{"value": "", "timestamp": 0}',
        b'{"value": "", "timestamp": %s}' % (b"9" * 5000),
        b'{"value": "", "key": "\\ud800"}',
        b'{"value": "\\udfff"}',
        b'{"value": {"a": "\\ud800"}}',
        b'{"value": "", "headers": {"\\ud800": "x"}}',
        b'{"value": "", "headers": [["name", "\\ud800"]]}',
        b"[" * 200_000,
        b'{"value": %s1%s}' % (b"[" * 100_000, b"]" * 100_000),
        b"\xff",
    ],
    ids=lambda line: line[:40],
)
def test_a_line_that_is_no_record_is_refused_with_its_place(line: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="f line 7"):
        read_json_line(line, headers=[], place=HERE)


@pytest.mark.parametrize("timestamp", [-1, 1, (1 << 63) - 2])
def test_any_timestamp_that_is_taken_can_be_encoded(timestamp: int) -> None:
    """-1: a record without a timestamp, which is printed so too."""
    line = b'{"value": "", "timestamp": %d}' % timestamp
    taken = read_json_line(line, headers=[], place=HERE).timestamp
    assert taken is not None
    records = [
        Record(offset_delta=delta, timestamp=time_ms, key=None, value=None, headers=())
        for delta, time_ms in enumerate((-1, taken, -1))
    ]
    assert [row.timestamp for row in decode_batch(memoryview(encode_batch(records)))] == [
        -1,
        taken,
        -1,
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"key": "k", "vlaue": "v"}', "unknown field 'vlaue', did you mean 'value'?"),
        (b'{"value": "v", "Key": "k"}', "unknown field 'Key', did you mean 'key'?"),
        (b'{"value": "v", "timestmap": 1}', "did you mean 'timestamp'?"),
        (b'{"value": "v", "%s": 1}' % (b"x" * 9000), "unknown field 'xxxx"),
        (b'{"key": "k"}', 'it has no value; a tombstone says "value": null'),
        (b"{}", "it has no value"),
    ],
)
def test_a_misspelt_field_is_no_tombstone(line: bytes, said: str) -> None:
    with pytest.raises(InvalidRequestError, match="f line 7") as refused:
        read_json_line(line, headers=[], place=HERE)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_tombstone_says_so() -> None:
    record = read_json_line(b'{"key": "k", "value": null}', headers=[], place=HERE)
    assert (record.key, record.value) == (b"k", None)


def test_null_is_as_what_is_left_out() -> None:
    line = b'{"timestamp": null, "partition": null, "key": null, "value": null, "headers": null}'
    nothing = read_json_line(b'{"value": null}', headers=[], place=HERE)
    assert read_json_line(line, headers=[], place=HERE) == nothing
    assert nothing.timestamp is None


def test_a_key_ends_at_the_first_separator() -> None:
    headers: list[tuple[str, bytes | None]] = [("h", b"x")]
    record = read_text_line(b"k::v::w", key_separator=b"::", headers=headers, place=HERE)
    assert (record.key, record.value, record.headers) == (b"k", b"v::w", headers)
    with pytest.raises(InvalidRequestError, match="f line 7: the line has no key separator"):
        read_text_line(b"none", key_separator=b"::", headers=[], place=HERE)


def test_text_shows_the_value_after_key_and_separator() -> None:
    several = [Message(key=b"k", value=None), Message(key=None, value=b"v")]
    assert text_lines(several, key_separator=None) == b"\nv\n"
    assert text_lines(several, key_separator=b"=") == b"k=\n=v\n"
    assert text_lines([], key_separator=None) == b""
