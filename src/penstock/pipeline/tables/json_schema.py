"""JSON Schema as columns, and JSON values of them. Pure.

Types are checked strictly: a string is never taken for a number, nor 1.5 for an integer. Checks
that say nothing of the type (`pattern`, `minimum`, ...) are not made. A value with a property that
its schema does not name is a bad record, since a row would hold less than the record does, unless
the topic's policy lets it be; where `additionalProperties` is false it is bad in any case.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    TimestamptzType,
)

from penstock.kernels import shapes
from penstock.pipeline.tables.columns import REST_COLUMN
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
from penstock.pipeline.tables.settings import IGNORE, REST
from penstock.pipeline.tables.shapes import Shape

Convert = Callable[[Any], Any]
_INT64: Final = 1 << 63
_FINER: Final = re.compile(r"[.,]\d{6}(\d+)")
"""Digits behind the microseconds."""


class _Reader(NamedTuple):
    """Reads values of one schema, one by one or by columns."""

    type: AnyType
    convert: Convert
    shape: Shape


class JsonDecoder:
    """One schema. `is_identity`: see `compile_schema`.

    Args:
        unknown: of properties that the schema does not name: IGNORE leaves them out; REST has the
            value's properties that are such, or hold such at any depth, whole and as JSON in
            REST_COLUMN; else they make a bad value.

    Raises:
        UnsupportedSchemaError: no JSON Schema, or with what no column can hold.
    """

    def __init__(self, text: SchemaText, *, is_identity: bool = False, unknown: str = "") -> None:
        self._is_identity = is_identity
        self._unknown = unknown
        self._met_unknown = False
        try:
            schema = json.loads(text.text)
            self._documents = {name: json.loads(body) for name, body in text.references}
        except ValueError as error:
            raise UnsupportedSchemaError("read JSON Schema", text.text[:100], str(error)) from error
        self._root = schema
        self._type, self._apply, self._shape = self._convert(schema, schema, "", 0)

    @property
    def type(self) -> AnyType:
        """See `Decoder`."""
        return self._type

    @property
    def shape(self) -> Shape:
        """See `Decoder`."""
        return self._shape

    def decode(self, payload: bytes) -> Any:
        """A value. Raises: BadValueError."""
        try:
            value = json.loads(
                payload,
                parse_constant=_refuse_constant,
                parse_float=_whole if self._is_identity else None,
            )
        except (ValueError, RecursionError) as error:
            raise BadValueError(f"not JSON: {error}") from error
        return self._apply(value)

    def _convert(self, schema: Any, root: Any, at: str, depth: int) -> _Reader:
        if depth > DEPTH_MAX:
            raise _unsupported(at, f"deeper than {DEPTH_MAX}, or it contains itself")
        if not isinstance(schema, dict):
            raise _unsupported(at, "a schema without a type")
        if "$ref" in schema:
            target, root = self._find(schema["$ref"], root, at)
            return self._convert(target, root, at, depth + 1)
        kind = schema.get("type")
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, root, at, depth)
        if kind == "array":
            items = schema.get("items")
            if not isinstance(items, dict):
                raise _unsupported(at, "an array whose items have no one schema")
            element = self._nullable(items, root, f"{at}.element", depth)
            return _Reader(
                ListOf(element=element.type, element_required=not element.shape.is_nullable),
                _list_of(element.convert, at),
                Shape(kind=shapes.LIST, children=(element.shape,)),
            )
        if kind is None and "enum" in schema:
            options = schema["enum"]
            if all(isinstance(option, str) for option in options):
                kind = "string"
        if isinstance(kind, str):
            found = _scalar(
                kind,
                schema.get("format", ""),
                at,
                is_identity=self._is_identity,
            )
            if found is not None:
                return found
        raise _unsupported(at, f"no column is made of {json.dumps(schema)[:100]}")

    def _object(self, schema: dict[str, Any], root: Any, at: str, depth: int) -> _Reader:
        properties = schema.get("properties", {})
        further = schema.get("additionalProperties", True)
        if not properties:
            if not isinstance(further, dict):
                raise _unsupported(at, "an object without properties")
            item = self._nullable(further, root, f"{at}.value", depth)
            return _Reader(
                MapOf(key=StringType(), value=item.type, value_required=not item.shape.is_nullable),
                _map_of(item.convert, at),
                Shape(kind=shapes.MAP, children=(Shape(kind=shapes.TEXT), item.shape)),
            )
        required = set(schema.get("required", ()))
        fields: list[FieldType] = []
        converts: dict[str, tuple[Convert, bool]] = {}
        children: list[Shape] = []
        for name, entry in properties.items():
            if "." in name or not name:
                raise _unsupported(f"{at}.{name}", "a column's name has no dot, and is not empty")
            reader = self._nullable(entry, root, f"{at}.{name}", depth)
            must_be = name in required
            is_always = must_be and not reader.shape.is_nullable
            fields.append(FieldType(name=name, type=reader.type, required=is_always))
            converts[name] = (reader.convert, must_be)
            children.append(replace(reader.shape, name=name, is_required=must_be))

        def apply(value: Any) -> Any:
            if not isinstance(value, dict):
                raise BadValueError(f"{_shown(at)} is not an object")
            unknown = value.keys() - converts.keys()
            if unknown and not lets_be:
                raise BadValueError(
                    f"{_shown(at)} has properties besides its schema's: {_few(unknown)}"
                )
            self._met_unknown = self._met_unknown or bool(unknown)
            record: dict[str, Any] = {}
            for name, (convert, must_be) in converts.items():
                if name in value:
                    record[name] = convert(value[name])
                elif must_be:
                    raise BadValueError(f"{_shown(f'{at}.{name}')} is missing")
            return record

        lets_be = self._unknown in (IGNORE, REST) and further is not False
        shape = Shape(kind=shapes.STRUCT, children=tuple(children))
        kind = RecordType(fields=tuple(fields))
        if at or self._unknown != REST:
            return _Reader(kind, apply, shape)
        return _Reader(kind, self._with_rest(apply, converts), shape)

    def _with_rest(self, apply: Convert, converts: Mapping[str, tuple[Convert, bool]]) -> Convert:
        """The root's conversion, with what the schema does not name as JSON."""

        def with_rest(value: Any) -> Any:
            self._met_unknown = False
            record = apply(value)
            if not self._met_unknown:
                return record
            rest = {}
            for name, held in value.items():
                self._met_unknown = name not in converts
                if name in converts:
                    converts[name][0](held)
                if self._met_unknown:
                    rest[name] = held
            try:
                text = json.dumps(rest, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            except ValueError as error:
                raise BadValueError(f"what its schema does not name: {error}") from error
            return {**record, REST_COLUMN: text}

        return with_rest

    def _nullable(self, schema: Any, root: Any, at: str, depth: int) -> _Reader:
        """Return the reader of a value that may be null where its schema says so."""
        if not isinstance(schema, dict):
            raise _unsupported(at, "a schema without a type")
        inner: Any = schema
        for word in ("oneOf", "anyOf"):
            if word in schema:
                others = [branch for branch in schema[word] if branch != {"type": "null"}]
                if len(others) != 1:
                    raise _unsupported(at, f"{word} can only be of null and one schema")
                reader = self._nullable(others[0], root, at, depth + 1)
                return _or_null(reader) if len(others) < len(schema[word]) else reader
        if "allOf" in schema or "not" in schema or "if" in schema:
            raise _unsupported(at, "allOf, not and if make no column")
        kinds = schema.get("type")
        if isinstance(kinds, list):
            others = [kind for kind in kinds if kind != "null"]
            if len(others) != 1:
                raise _unsupported(at, f"type {kinds} can only be null and one type")
            inner = {**schema, "type": others[0]}
            reader = self._convert(inner, root, at, depth + 1)
            return _or_null(reader) if len(others) < len(kinds) else reader
        return self._convert(inner, root, at, depth + 1)

    def _find(self, reference: str, root: Any, at: str) -> tuple[Any, Any]:
        name, _, pointer = reference.partition("#")
        document = self._documents.get(name) if name else root
        if document is None:
            raise _unsupported(at, f"$ref {reference}: there is no such document")
        found: Any = document
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or part not in found:
                raise _unsupported(at, f"$ref {reference}: there is nothing")
            found = found[part]
        return found, document


def _scalar(kind: str, form: str, at: str, *, is_identity: bool) -> _Reader | None:
    detail = int(is_identity)
    if kind == "string":
        instant = _exact_instant if is_identity else _instant
        return {
            "date": _Reader(
                DateType(), _parsed(date.fromisoformat, at, "date"), Shape(kind=shapes.DATE)
            ),
            "date-time": _Reader(
                TimestamptzType(),
                _parsed(instant, at, "time with its zone"),
                Shape(kind=shapes.INSTANT, detail=detail),
            ),
            "uuid": _Reader(
                StringType(),
                _parsed(lambda text: str(uuid.UUID(text)), at, "UUID"),
                Shape(kind=shapes.UUID),
            ),
        }.get(form, _Reader(StringType(), _of(str, at, "string"), Shape(kind=shapes.TEXT)))
    if kind == "integer":
        return _Reader(LongType(), _integer(at), Shape(kind=shapes.LONG))
    if kind == "number":
        return _Reader(DoubleType(), _number(at), Shape(kind=shapes.DOUBLE, detail=detail))
    if kind == "boolean":
        return _Reader(BooleanType(), _of(bool, at, "boolean"), Shape(kind=shapes.BOOLEAN))
    return None


def _of(kind: type, at: str, word: str) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise BadValueError(f"{_shown(at)} is no {word}")
        return value

    return convert


def _integer(at: str) -> Convert:
    def convert(value: Any) -> int:
        # 1.0 is an integer by the specification, and True is none.
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadValueError(f"{_shown(at)} is not an integer")
        if not -_INT64 <= value < _INT64:
            raise BadValueError(f"{_shown(at)} is beyond 64 bits")
        return value

    return convert


def _number(at: str) -> Convert:
    def convert(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise BadValueError(f"{_shown(at)} is not a number")
        try:
            return float(value)
        except OverflowError as error:
            raise BadValueError(f"{_shown(at)} is beyond a double") from error

    return convert


def _parsed(parse: Callable[[str], Any], at: str, word: str) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            raise BadValueError(f"{_shown(at)} is not a string")
        try:
            return parse(value)
        except (ValueError, OverflowError) as error:
            raise BadValueError(f"{_shown(at)} is no {word}") from error

    return convert


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(text)
    # In the year 1 or 9999 it may be of another year in UTC, which no datetime can be.
    return instant.astimezone(UTC)


def _exact_instant(text: str) -> datetime:
    if any(finer.strip("0") for finer in _FINER.findall(text)):
        # It would be cut off, and so become another one's.
        raise ValueError(text)
    return _instant(text)


def _whole(text: str) -> float:
    """A number with a point or an exponent, as an integer may be written; keys have no others."""
    try:
        value = Decimal(text)
    except ArithmeticError as error:  # An exponent beyond even Decimal's.
        raise ValueError(f"{text[:50]} in a key") from error
    if value != value.to_integral_value():
        raise ValueError(f"{text[:50]} in a key")
    return float(value)


def _list_of(convert: Convert, at: str) -> Convert:
    def apply(value: Any) -> Any:
        if not isinstance(value, list):
            raise BadValueError(f"{_shown(at)} is not an array")
        return [convert(item) for item in value]

    return apply


def _map_of(convert: Convert, at: str) -> Convert:
    def apply(value: Any) -> Any:
        if not isinstance(value, dict):
            raise BadValueError(f"{_shown(at)} is not an object")
        return [(key, convert(item)) for key, item in value.items()]

    return apply


def _or_null(reader: _Reader) -> _Reader:
    convert = reader.convert
    return _Reader(
        reader.type,
        lambda value: None if value is None else convert(value),
        replace(reader.shape, is_nullable=True),
    )


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _unsupported(at: str, detail: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError("read JSON Schema", _shown(at), detail)


def _shown(at: str) -> str:
    return at.lstrip(".") or "the value"


def _few(names: set[str]) -> str:
    return ", ".join(sorted(names)[:5])
