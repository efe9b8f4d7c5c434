"""Avro schemas as columns, and their values. Pure.

fastavro reads the values. Source: Apache Avro 1.12 specification; Confluent's wire format.
"""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import fastavro
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from penstock.kernels import shapes
from penstock.pipeline.tables.formats import (
    DEPTH_MAX,
    AnyType,
    BadValueError,
    FieldType,
    ListOf,
    MapOf,
    RecordType,
    UnsupportedSchemaError,
)
from penstock.pipeline.tables.schema_text import SchemaText
from penstock.pipeline.tables.shapes import Shape

_PRIMITIVES: Final[dict[str, IcebergType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
_LOGICAL: Final[dict[tuple[str, str], IcebergType]] = {
    ("int", "date"): DateType(),
    ("int", "time-millis"): TimeType(),
    ("long", "time-micros"): TimeType(),
    ("long", "timestamp-millis"): TimestamptzType(),
    ("long", "timestamp-micros"): TimestamptzType(),
    ("long", "local-timestamp-millis"): TimestampType(),
    ("long", "local-timestamp-micros"): TimestampType(),
}
_DECIMAL_DIGITS_MAX: Final = 38
_LONG_DIGITS: Final = 18
"""Decimals of more are read one by one."""
_NO_BRANCH: Final = -1

Convert = Callable[[Any], Any]
"""A function that converts fastavro's value to one that Arrow takes."""
_LEAVES: Final = {
    "boolean": shapes.BOOLEAN,
    "int": shapes.INT,
    "long": shapes.LONG,
    "float": shapes.FLOAT,
    "double": shapes.DOUBLE,
    "bytes": shapes.BYTES,
    "string": shapes.TEXT,
}
_LOGICAL_LEAVES: Final = {
    "date": shapes.DATE,
    "time-millis": shapes.TIME_MS,
    "time-micros": shapes.TIME,
    "timestamp-millis": shapes.INSTANT_MS,
    "timestamp-micros": shapes.INSTANT,
    "local-timestamp-millis": shapes.INSTANT_MS,
    "local-timestamp-micros": shapes.INSTANT,
}


class _Reader(NamedTuple):
    """Reads values of one schema, one by one or by columns."""

    type: AnyType
    convert: Convert
    shape: Shape


class AvroDecoder:
    """One schema.

    Raises:
        UnsupportedSchemaError: not Avro, or with what no column can hold.
    """

    def __init__(self, text: SchemaText) -> None:
        named: dict[str, Any] = {}
        try:
            for _, reference in text.references:
                fastavro.parse_schema(json.loads(reference), named)
            self._schema = fastavro.parse_schema(json.loads(text.text), named)
        except (fastavro.schema.SchemaParseException, ValueError, TypeError, KeyError) as error:
            raise UnsupportedSchemaError(
                "read Avro schema", _head(text.text), f"{type(error).__name__}: {error}"
            ) from error
        self._named = named
        self._type, self._apply, self._shape = _convert(self._schema, named, "", 0)

    @property
    def type(self) -> AnyType:
        """See `Decoder`."""
        return self._type

    @property
    def shape(self) -> Shape:
        """See `Decoder`."""
        return self._shape

    def decode(self, payload: bytes) -> Any:
        """A value. Raises: BadValueError: the bytes are not of the schema."""
        stream = io.BytesIO(payload)
        try:
            value = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception as error:
            # fastavro has no error of its own for bytes: IndexError, EOFError, struct.error, ...
            raise BadValueError(f"not of its Avro schema: {type(error).__name__}") from error
        if stream.tell() != len(payload):
            raise BadValueError(
                f"not of its Avro schema: {len(payload) - stream.tell()} bytes are left over"
            )
        return self._apply(value)


def _convert(schema: Any, named: dict[str, Any], at: str, depth: int) -> _Reader:
    if depth > DEPTH_MAX:
        raise UnsupportedSchemaError(
            "read Avro schema", at, f"deeper than {DEPTH_MAX}, or it contains itself"
        )
    if isinstance(schema, list):
        raise UnsupportedSchemaError(
            "read Avro schema", at, "a union here can only be of null and one type"
        )
    if isinstance(schema, str):
        if schema in named:
            return _convert(named[schema], named, at, depth + 1)
        return _primitive(schema, at)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _convert(kind, named, at, depth + 1)
    if kind in ("record", "error"):
        return _record(schema, named, at, depth)
    if kind == "array":
        element, is_required = _nullable(schema["items"], named, f"{at}.element", depth)
        return _Reader(
            ListOf(element=element.type, element_required=is_required),
            lambda value: [element.convert(item) for item in value],
            Shape(kind=shapes.LIST, children=(element.shape,)),
        )
    if kind == "map":
        entry, is_required = _nullable(schema["values"], named, f"{at}.value", depth)
        return _Reader(
            MapOf(key=StringType(), value=entry.type, value_required=is_required),
            lambda value: [(key, entry.convert(item)) for key, item in value.items()],
            Shape(kind=shapes.MAP, children=(Shape(kind=shapes.TEXT), entry.shape)),
        )
    return _scalar(schema, kind, at)


def _scalar(schema: Any, kind: str, at: str) -> _Reader:
    logical = schema.get("logicalType", "")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision = schema["precision"]
        if precision > _DECIMAL_DIGITS_MAX:
            raise UnsupportedSchemaError(
                "read Avro schema", at, f"{precision} digits, a column has {_DECIMAL_DIGITS_MAX}"
            )
        return _Reader(
            DecimalType(precision, schema.get("scale", 0)),
            _same,
            Shape(
                kind=shapes.DECIMAL if kind == "bytes" else shapes.DECIMAL_FIXED,
                detail=10 ** min(precision, _LONG_DIGITS),
                size_bytes=schema.get("size", 0),
            ),
        )
    if (kind, logical) == ("string", "uuid"):
        # As text: Arrow's own type of UUIDs can't be filtered or joined yet.
        return _Reader(StringType(), str, Shape(kind=shapes.UUID))
    if kind == "enum":
        symbols = tuple(schema["symbols"])
        return _Reader(
            StringType(),
            _same,
            Shape(kind=shapes.ENUM, detail=len(symbols), symbols=symbols),
        )
    if kind == "fixed":
        if logical:
            raise UnsupportedSchemaError("read Avro schema", at, f"no column holds {logical}")
        size = schema["size"]
        return _Reader(FixedType(size), _same, Shape(kind=shapes.FIXED, size_bytes=size))
    found = _LOGICAL.get((kind, logical))
    if found is not None:
        return _Reader(found, _same, Shape(kind=_LOGICAL_LEAVES[logical]))
    # An unknown logical type is its plain one: the specification says so.
    return _primitive(kind, at)


def _record(schema: Any, named: dict[str, Any], at: str, depth: int) -> _Reader:
    if not schema["fields"]:
        raise UnsupportedSchemaError("read Avro schema", at.lstrip("."), "a record without fields")
    fields: list[FieldType] = []
    converts: list[tuple[str, Convert]] = []
    children: list[Shape] = []
    for entry in schema["fields"]:
        name = entry["name"]
        reader, is_required = _nullable(entry["type"], named, f"{at}.{name}", depth)
        fields.append(FieldType(name=name, type=reader.type, required=is_required))
        converts.append((name, reader.convert))
        children.append(replace(reader.shape, name=name))

    def apply(value: Any) -> Any:
        return {name: convert(value[name]) for name, convert in converts}

    shape = Shape(kind=shapes.STRUCT, children=tuple(children))
    return _Reader(RecordType(fields=tuple(fields)), apply, shape)


def _nullable(schema: Any, named: dict[str, Any], at: str, depth: int) -> tuple[_Reader, bool]:
    """Return the reader of a value that may be null, and whether there is always a value."""
    if not isinstance(schema, list):
        return _convert(schema, named, at, depth + 1), True
    nulls = [place for place, branch in enumerate(schema) if branch in ("null", {"type": "null"})]
    others = [place for place in range(len(schema)) if place not in nulls]
    if len(others) != 1:
        raise UnsupportedSchemaError(
            "read Avro schema", at.lstrip("."), "a union can only be of null and one type"
        )
    reader = _convert(schema[others[0]], named, at, depth + 1)
    shape = replace(
        reader.shape, value_branch=others[0], null_branch=nulls[0] if nulls else _NO_BRANCH
    )
    if not nulls:
        return reader._replace(shape=shape), True
    return (
        _Reader(reader.type, lambda value: None if value is None else reader.convert(value), shape),
        False,
    )


def _primitive(name: str, at: str) -> _Reader:
    found = _PRIMITIVES.get(name)
    if found is None:
        raise UnsupportedSchemaError("read Avro schema", at.lstrip("."), f"no column holds {name}")
    return _Reader(found, _same, Shape(kind=_LEAVES[name]))


def _same(value: Any) -> Any:
    return value


def _head(text: str) -> str:
    return text[:100]
