"""Reads request bodies into kio's entities, without trusting a single length in them.

kio has a reader of its own, but it reserves memory for as many array items as a request announces
before it looks whether they are there: nine hostile bytes announce 2^31 items and the allocation
failure ends the process. Here an array's length is checked against the bytes that remain, and all
arrays of one request together against ITEMS_MAX, so a request costs a bounded multiple of its size.

Not for Produce, Fetch and Metadata, whose codecs are their own. Pure.
Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (tagged fields); KIP-893
(nullable structs).
"""

import dataclasses
import struct
import types
import typing
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from typing_extensions import Buffer

from penstock.kafka.errors import ErrorCode, MalformedRequestError
from penstock.kafka.wire.primitives import TAGS_MAX
from penstock.model.steps import Steps

ITEMS_MAX: Final = 200_000
"""Array items in one request, nested ones included. An offset commit of 100,000 partitions fits;
decoding this many takes a fraction of a second, in many turns of the loop."""

STEP_ITEMS: Final = 250
"""Items of an array that are read, or written, at a time."""
AT_ONCE_BYTES: Final = 4 << 10
"""A request of so many bytes is read at once."""

VARINT_BYTES_MAX: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Cursor:
    """A place in a request body. Every `take` is checked against the end."""

    __slots__ = ("body", "end", "items_left", "position")

    def __init__(self, body: Buffer) -> None:
        self.body = memoryview(body)
        self.position = 0
        self.end = len(self.body)
        self.items_left = ITEMS_MAX

    def skip(self, length: int) -> int:
        """Advance by `length` bytes and return the position before.

        Raises:
            MalformedRequestError: fewer bytes are left, or the length is negative.
        """
        start = self.position
        if length < 0 or length > self.end - start:
            raise _malformed(f"{length} bytes wanted at {start}, {self.end - start} left")
        self.position = start + length
        return start

    def take(self, length: int) -> memoryview:
        """The next `length` bytes, as a view."""
        start = self.skip(length)
        return self.body[start : start + length]

    def uvarint(self) -> int:
        """An unsigned variable-length integer of at most 32 bits."""
        value = 0
        for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
            byte = self.body[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise _malformed(f"a variable-length integer is longer than {VARINT_BYTES_MAX} bytes")

    def tag_count(self) -> int:
        """Read the number of tagged fields that follow."""
        count = self.uvarint()
        if count > TAGS_MAX:
            raise _malformed(f"{count} tagged fields in one place, {TAGS_MAX} allowed")
        return count

    def items(self, count: int) -> int:
        """Check an array's announced length. Every item takes at least one byte."""
        if count > self.end - self.position or count > self.items_left:
            raise _malformed(
                f"an array announces {count} items, {self.end - self.position} bytes are left "
                f"and {self.items_left} items allowed"
            )
        self.items_left -= count
        return count


Reader = Callable[[Cursor], Any]


def decode(entity_type: type, body: Buffer, made_type: type | None = None) -> Any:
    """Read one entity from the start of a body.

    Bytes after the last field are ignored, as Kafka does: clients have been seen to send some.

    Args:
        entity_type: a kio dataclass of a request.
        body: the request after its header.
        made_type: the class of another version to make of it: what it alone has gets its default,
            what it has not is read and left out. None: `entity_type`.

    Raises:
        MalformedRequestError: the bytes are not that entity.
    """
    return entity_reader(entity_type, made_type)(Cursor(body))


def decode_in_steps(entity_type: type, body: Buffer, made_type: type | None = None) -> Steps[Any]:
    """Decode as `decode` does, some items of the request's arrays at a time."""
    cursor = Cursor(body)
    read = None if cursor.end <= AT_ONCE_BYTES else stepped_reader(entity_type, made_type)
    if read is None:
        entity = entity_reader(entity_type, made_type)(cursor)
        yield 1 + ITEMS_MAX - cursor.items_left
    else:
        entity = yield from read(cursor)
    return entity


SteppedReader = Callable[[Cursor], Steps[Any]]


@cache
def stepped_reader(entity_type: type, made_type: type | None = None) -> SteppedReader | None:
    """The reader of a kio dataclass that has arrays, compiled once per type; None: it has none."""
    fields = _Fields(entity_type, made_type)
    plain, make = fields.plain, fields.make
    arrays = {
        field.name: _stepped_array(field, fields.made_item(field), flexible=fields.flexible)
        for field in dataclasses.fields(entity_type)
        if field.metadata.get("tag") is None
        and typing.get_origin(without_none(field.type)[0]) is tuple
    }
    if not arrays:
        return None

    def read(cursor: Cursor) -> Steps[Any]:
        values = {}
        for name, reader in plain:
            array = arrays.get(name)
            values[name] = reader(cursor) if array is None else (yield from array(cursor))
        return make(cursor, values)

    return read


@cache
def entity_reader(entity_type: type, made_type: type | None = None) -> Reader:
    """Compile the reader of a kio dataclass, once per type."""
    fields = _Fields(entity_type, made_type)
    plain, make = fields.plain, fields.make

    def read(cursor: Cursor) -> Any:
        return make(cursor, {name: reader(cursor) for name, reader in plain})

    return read


class _Fields:
    """The fields of a kio dataclass, and how they become an entity."""

    def __init__(self, entity_type: type, made_type: type | None) -> None:
        self._made_type = made_type or entity_type
        self._made = {field.name: field for field in dataclasses.fields(self._made_type)}
        self.flexible: bool = getattr(entity_type, "__flexible__")  # noqa: B009 - not on `type`
        self.plain: list[tuple[str, Reader]] = []
        """Their readers, in the order of the bytes."""
        self._tagged: dict[int, tuple[str, Reader]] = {}
        own = dataclasses.fields(entity_type)
        for field in own:
            tag = field.metadata.get("tag")
            made_item = self.made_item(field)
            reader = _field_reader(field, made_item, flexible=self.flexible, tagged=tag is not None)
            if tag is None:
                self.plain.append((field.name, reader))
            else:
                self._tagged[int(tag)] = (field.name, reader)
        read = {name for name, _ in self.plain}
        self._absent = {
            name: zero_of(field)
            for name, field in self._made.items()
            if name not in read and field.default is dataclasses.MISSING
        }
        """The fields that the bytes may lack, although the class has no default for them."""
        self._left_out = [field.name for field in own if field.name not in self._made]

    def made_item(self, field: "dataclasses.Field[Any]") -> type | None:
        """The class of which a field's entity, or the entities of its array, are made."""
        made = self._made.get(field.name)
        item = None if made is None else _item_type(made)[0]
        return typing.cast("type", item) if dataclasses.is_dataclass(item) else None

    def make(self, cursor: Cursor, values: dict[str, Any]) -> Any:
        """Read the tagged fields, and make the entity of them and of the plain ones' values."""
        if self._absent:
            values.update(self._absent)
        if self.flexible:
            _read_tagged(cursor, self._tagged, values)
        for name in self._left_out:
            values.pop(name, None)
        return self._made_type(**values)


def _item_type(field: "dataclasses.Field[Any]") -> tuple[Any, bool]:
    """The type of a field's value, or of its array's items, and whether that may be null."""
    inner, nullable = without_none(field.type)
    if typing.get_origin(inner) is tuple:
        return without_none(typing.get_args(inner)[0])
    return inner, nullable


def _read_tagged(
    cursor: Cursor, known: dict[int, tuple[str, Reader]], values: dict[str, Any]
) -> None:
    """Read the known tagged fields into `values` and pass over the rest (KIP-482)."""
    for _ in range(cursor.tag_count()):
        tag = cursor.uvarint()
        length = cursor.uvarint()
        start = cursor.skip(length)
        if tag in known:
            name, reader = known[tag]
            inner = Cursor(cursor.body[start : start + length])
            inner.items_left = cursor.items_left
            values[name] = reader(inner)
            cursor.items_left = inner.items_left
            if inner.position != inner.end:
                raise _malformed(f"tagged field {tag} has {length} bytes, {inner.position} used")


def _field_reader(
    field: "dataclasses.Field[Any]", made_item: type | None, *, flexible: bool, tagged: bool
) -> Reader:
    inner, nullable = without_none(field.type)
    item_type, item_nullable = _item_type(field)
    if typing.get_origin(inner) is tuple:
        # kio writes nullable arrays of primitives as `tuple[T, ...] | None`.
        item = _value_reader(field, item_type, made_item, flexible=flexible, nullable=item_nullable)
        return _array_reader(item, flexible=flexible, nullable=nullable)
    # A tagged field is optional by being absent; its value has no null of its own.
    return _value_reader(
        field, inner, made_item, flexible=flexible, nullable=nullable and not tagged
    )


def without_none(field_type: Any) -> tuple[Any, bool]:
    """A field's type without `| None`, and whether it had that."""
    if typing.get_origin(field_type) in (types.UnionType, typing.Union):
        rest = [argument for argument in typing.get_args(field_type) if argument is not type(None)]
        assert len(rest) == 1
        return rest[0], True
    return field_type, False


def _value_reader(
    field: "dataclasses.Field[Any]",
    value_type: Any,
    made_item: type | None,
    *,
    flexible: bool,
    nullable: bool,
) -> Reader:
    if dataclasses.is_dataclass(value_type):
        reader = entity_reader(typing.cast("type", value_type), made_item)
        return _nullable_entity(reader) if nullable else reader
    kafka_type = field.metadata["kafka_type"]
    if kafka_type == "string":
        return _sized_reader(_text, flexible=flexible, nullable=nullable, length=_INT16)
    if kafka_type in ("bytes", "records"):
        return _sized_reader(bytes, flexible=flexible, nullable=nullable, length=_INT32)
    return _FIXED[kafka_type]


def _array_reader(item: Reader, *, flexible: bool, nullable: bool) -> Reader:
    def read(cursor: Cursor) -> Any:
        count = _array_count(cursor, flexible=flexible, nullable=nullable)
        return None if count is None else tuple([item(cursor) for _ in range(count)])

    return read


def _array_count(cursor: Cursor, *, flexible: bool, nullable: bool) -> int | None:
    """Read the number of items that follow; None for null."""
    count = cursor.uvarint() - 1 if flexible else _INT32(cursor)
    if count < 0:
        if count == -1 and nullable:
            return None
        raise _malformed(f"an array of {count} items")
    return cursor.items(count)


def _stepped_array(
    field: "dataclasses.Field[Any]", made_item: type | None, *, flexible: bool
) -> SteppedReader:
    """Reads an array some items at a time."""
    _, nullable = without_none(field.type)
    item_type, item_nullable = _item_type(field)
    item = _value_reader(field, item_type, made_item, flexible=flexible, nullable=item_nullable)
    stepped = None
    if dataclasses.is_dataclass(item_type):
        stepped = stepped_reader(typing.cast("type", item_type), made_item)

    def read(cursor: Cursor) -> Steps[Any]:
        count = _array_count(cursor, flexible=flexible, nullable=nullable)
        if count is None:
            return None
        values: list[Any] = []
        while len(values) < count:
            some = range(min(STEP_ITEMS, count - len(values)))
            if stepped is None:
                values += [item(cursor) for _ in some]
            else:
                for _ in some:
                    values.append((yield from stepped(cursor)))
            yield len(some)
        return tuple(values)

    return read


def _sized_reader(
    convert: Callable[[memoryview], Any], *, flexible: bool, nullable: bool, length: Reader
) -> Reader:
    def read(cursor: Cursor) -> Any:
        count = cursor.uvarint() - 1 if flexible else length(cursor)
        if count < 0:
            if count == -1 and nullable:
                return None
            raise _malformed(f"a value of {count} bytes")
        return convert(cursor.take(count))

    return read


def _nullable_entity(reader: Reader) -> Reader:
    def read(cursor: Cursor) -> Any:
        return None if _INT8(cursor) < 0 else reader(cursor)

    return read


def _text(view: memoryview) -> str:
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise _malformed(f"a string is not UTF-8: {error.reason}") from error


def _fixed(layout: str) -> Reader:
    unpack_from, length = struct.Struct(layout).unpack_from, struct.calcsize(layout)

    def read(cursor: Cursor) -> Any:
        return unpack_from(cursor.body, cursor.skip(length))[0]

    return read


def _bool(cursor: Cursor) -> bool:
    return cursor.body[cursor.skip(1)] != 0


def _uuid(cursor: Cursor) -> uuid.UUID | None:
    value = bytes(cursor.take(16))
    # The zero id means "none", as in kio's types.
    return uuid.UUID(bytes=value) if any(value) else None


_INT8: Final = _fixed(">b")
_INT16: Final = _fixed(">h")
_INT32: Final = _fixed(">i")
_INT64: Final = _fixed(">q")

_FIXED: Final[dict[str, Reader]] = {
    "bool": _bool,
    "int8": _INT8,
    "int16": _INT16,
    "int32": _INT32,
    "int64": _INT64,
    "uint16": _fixed(">H"),
    "uint32": _fixed(">I"),
    "float64": _fixed(">d"),
    "uuid": _uuid,
    "timedelta_i32": lambda cursor: timedelta(milliseconds=_INT32(cursor)),
    "timedelta_i64": lambda cursor: _long_timedelta(_INT64(cursor)),
    "error_code": lambda cursor: _error_code(_INT16(cursor)),
    "datetime_i64": lambda cursor: _datetime(_INT64(cursor)),
}


def _error_code(value: int) -> ErrorCode | int:
    try:
        return ErrorCode(value)
    except ValueError:
        return value


def _datetime(milliseconds: int) -> datetime | None:
    if milliseconds == -1:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError as error:
        raise _malformed(f"a time of {milliseconds} ms since the epoch") from error


def _long_timedelta(milliseconds: int) -> timedelta:
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError as error:
        raise _malformed(f"a duration of {milliseconds} ms") from error


def zero_of(field: "dataclasses.Field[Any]") -> object:
    """The implicit default of a field that may be absent and has none spelled out."""
    inner, nullable = without_none(field.type)
    if nullable:
        return None
    if typing.get_origin(inner) is tuple:
        return ()
    if dataclasses.is_dataclass(inner):
        return None
    zeros: dict[str, object] = {
        "bool": False,
        "string": "",
        "bytes": b"",
        "uuid": None,
        "timedelta_i32": timedelta(0),
        "timedelta_i64": timedelta(0),
    }
    return zeros.get(field.metadata["kafka_type"], 0)


def _malformed(detail: str) -> MalformedRequestError:
    return MalformedRequestError("decode", "request body", detail)
