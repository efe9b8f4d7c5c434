"""Values by columns: what a kernel decodes is what the careful decoder says, to the last bit."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.tables.columnar import ColumnDecoder
from penstock.pipeline.tables.decoders import compile_columns, compile_schema
from penstock.pipeline.tables.formats import BadValueError, Decoder
from penstock.pipeline.tables.parts import BARE, BARE_ID, REGISTRY, VALUE, PartPlan, PartReader
from penstock.pipeline.tables.schema_text import SchemaText
from support.examples import examples

INSTANT = pa.timestamp("us", tz="UTC")
JSON = {
    "type": "object",
    "properties": {
        "whole": {"type": "integer"},
        "number": {"type": "number"},
        "text": {"type": "string"},
        "flag": {"type": "boolean"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "id": {"type": "string", "format": "uuid"},
        "perhaps": {"type": ["null", "integer"]},
        "always": {"type": ["null", "string"]},
        "inner": {
            "oneOf": [
                {"type": "null"},
                {
                    "type": "object",
                    "properties": {"x": {"type": "integer"}, "ä": {"type": "string"}},
                    "required": ["x"],
                },
            ]
        },
        "list": {"type": "array", "items": {"type": ["number", "null"]}},
        "lists": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"tags": {"type": "array", "items": {"type": "string"}}},
            },
        },
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
    "required": ["whole", "always"],
}
JSON_KIND = pa.struct(
    [
        # In another order than the schema's, and with a column that it lacks.
        ("flag", pa.bool_()),
        ("number", pa.float64()),
        ("whole", pa.int64()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("at", INSTANT),
        ("id", pa.string()),
        ("perhaps", pa.int64()),
        ("always", pa.string()),
        ("later", pa.string()),
        ("inner", pa.struct([("x", pa.int64()), ("ä", pa.string())])),
        ("list", pa.list_(pa.float64())),
        ("lists", pa.list_(pa.struct([("tags", pa.list_(pa.string()))]))),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "long", "type": "long"},
        {"name": "int", "type": "int"},
        {"name": "text", "type": ["null", "string"]},
        {"name": "other", "type": ["bytes", "null"]},
        {"name": "one", "type": ["string"]},
        {"name": "flag", "type": "boolean"},
        {"name": "float", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "enum", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        {"name": "fixed", "type": ["null", {"type": "fixed", "name": "F", "size": 3}]},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {
            "name": "cost",
            "type": {
                "type": "fixed",
                "name": "C",
                "size": 16,
                "logicalType": "decimal",
                "precision": 38,
                "scale": 2,
            },
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "fine", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "list",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "I",
                    "fields": [{"name": "a", "type": ["null", {"type": "array", "items": "int"}]}],
                },
            },
        },
        {"name": "map", "type": {"type": "map", "values": ["null", "long"]}},
    ],
}
AVRO_KIND = pa.struct(
    [
        ("long", pa.int64()),
        ("int", pa.int64()),  # promoted since
        ("text", pa.string()),
        ("other", pa.binary()),
        ("one", pa.string()),
        ("flag", pa.bool_()),
        ("float", pa.float64()),
        ("double", pa.float64()),
        ("enum", pa.string()),
        ("fixed", pa.binary(3)),
        ("price", pa.decimal128(12, 2)),
        ("cost", pa.decimal128(38, 2)),
        ("day", pa.date32()),
        ("ms", INSTANT),
        ("us", INSTANT),
        ("local", pa.timestamp("us")),
        ("time", pa.time64("us")),
        ("fine", pa.time64("us")),
        ("id", pa.string()),
        ("list", pa.list_(pa.struct([("a", pa.list_(pa.int32()))]))),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)


class Both:
    """A schema's two decoders."""

    def __init__(self, kind: str, schema: Any, columns: pa.DataType) -> None:
        text = SchemaText(kind=kind, text=json.dumps(schema))
        self.columns = columns
        self.careful: Decoder = compile_schema(text, framed=False)
        fast = compile_columns(text, self.careful, columns)
        assert fast is not None
        self.fast: ColumnDecoder = fast

    def run(self, payloads: list[bytes]) -> tuple[list[Any], list[bool]]:
        """Hold the fast one to the careful one: the rows that it gave, and which it left."""
        # Bytes around the values would be seen by a kernel that reads beyond them.
        body = b'9"' + b'}"'.join(payloads) + b'"9'
        ends = np.cumsum([len(payload) + 2 for payload in payloads])
        starts = ends - [len(payload) for payload in payloads]
        data = np.frombuffer(body, dtype=np.uint8)
        found = self.fast.decode(data, starts.astype(np.int64), ends.astype(np.int64))
        found.values.validate(full=True)
        left = (found.is_left != 0).tolist()
        wanted = [
            self.careful.decode(payload)  # raises: the fast one has taken what is bad
            for payload, is_left in zip(payloads, left, strict=True)
            if not is_left
        ]
        expected = pa.array(wanted, self.columns)
        assert exactly(found.values.to_pylist()) == exactly(expected.to_pylist())
        return found.values.to_pylist(), left


def exactly(value: Any) -> Any:
    """With what Python's equality passes over: NaN, the sign of zero, 1 and 1.0."""
    if isinstance(value, list | tuple):
        return [exactly(item) for item in value]
    if isinstance(value, dict):
        return {name: exactly(item) for name, item in value.items()}
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    return (type(value).__name__, value)


JSONS = Both("JSON", JSON, JSON_KIND)
AVROS = Both("AVRO", AVRO, AVRO_KIND)

numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{0,4})?", fullmatch=True),
    st.sampled_from(["-0", "-0.0", "1.0", "1e3", "0e1", "01", "NaN", "1e400", "5e-324", "-", "1."]),
)
strings = st.one_of(
    st.text(st.characters(), max_size=12).map(json.dumps),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(
        lambda text: json.dumps(text, ensure_ascii=False)
    ),
    st.sampled_from(
        [r'"\ud83d\ude00"', r'"\ud83d"', r'"\ude00"', r'"\ud83d\ud83d"', r'"\u00e4\/"', r'"\x"']
    ),
)
days = st.dates().map(str) | st.sampled_from(
    ["2024-02-30", "20240229", "2023-02-29", "0000-01-01", "2024-W09-4", "2024-2-29", "2024-02-29 "]
)
zones = st.sampled_from(["Z", "+00:00", "-23:59", "+01:30", "", "z", "+0100", "+24:00", "-00:00"])
clocks = st.from_regex(r"[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,10})?", fullmatch=True)
instants = st.builds(
    lambda day, between, clock, zone: f"{day}{between}{clock}{zone}",
    days,
    st.sampled_from("T tx"),
    clocks,
    zones,
)
uuids = st.uuids().map(str) | st.uuids().map(lambda found: str(found).upper()) | st.text(max_size=3)
quoted = lambda strategy: strategy.map(json.dumps)  # noqa: E731
words = st.sampled_from(["true", "false", "null", "nul", "tru", "{}", "[]", "[null]", "[[]]"])
anything = numbers | strings | words
spaces = st.sampled_from(["", "", "", " ", "\n\t\r"])


def joined(parts: list[str], space: str, around: str) -> str:
    return around[0] + space + f"{space},{space}".join(parts) + space + around[1]


def pair(name: str, value: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    key = st.just(json.dumps(name)) | st.just(json.dumps(name, ensure_ascii=False))
    return st.builds(lambda k, space, v: f"{k}{space}:{space}{v}", key, spaces, value)


def objects(fields: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[str]:
    pairs = st.one_of([pair(name, value) for name, value in fields.items()])
    needed = st.tuples(*(pair(name, value) for name, value in fields.items())).map(list)
    some = st.lists(pairs, max_size=6)
    return st.builds(
        lambda first, more, order, space: joined(
            order.sample(first + more, len(first + more)), space, "{}"
        ),
        needed | st.just([]),
        some,
        st.randoms(use_true_random=False),
        spaces,
    )


def arrays(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda found, space: joined(found, space, "[]"), st.lists(items), spaces)


json_texts = objects(
    {
        "whole": st.integers(-(2**63), 2**63 - 1).map(str),
        "number": numbers,
        "text": strings,
        "flag": st.sampled_from(["true", "false"]),
        "day": quoted(days),
        "at": quoted(instants),
        "id": quoted(uuids),
        "perhaps": numbers | st.just("null"),
        "always": strings | st.just("null"),
        "inner": st.just("null") | objects({"x": numbers, "ä": strings}),
        "list": arrays(numbers | st.just("null")),
        "lists": arrays(objects({"tags": arrays(strings)})),
        "map": st.dictionaries(st.text(max_size=2), st.integers(), max_size=40).map(json.dumps),
    }
) | objects(dict.fromkeys(JSON["properties"], anything) | {"unknown": anything})


@pytest.mark.slow
@settings(max_examples=examples(2))
@given(st.lists(json_texts, max_size=5))
def test_json_is_what_the_careful_decoder_says(texts: list[str]) -> None:
    JSONS.run([text.encode(errors="surrogatepass") for text in texts])


@pytest.mark.slow
@settings(max_examples=examples(2))
@given(json_texts, st.integers(0, 400), st.binary(max_size=3), st.integers(0, 3))
def test_damaged_json_is_what_the_careful_decoder_says(
    text: str, position: int, new: bytes, removed: int
) -> None:
    payload = text.encode(errors="surrogatepass")
    position %= len(payload) + 1
    JSONS.run([payload[:position] + new + payload[position + removed :]])


PLAIN = {
    "whole": 7,
    "number": 0.1,
    "text": "an \u00e4 and \U0001f600\n",
    "flag": True,
    "day": "2024-02-29",
    "at": "2024-02-29T12:00:00.5+01:00",
    "id": "00000000-0000-0000-0000-00000000000a",
    "perhaps": None,
    "always": None,
    "inner": {"x": 1, "ä": "b"},
    "list": [1, None, 2.5],
    "lists": [{"tags": ["a", "b"]}, {}, {"tags": []}],
    "map": {"a": 1, "b": 2},
}


@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"separators": (",", ":")}])
def test_what_most_writers_write_is_not_left(options: Any) -> None:
    # Names with escapes are left, texts are not.
    texts = [json.dumps(PLAIN, **options).replace(r'"\u00e4"', '"ä"')]
    texts += [json.dumps(PLAIN, ensure_ascii=False, **options)] * 2
    found, left = JSONS.run([text.encode() for text in texts])
    assert left == [False] * 3
    assert found[2]["map"] == [("a", 1), ("b", 2)]


def test_two_objects_in_one_value_take_no_other_values_offset() -> None:
    """pyarrow.json reads these as three rows, so that counts agree and offsets don't."""
    row = b'{"whole": %d, "always": null}'
    payloads = [row % 1 + row % 2, b"", row % 3, b" ", b"\n", row % 4 + b"\n"]
    found, left = JSONS.run(payloads)
    assert left == [True, True, False, True, True, False]
    assert [value["whole"] for value in found] == [3, 4]


def with_whole(text: str) -> bytes:
    return b'{"always": null, "whole": 1, %s}' % text.encode(errors="surrogatepass")


LEFT = [
    # Whether its value is bad, in the careful decoder's words below.
    ('"number": 1, "number": 2', None),
    ('"whole": 2', None),
    ('"perhaps": 1.0', None),
    ('"perhaps": 9223372036854775807', None),
    ('"perhaps": 9223372036854775808', "beyond 64 bits"),
    ('"number": NaN', "NaN is not JSON"),
    ('"number": 1e400', None),
    ('"text": "\\ud800"', None),
    ('"\\u0074ext": "a"', None),
    ('"day": "20240229"', None),
    ('"map": {"a": 1, "a": 2}', None),
    ('"flag": null', "no boolean"),
    ('"unknown": 1', "properties besides its schema"),
    ('"text": "a\nb"', "not JSON"),
]


@pytest.mark.parametrize(("text", "reason"), LEFT)
def test_what_few_writers_write_is_left(text: str, reason: str | None) -> None:
    payload = with_whole(text)
    assert JSONS.run([payload])[1] == [True]
    if reason is None:
        JSONS.careful.decode(payload)
    else:
        with pytest.raises(BadValueError, match=reason):
            JSONS.careful.decode(payload)


@pytest.mark.parametrize(
    "text",
    [
        '"number": -0, "perhaps": -0',
        '"number": -0.0',
        '"number": 123456789012345678901234567890.5e-7',
        '"number": 9007199254740993',
        '"at": "2024-02-29T23:59:59.1234567Z"',
        '"at": "9999-12-31 23:59:59.999999+00:00"',
        '"text": "\\ud83d\\ude00\\u0000\\b\\f"',
    ],
)
def test_what_readers_differ_in_is_as_the_careful_decoder_has_it(text: str) -> None:
    assert JSONS.run([with_whole(text)])[1] == [False]


def test_more_elements_than_there_is_room_for() -> None:
    payloads = [
        with_whole(f'"list": {list(range(count))}, "lists": [{{"tags": ["a", "b"]}}]')
        for count in (1, 500, 3, 70, 2000)
    ]
    found, left = JSONS.run(payloads)
    assert not any(left)
    assert [len(value["list"]) for value in found] == [1, 500, 3, 70, 2000]


def test_a_value_that_is_left_leaves_nothing_in_its_lists() -> None:
    good, bad = with_whole('"list": [1, 2], "map": {"a": 1}'), with_whole('"list": [1, 2, "x"]')
    found, left = JSONS.run([bad, good, bad, good])
    assert left == [True, False, True, False]
    assert [value["list"] for value in found] == [[1.0, 2.0]] * 2


# -- Avro ------------------------------------------------------------------------------------------

PARSED = fastavro.parse_schema(AVRO)
int32s, int64s = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
avro_values = st.fixed_dictionaries(
    {
        "long": int64s,
        "int": int32s,
        "text": st.none() | plain_text,
        "other": st.none() | st.binary(max_size=9),
        "one": plain_text,
        "flag": st.booleans(),
        "float": st.floats(width=32),
        "double": st.floats(),
        "enum": st.sampled_from("XY"),
        "fixed": st.none() | st.binary(min_size=3, max_size=3),
        "price": st.decimals(-9_999_999, 9_999_999, places=2),
        "cost": st.decimals(-(10**20), 10**20, places=2),
        "day": st.dates(),
        "ms": st.integers(-62_135_596_800_000, 253_402_300_799_999) | int64s,
        "us": st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999) | int64s,
        "local": st.integers(-62_135_596_800_000, 253_402_300_799_999),
        "time": st.integers(0, 86_399_999) | int32s,
        "fine": st.integers(0, 86_399_999_999) | int64s,
        "id": st.uuids(),
        "list": st.lists(st.fixed_dictionaries({"a": st.none() | st.lists(int32s, max_size=3)})),
        "map": st.dictionaries(plain_text, st.none() | int64s, max_size=5),
    }
)


def encoded(value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, PARSED, value)
    return stream.getvalue()


@pytest.mark.slow
@settings(max_examples=examples(2))
@given(st.lists(avro_values, max_size=4))
def test_avro_is_what_the_careful_decoder_says(values: list[Any]) -> None:
    AVROS.run([encoded(value) for value in values])


@settings(max_examples=examples(2))
@given(avro_values, st.integers(0, 400), st.binary(max_size=3), st.integers(0, 3))
def test_damaged_avro_is_what_the_careful_decoder_says(
    value: Any, position: int, new: bytes, removed: int
) -> None:
    payload = encoded(value)
    position %= len(payload) + 1
    AVROS.run([payload[:position] + new + payload[position + removed :]])


# -- columns of many schemas -----------------------------------------------------------------------


def part(kind: str, schemas: dict[int, Any]) -> PartReader:
    texts = {
        number: SchemaText(kind="JSON", text=json.dumps(schema))
        for number, schema in schemas.items()
    }
    return PartReader(PartPlan(kind=kind, schemas=texts), JSON_KIND, VALUE)


def wire(schema_id: int, text: str) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + text.encode()


def test_values_of_several_schemas_keep_their_places() -> None:
    reader = part(
        REGISTRY, {1: JSON, 2: {"type": "object", "properties": {"whole": {"type": "integer"}}}}
    )
    payloads = pa.chunked_array(
        [
            [
                wire(2, '{"whole": 1}'),
                wire(1, '{"whole": 2, "always": "x"}'),
                b"\1\0\0\0\1{}",
                None,
                wire(1, '{"whole": 3.0, "always": null}'),
                wire(2, '{"whole": "4"}'),
                wire(2, '{"whole": 5}'),
            ],
            [b"\0\0", wire(1, '{"whole": 6, "always": "\\ud800"}')],
        ],
        pa.binary(),
    )
    column = reader.read(payloads)
    assert {row: reason[:20] for row, reason in column.reasons.items()} == {
        2: "the value does not b",
        3: "no value",
        5: "whole is not an inte",
        7: "the value does not b",
        8: "the value does not f",
    }
    good = np.array([row not in column.reasons for row in range(len(payloads))])
    assert column.of_rows(good).field("whole").to_pylist() == [1, 2, 3, 5]
    assert reader.take_unknown() == frozenset()


def test_a_schema_that_the_plan_lacks_is_named() -> None:
    reader = part(REGISTRY, {1: JSON})
    reader.read(pa.chunked_array([[wire(3, "{}"), wire(1, "{}")]], pa.binary()))
    assert reader.take_unknown() == frozenset({3})


def test_bare_values_without_a_good_one() -> None:
    column = part(BARE, {BARE_ID: JSON}).read(pa.chunked_array([[b"x", None]], pa.binary()))
    assert sorted(column.reasons) == [0, 1]
    assert len(column.of_rows(np.array([False, False]))) == 0


def test_no_values_at_all() -> None:
    column = part(BARE, {BARE_ID: JSON}).read(pa.chunked_array([], pa.binary()))
    assert len(column.of_rows(None)) == 0
