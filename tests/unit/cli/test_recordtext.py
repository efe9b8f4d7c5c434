"""Lines become records and records lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.client.fetching import FetchedRecord
from penstock.cli.client.offsets import TopicPartition
from penstock.cli.recordtext import json_line, read_json_line, read_text_line, text_line
from penstock.model.errors import InvalidRequestError
from penstock.records.decode import Record, decode_batch
from penstock.records.encode import encode_batch

some_bytes = st.none() | st.binary(max_size=20)
records = st.builds(
    FetchedRecord,
    partition=st.just(TopicPartition("t", 3)),
    offset=st.integers(min_value=0, max_value=1 << 62),
    timestamp=st.integers(min_value=0, max_value=1 << 50),
    key=some_bytes,
    value=some_bytes,
    headers=st.lists(st.tuples(st.text(max_size=5), some_bytes), max_size=3).map(tuple),
)


@given(records)
def test_a_record_printed_as_json_is_produced_again_as_it_was(record: FetchedRecord) -> None:
    line = json_line(record)
    assert line.count(b"\n") == 1
    again = read_json_line(line, headers=(), now_ms=0, place="here")
    assert (again.key, again.value, again.headers) == (record.key, record.value, record.headers)
    assert (again.timestamp, again.partition) == (record.timestamp, 3)


def test_a_json_value_that_is_no_text_is_produced_as_json() -> None:
    record = read_json_line(b'{"value": {"a": [1]}, "key": 5}', headers=(), now_ms=9, place="x")
    assert json.loads(record.value or b"") == {"a": [1]}
    assert (record.key, record.timestamp, record.partition) == (b"5", 9, None)


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
        read_json_line(line, headers=(), now_ms=0, place="f line 7")


@pytest.mark.parametrize("timestamp", [-1, 0, (1 << 63) - 2])
def test_any_timestamp_that_is_taken_can_be_encoded(timestamp: int) -> None:
    """-1: a record without a timestamp, which is printed so too."""
    line = b'{"value": "", "timestamp": %d}' % timestamp
    taken = read_json_line(line, headers=(), now_ms=7, place="here").timestamp
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
        read_json_line(line, headers=(), now_ms=0, place="f line 7")
    assert said in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_tombstone_says_so() -> None:
    record = read_json_line(b'{"key": "k", "value": null}', headers=(), now_ms=0, place="x")
    assert (record.key, record.value) == (b"k", None)


def test_null_is_as_what_is_left_out() -> None:
    line = b'{"timestamp": null, "partition": null, "key": null, "value": null, "headers": null}'
    nothing = read_json_line(b'{"value": null}', headers=(), now_ms=7, place="here")
    assert read_json_line(line, headers=(), now_ms=7, place="here") == nothing
    assert nothing.timestamp == 7


def test_a_key_ends_at_the_first_separator() -> None:
    record = read_text_line(
        b"k::v::w", key_separator=b"::", headers=(("h", b"x"),), now_ms=1, place="here"
    )
    assert (record.key, record.value, record.headers) == (b"k", b"v::w", (("h", b"x"),))
    with pytest.raises(InvalidRequestError, match="separator"):
        read_text_line(b"none", key_separator=b"::", headers=(), now_ms=1, place="here")


def test_text_shows_the_value_after_key_and_separator() -> None:
    record = FetchedRecord(
        partition=TopicPartition("t", 0),
        offset=0,
        timestamp=0,
        key=b"k",
        value=None,
        headers=(),
    )
    assert text_line(record, key_separator=None) == b"\n"
    assert text_line(record, key_separator=b"=") == b"k=\n"
