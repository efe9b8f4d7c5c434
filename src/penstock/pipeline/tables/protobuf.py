"""Protobuf descriptors as columns, and their messages. Pure.

There is no compiler here: what comes are descriptors, of a registry (`format=serialized`), or a
descriptor set with all imports (`penstock.pipeline.tables.protoc` makes one of a text). Unsigned
64-bit numbers become decimals of 20 digits, since Iceberg has no such type; fields without presence
have their default, never null. Source: Protocol Buffers, "Encoding"; Confluent's wire format for
message indexes.
"""

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestamptzType,
)

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

Convert = Callable[[Any], Any]
_F: Final = FieldDescriptor
_UNSIGNED_64: Final = DecimalType(20, 0)
_SCALARS: Final[dict[int, IcebergType]] = {
    _F.TYPE_INT32: IntegerType(),
    _F.TYPE_SINT32: IntegerType(),
    _F.TYPE_SFIXED32: IntegerType(),
    _F.TYPE_UINT32: LongType(),
    _F.TYPE_FIXED32: LongType(),
    _F.TYPE_INT64: LongType(),
    _F.TYPE_SINT64: LongType(),
    _F.TYPE_SFIXED64: LongType(),
    _F.TYPE_UINT64: _UNSIGNED_64,
    _F.TYPE_FIXED64: _UNSIGNED_64,
    _F.TYPE_FLOAT: FloatType(),
    _F.TYPE_DOUBLE: DoubleType(),
    _F.TYPE_BOOL: BooleanType(),
    _F.TYPE_STRING: StringType(),
    _F.TYPE_BYTES: BinaryType(),
    _F.TYPE_ENUM: StringType(),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = frozenset(
    message.full_name for message in wrappers_pb2.DESCRIPTOR.message_types_by_name.values()
)
_KNOWN_FILES: Final[tuple[FileDescriptor, ...]] = (
    any_pb2.DESCRIPTOR,
    source_context_pb2.DESCRIPTOR,
    type_pb2.DESCRIPTOR,
    api_pb2.DESCRIPTOR,
    descriptor_pb2.DESCRIPTOR,
    duration_pb2.DESCRIPTOR,
    empty_pb2.DESCRIPTOR,
    field_mask_pb2.DESCRIPTOR,
    struct_pb2.DESCRIPTOR,
    timestamp_pb2.DESCRIPTOR,
    wrappers_pb2.DESCRIPTOR,
)
"""Registries don't list them among references: every compiler has them. What they import first."""
_MESSAGES_MAX: Final = 1000


class ProtobufDecoder:
    """One schema.

    Args:
        framed: whether payloads begin with the indexes of their message.
        is_identity: see `compile_schema`.

    Raises:
        UnsupportedSchemaError: no descriptors, no such message, or what no column can hold.
    """

    def __init__(self, text: SchemaText, *, framed: bool, is_identity: bool = False) -> None:
        self._framed = framed
        self._is_identity = is_identity
        pool = descriptor_pool.DescriptorPool()
        try:
            for known in _KNOWN_FILES:
                pool.AddSerializedFile(known.serialized_pb)
            file = _add(pool, text)
            message = (
                pool.FindMessageTypeByName(text.message)
                if text.message
                else file.message_types_by_name[_first(file)]
            )
        except (binascii.Error, DecodeError, KeyError, TypeError, ValueError) as error:
            raise UnsupportedSchemaError(
                "read Protobuf schema", text.message or "schema", f"{type(error).__name__}: {error}"
            ) from error
        self._file = file
        self._message = message
        self._path = _path_of(message)
        self._class = message_factory.GetMessageClass(message)
        self._type, self._apply = _Columns(is_identity=is_identity).record(message, message.name, 0)

    @property
    def type(self) -> RecordType:
        """Its columns."""
        return self._type

    @property
    def shape(self) -> None:
        """See `Decoder`: such values are read one by one."""

    def decode(self, payload: bytes) -> dict[str, Any]:
        """A value. Raises: BadValueError."""
        if self._framed:
            indexes, start = _indexes(payload)
            if indexes != self._path:
                raise BadValueError(
                    f"message {indexes} of its schema, and the table has {self._message.full_name}"
                )
            payload = payload[start:]
        message = self._class()
        try:
            message.ParseFromString(payload)
        except DecodeError as error:
            raise BadValueError(f"not of its Protobuf schema: {error}") from error
        if self._is_identity:
            whole = message.ByteSize()
            # At any depth, which no list of unknown fields tells.
            message.DiscardUnknownFields()
            if message.ByteSize() != whole:
                raise BadValueError("it has fields besides its Protobuf schema's")
        converted: dict[str, Any] = self._apply(message)
        return converted


def _add(pool: descriptor_pool.DescriptorPool, text: SchemaText) -> FileDescriptor:
    """Put a schema and what it refers to into the pool; the schema's own file."""
    known = {file.name for file in _KNOWN_FILES}
    if text.message:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(text.text)).file
        if not files:
            raise ValueError("an empty descriptor set")
        for file in files:
            if file.name not in known:
                pool.AddSerializedFile(file.SerializeToString())
        return pool.FindFileByName(files[-1].name)
    for name, body in [*text.references, ("", text.text)]:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(body, validate=True))
        file.name = name or file.name or "schema.proto"
        if file.name not in known:
            pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(file.name)


def _first(file: FileDescriptor) -> str:
    # In the order of the file, which is what indexes count by.
    proto = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
    if not proto.message_type:
        raise ValueError("a file without messages")
    name: str = proto.message_type[0].name
    return name


def _path_of(message: Descriptor) -> list[int]:
    """Indexes from the file's messages to this one, in the order of the file."""
    path: list[int] = []
    while message.containing_type is not None:
        outer = message.containing_type
        path.insert(0, [inner.name for inner in outer.nested_types].index(message.name))
        message = outer
    proto = descriptor_pb2.FileDescriptorProto.FromString(message.file.serialized_pb)
    return [[inner.name for inner in proto.message_type].index(message.name), *path]


def _indexes(payload: bytes) -> tuple[list[int], int]:
    """The message's indexes, and where the message begins. A lone 0 is short for [0]."""
    count, position = _varint(payload, 0)
    if count == 0:
        return [0], position
    if not 0 < count <= DEPTH_MAX:
        raise BadValueError(f"{count} message indexes")
    indexes: list[int] = []
    for _ in range(count):
        index, position = _varint(payload, position)
        if not 0 <= index <= _MESSAGES_MAX:
            raise BadValueError(f"message index {index}")
        indexes.append(index)
    return indexes, position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Zigzag, as Confluent's serializers write."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise BadValueError("its message indexes are cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


class _Columns:
    """Messages as columns."""

    def __init__(self, *, is_identity: bool) -> None:
        self._is_identity = is_identity

    def record(self, message: Descriptor, at: str, depth: int) -> tuple[RecordType, Convert]:
        """Columns of a message, and what makes their values of one. `at`: its place."""
        if depth > DEPTH_MAX:
            raise _unsupported(at, f"deeper than {DEPTH_MAX}, or it contains itself")
        if not message.fields:
            raise _unsupported(at, "a message without fields")
        if message.full_name == "google.protobuf.Any":
            raise _unsupported(at, "no column holds Any")
        fields: list[FieldType] = []
        reads: list[tuple[str, Convert]] = []
        for entry in message.fields:
            kind, read, required = self._field(entry, f"{at}.{entry.name}", depth)
            fields.append(FieldType(name=entry.name, type=kind, required=required))
            reads.append((entry.name, read))
        return RecordType(fields=tuple(fields)), lambda value: {
            name: read(value) for name, read in reads
        }

    def _field(self, entry: FieldDescriptor, at: str, depth: int) -> tuple[AnyType, Convert, bool]:
        """Type, how it is read of its message, and whether it always has a value."""
        name = entry.name
        if entry.type == _F.TYPE_GROUP:
            raise _unsupported(at, "no column holds a group")
        inner = entry.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key, key_convert = self._value(inner.fields_by_name["key"], f"{at}.key", depth)
            value, convert = self._value(inner.fields_by_name["value"], f"{at}.value", depth)
            return (
                MapOf(key=key, value=value, value_required=True),
                lambda message: [
                    (key_convert(k), convert(v)) for k, v in getattr(message, name).items()
                ],
                True,
            )
        kind, convert = self._value(entry, at, depth)
        if entry.is_repeated:
            return (
                ListOf(element=kind, element_required=True),
                lambda message: [convert(item) for item in getattr(message, name)],
                True,
            )
        if not entry.has_presence:
            return kind, lambda message: convert(getattr(message, name)), True

        def read(message: Message) -> Any:
            return convert(getattr(message, name)) if message.HasField(name) else None

        return kind, read, entry.is_required

    def _value(self, entry: FieldDescriptor, at: str, depth: int) -> tuple[AnyType, Convert]:
        inner = entry.message_type
        if inner is not None:
            if inner.full_name == _TIMESTAMP:
                return TimestamptzType(), _exact_instant if self._is_identity else _instant
            if inner.full_name in _WRAPPERS:
                kind, convert = self._value(inner.fields_by_name["value"], at, depth)
                return kind, lambda message: convert(message.value)
            return self.record(inner, at, depth + 1)
        kind = _SCALARS[entry.type]
        if entry.type == _F.TYPE_ENUM and self._is_identity:
            return IntegerType(), lambda number: number
        if entry.type == _F.TYPE_ENUM:
            names = {
                number: value.name for number, value in entry.enum_type.values_by_number.items()
            }
            # A number of an open enum without a name stays distinct.
            return kind, lambda number: names.get(number, str(number))
        if kind is _UNSIGNED_64:
            return kind, Decimal
        return kind, lambda value: value


def _instant(value: timestamp_pb2.Timestamp) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    except OverflowError as error:
        raise BadValueError(f"a timestamp of {value.seconds} s") from error


def _exact_instant(value: timestamp_pb2.Timestamp) -> datetime:
    if value.nanos % 1000:
        # They would be cut off, and so become another one's.
        raise BadValueError(f"a timestamp of {value.nanos} ns besides its seconds")
    return _instant(value)


def _unsupported(at: str, detail: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError("read Protobuf schema", at, detail)
