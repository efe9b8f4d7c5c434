"""Avro schemas as columns, and their values. Pure.

fastavro reads the values. Source: Apache Avro 1.12 specification; Confluent's wire format.
"""

import io
import json
from collections.abc import Callable
from typing import Any, Final

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

from penstock.pipeline.tables.formats import (
    DEPTH_MAX,
    AnyType,
    BadValueError,
    FieldType,
    ListOf,
    MapOf,
    RecordType,
    SchemaText,
    UnsupportedSchemaError,
)

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

Convert = Callable[[Any], Any]
"""What fastavro gives, as Arrow takes it."""


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
        self._type, self._apply = _convert(self._schema, named, "", 0)

    @property
    def type(self) -> AnyType:
        """See `Decoder`."""
        return self._type

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


def _convert(schema: Any, named: dict[str, Any], at: str, depth: int) -> tuple[AnyType, Convert]:
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
        return _primitive(schema, at), _same
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _convert(kind, named, at, depth + 1)
    if kind in ("record", "error"):
        return _record(schema, named, at, depth)
    if kind == "array":
        element, convert, required = _nullable(schema["items"], named, f"{at}.element", depth)
        return ListOf(element=element, element_required=required), lambda value: [
            convert(item) for item in value
        ]
    if kind == "map":
        value_type, convert, required = _nullable(schema["values"], named, f"{at}.value", depth)
        return MapOf(key=StringType(), value=value_type, value_required=required), lambda value: [
            (key, convert(item)) for key, item in value.items()
        ]
    logical = schema.get("logicalType", "")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision = schema["precision"]
        if precision > _DECIMAL_DIGITS_MAX:
            raise UnsupportedSchemaError(
                "read Avro schema", at, f"{precision} digits, a column has {_DECIMAL_DIGITS_MAX}"
            )
        return DecimalType(precision, schema.get("scale", 0)), _same
    if (kind, logical) == ("string", "uuid"):
        # As text: Arrow's own type of UUIDs can't be filtered or joined yet.
        return StringType(), str
    if kind == "enum":
        return StringType(), _same
    if kind == "fixed":
        if logical:
            raise UnsupportedSchemaError("read Avro schema", at, f"no column holds {logical}")
        return FixedType(schema["size"]), _same
    found = _LOGICAL.get((kind, logical))
    if found is not None:
        return found, _same
    # An unknown logical type is its plain one: the specification says so.
    return _primitive(kind, at), _same


def _record(schema: Any, named: dict[str, Any], at: str, depth: int) -> tuple[RecordType, Convert]:
    if not schema["fields"]:
        raise UnsupportedSchemaError("read Avro schema", at.lstrip("."), "a record without fields")
    fields: list[FieldType] = []
    converts: list[tuple[str, Convert]] = []
    for entry in schema["fields"]:
        name = entry["name"]
        kind, convert, required = _nullable(entry["type"], named, f"{at}.{name}", depth)
        fields.append(FieldType(name=name, type=kind, required=required))
        converts.append((name, convert))

    def apply(value: Any) -> Any:
        return {name: convert(value[name]) for name, convert in converts}

    return RecordType(fields=tuple(fields)), apply


def _nullable(
    schema: Any, named: dict[str, Any], at: str, depth: int
) -> tuple[AnyType, Convert, bool]:
    """Type, conversion, and whether there is always a value."""
    if not isinstance(schema, list):
        kind, convert = _convert(schema, named, at, depth + 1)
        return kind, convert, True
    others = [branch for branch in schema if branch not in ("null", {"type": "null"})]
    if len(others) != 1:
        raise UnsupportedSchemaError(
            "read Avro schema", at.lstrip("."), "a union can only be of null and one type"
        )
    kind, convert = _convert(others[0], named, at, depth + 1)
    if len(others) == len(schema):
        return kind, convert, True
    return kind, lambda value: None if value is None else convert(value), False


def _primitive(name: str, at: str) -> IcebergType:
    found = _PRIMITIVES.get(name)
    if found is None:
        raise UnsupportedSchemaError("read Avro schema", at.lstrip("."), f"no column holds {name}")
    return found


def _same(value: Any) -> Any:
    return value


def _head(text: str) -> str:
    return text[:100]
