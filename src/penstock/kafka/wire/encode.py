"""Writes kio's entities as bytes, in steps between which other work can run.

kio's own writer goes through an entity in one call: that takes seconds for the largest answers, and
other agents would take this one for dead. Here arrays are written some items at a time (`Steps`),
and runs of fields of fixed size by one call of `struct`.

Produce, Fetch and Metadata have codecs of their own. Pure. The counterpart of `decode`,
tested against kio's writer.
Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (tagged fields); KIP-893
(nullable structs).
"""

import dataclasses
import struct
import typing
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol

from penstock.kafka.wire.decode import STEP_ITEMS, without_none, zero_of
from penstock.kafka.wire.primitives import count_bytes, uvarint
from penstock.model.steps import Steps


class EncodedParts(tuple[bytes, ...]):
    """An array as it stands in a response, in place of a tuple of entities: its length, then its
    items, in parts that may be other arrays' as well."""

    __slots__ = ()


class PartsBuffer(bytearray):
    """Takes what is written in parts, so that an array in parts goes into an item of another one
    without a copy."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def cut(self) -> None:
        """End the part here."""
        if self:
            self.parts.append(bytes(self))
            self.clear()

    def add_array(self, values: EncodedParts) -> None:
        """Add an array; a short one goes into the part."""
        if len(values) <= SHORT_PARTS:
            self += b"".join(values)
        else:
            self.cut()
            self.parts += values


class Entity(Protocol):
    """A message of kio, or a part of one: a frozen dataclass of one version."""

    __flexible__: ClassVar[bool]


Writer = Callable[[bytearray, Any], None]
SteppedWriter = Callable[[bytearray, Any], Steps[None]]
ITEM_BYTES: Final = 1_000
"""Copying so many costs about as much as writing an item."""
PARTS: Final = 10
"""Copying so many, likewise."""
LONG_PART_BYTES: Final = 16 << 10
"""After such a part a piece may end."""
SHORT_PARTS: Final = 2
"""An array's length and one part of items, which is not long."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_LAYOUTS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
    "error_code": "h",
}
"""The types that `struct` packs as they are."""


def encode_in_steps(entity: Entity) -> Steps[bytearray]:
    """The bytes of an entity, made some items at a time."""
    out = bytearray()
    yield from _write(out, entity)
    yield 1
    return out


def length_in_steps(entity: Entity) -> Steps[int]:
    """Return the number of bytes that `encode_in_steps` gives, without keeping the bytes."""
    length = 0
    out = bytearray()
    for done in _write(out, entity):
        length += len(out)
        out.clear()
        yield done
    return length + len(out)


def pieces_of(entity: Entity, *, piece_bytes: int, piece_items: int) -> Iterator[tuple[bytes, int]]:
    """The bytes of an entity, some at a time; each piece is made when it is asked for.

    Args:
        piece_bytes: a piece ends there, or after `piece_items` items.
    """
    out, items = bytearray(), 0
    for done in _write(out, entity):
        items += done
        if len(out) >= piece_bytes or items >= piece_items:
            yield bytes(out), items
            out.clear()
            items = 0
    if out:
        yield bytes(out), items


def _write(out: bytearray, entity: Entity) -> Steps[None]:
    entity_type = typing.cast("type", type(entity))
    write = stepped_writer(entity_type)
    if write is None:
        entity_writer(entity_type)(out, entity)
    else:
        yield from write(out, entity)


@cache
def stepped_writer(entity_type: type) -> SteppedWriter | None:
    """The writer of a kio dataclass that has arrays or bytes, compiled once per type; None: it has
    neither."""
    flexible: bool = getattr(entity_type, "__flexible__")  # noqa: B009 - not on `type`
    parts: list[tuple[Writer | None, str, SteppedWriter | None]] = []
    for run in _runs(entity_type):
        stepped = _stepped_field(run[0], flexible=flexible) if len(run) == 1 else None
        if stepped is None:
            parts.append((_run_writer(run, flexible=flexible), "", None))
        else:
            parts.append((None, run[0].name, stepped))
    if all(stepped is None for _, _, stepped in parts):
        return None
    tags = _tags_writer(entity_type) if flexible else None

    def write(out: bytearray, entity: Any) -> Steps[None]:
        for writer, name, stepped in parts:
            if writer is not None:
                writer(out, entity)
            elif stepped is not None:
                yield from stepped(out, getattr(entity, name))
        if tags is not None:
            tags(out, entity)

    return write


@cache
def entity_writer(entity_type: type) -> Writer:
    """The writer of a kio dataclass in one go, compiled once per type."""
    flexible: bool = getattr(entity_type, "__flexible__")  # noqa: B009 - not on `type`
    writers = [_run_writer(run, flexible=flexible) for run in _runs(entity_type)]
    if flexible:
        writers.append(_tags_writer(entity_type))

    def write(out: bytearray, entity: Any) -> None:
        for writer in writers:
            writer(out, entity)

    return write


_Field = dataclasses.Field[Any]


def _runs(entity_type: type) -> list[list[_Field]]:
    """The untagged fields in order; neighbours of fixed size together, each other one alone."""
    runs: list[list[_Field]] = []
    joins = False
    for field in dataclasses.fields(entity_type):
        if field.metadata.get("tag") is not None:
            continue
        inner, _ = without_none(field.type)
        is_fixed = (
            not (typing.get_origin(inner) is tuple or dataclasses.is_dataclass(inner))
            and _kafka_type(field) in _LAYOUTS
        )
        if is_fixed and joins:
            runs[-1].append(field)
        else:
            runs.append([field])
        joins = is_fixed
    return runs


def _kafka_type(field: _Field) -> str:
    found: str = field.metadata["kafka_type"]
    return found


def _run_writer(run: Sequence[_Field], *, flexible: bool) -> Writer:
    """Writes the fields of one run of an entity."""
    if len(run) == 1:
        name, write_value = run[0].name, _field_writer(run[0], flexible=flexible, tagged=False)

        def write_one(out: bytearray, entity: Any) -> None:
            write_value(out, getattr(entity, name))

        return write_one
    pack = struct.Struct(">" + "".join(_LAYOUTS[_kafka_type(field)] for field in run)).pack
    get = attrgetter(*(field.name for field in run))

    def write(out: bytearray, entity: Any) -> None:
        out += pack(*get(entity))

    return write


def _field_writer(field: _Field, *, flexible: bool, tagged: bool) -> Writer:
    inner, nullable = without_none(field.type)
    if typing.get_origin(inner) is tuple:
        item_type, item_nullable = without_none(typing.get_args(inner)[0])
        item = _value_writer(field, item_type, flexible=flexible, nullable=item_nullable)
        return _array_writer(item, flexible=flexible)
    return _value_writer(field, inner, flexible=flexible, nullable=nullable and not tagged)


def _value_writer(field: _Field, value_type: Any, *, flexible: bool, nullable: bool) -> Writer:
    if dataclasses.is_dataclass(value_type):
        writer = entity_writer(typing.cast("type", value_type))
        return _nullable_entity(writer) if nullable else writer
    kafka_type = _kafka_type(field)
    if kafka_type == "string":
        return _sized_writer(str.encode, ">h", flexible=flexible)
    if kafka_type in ("bytes", "records"):
        return _sized_writer(_as_is, ">i", flexible=flexible)
    return _OTHERS.get(kafka_type) or _packed(_LAYOUTS[kafka_type])


def _array_writer(item: Writer, *, flexible: bool) -> Writer:
    null = count_bytes(-1, flexible=flexible)

    def write(out: bytearray, values: Sequence[Any] | None) -> None:
        if values is None:
            out += null
            return
        if isinstance(values, EncodedParts):
            if isinstance(out, PartsBuffer):
                out.add_array(values)
            else:
                out += b"".join(values)
            return
        out += count_bytes(len(values), flexible=flexible)
        for value in values:
            item(out, value)

    return write


def _stepped_field(field: _Field, *, flexible: bool) -> SteppedWriter | None:
    """Writes what may be long some of it at a time; None: the field is neither array nor bytes."""
    inner, _ = without_none(field.type)
    if typing.get_origin(inner) is tuple:
        return _stepped_array(field, inner, flexible=flexible)
    if not dataclasses.is_dataclass(inner) and _kafka_type(field) == "bytes":
        return _stepped_bytes(
            _field_writer(field, flexible=flexible, tagged=False), flexible=flexible
        )
    return None


def _stepped_bytes(write_short: Writer, *, flexible: bool) -> SteppedWriter:
    """Writes bytes some of them at a time, so that long ones need no copy of their own."""

    def write(out: bytearray, value: Any) -> Steps[None]:
        if value is None or len(value) < LONG_PART_BYTES:
            write_short(out, value)
            return
        out += uvarint(len(value) + 1) if flexible else _pack_int32(len(value))
        view = memoryview(value)
        for start in range(0, len(view), LONG_PART_BYTES):
            some = view[start : start + LONG_PART_BYTES]
            out += some
            yield 1 + len(some) // ITEM_BYTES

    return write


def _stepped_array(field: _Field, inner: Any, *, flexible: bool) -> SteppedWriter:
    """Writes an array some items at a time."""
    item_type, item_nullable = without_none(typing.get_args(inner)[0])
    item = _value_writer(field, item_type, flexible=flexible, nullable=item_nullable)
    stepped = None
    if dataclasses.is_dataclass(item_type):
        stepped = stepped_writer(typing.cast("type", item_type))
    null = count_bytes(-1, flexible=flexible)

    def write(out: bytearray, values: Sequence[Any] | EncodedParts | None) -> Steps[None]:
        if values is None:
            out += null
            return
        if isinstance(values, EncodedParts):
            for part in values:
                out += part
                if len(part) >= LONG_PART_BYTES:
                    yield 1 + len(part) // ITEM_BYTES
            yield 1 + len(values) // PARTS
            return
        out += count_bytes(len(values), flexible=flexible)
        for start in range(0, len(values), STEP_ITEMS):
            some = values[start : start + STEP_ITEMS]
            if stepped is None:
                written = len(out)
                for value in some:
                    item(out, value)
                    if len(out) - written >= LONG_PART_BYTES:
                        yield 1 + (len(out) - written) // ITEM_BYTES
                        written = len(out)  # what was written may have been taken
            else:
                for value in some:
                    yield from stepped(out, value)
            yield len(some)

    return write


def _tags_writer(entity_type: type) -> Writer:
    """Writes the tagged fields that aren't at their defaults, in the order of their tags."""
    rows = sorted(
        (
            int(field.metadata["tag"]),
            field.name,
            _field_writer(field, flexible=True, tagged=True),
            zero_of(field) if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(entity_type)
        if field.metadata.get("tag") is not None
    )
    if not rows:
        return _no_tags

    def write(out: bytearray, entity: Any) -> None:
        written = []
        for tag, name, writer, default in rows:
            value = getattr(entity, name)
            if value == default:
                continue
            encoded = bytearray()
            writer(encoded, value)
            written.append(uvarint(tag) + uvarint(len(encoded)) + encoded)
        out += uvarint(len(written)) + b"".join(written)

    return write


def _no_tags(out: bytearray, entity: Any) -> None:  # noqa: ARG001 - as all writers
    out.append(0)


def _nullable_entity(writer: Writer) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            writer(out, value)

    return write


def _sized_writer(convert: Callable[[Any], Any], layout: str, *, flexible: bool) -> Writer:
    pack = struct.Struct(layout).pack
    null = b"\0" if flexible else pack(-1)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out += null
            return
        data = convert(value)
        out += uvarint(len(data) + 1) if flexible else pack(len(data))
        out += data

    return write


def _as_is(value: Any) -> Any:
    return value


def _packed(layout: str) -> Writer:
    pack = struct.Struct(">" + layout).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


_pack_int32: Final = struct.Struct(">i").pack
_pack_int64: Final = struct.Struct(">q").pack


def _uuid(out: bytearray, value: uuid.UUID | None) -> None:
    out += bytes(16) if value is None else value.bytes


def _timedelta_i32(out: bytearray, value: timedelta) -> None:
    out += _pack_int32(value // _MILLISECOND)


def _timedelta_i64(out: bytearray, value: timedelta) -> None:
    out += _pack_int64(value // _MILLISECOND)


def _datetime_i64(out: bytearray, value: Any) -> None:
    out += _pack_int64(-1 if value is None else round(value.timestamp() * 1000))


_OTHERS: Final[dict[str, Writer]] = {
    "uuid": _uuid,
    "timedelta_i32": _timedelta_i32,
    "timedelta_i64": _timedelta_i64,
    "datetime_i64": _datetime_i64,
}
