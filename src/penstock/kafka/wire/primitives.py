"""Kafka's primitive types are read and written here for messages that don't use kio. Pure.

Reading functions take (buffer, position) and return (value, position after it). Truncated or
impossible bytes raise one of `MALFORMED`, which the parser's caller turns into `malformed`.
Source: Kafka docs, "Protocol Primitive Types"; KIP-482 for compact types and tagged fields.
"""

import struct
from struct import Struct
from typing import Final

from penstock.kafka.errors import MalformedRequestError

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")

NULL_STRING: Final = b"\xff\xff"
NULL_COMPACT: Final = b"\0"
NO_TAGS: Final = b"\0"
NO_UUID: Final = bytes(16)

TAGS_MAX: Final = 100
"""Tagged fields in one place of a request. Kafka's messages have six at most; of two bytes each, as
many as a request has room for would hold the event loop for seconds."""

MALFORMED: Final = (IndexError, struct.error, UnicodeDecodeError, ValueError)
"""The errors that parsing truncated or impossible bytes raises."""


def malformed(api: str, version: int, error: Exception) -> MalformedRequestError:
    """The error for a request whose parsing raised one of `MALFORMED`.

    Not a context manager: making one costs a tenth of the parsing.
    """
    return MalformedRequestError("decode", f"{api} v{version}", str(error))


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 5 bytes."""
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > 28:
            raise ValueError(f"varint longer than 5 bytes at {position}")


def skip_tags(buffer: memoryview, position: int) -> int:
    """Skip a tagged-fields section; returns the position after it."""
    count, position = read_uvarint(buffer, position)
    if count > TAGS_MAX:
        raise ValueError(f"{count} tagged fields in one place, {TAGS_MAX} allowed")
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > len(buffer):
            raise IndexError(f"tagged field of {size} bytes runs past the request")
    return position


def read_count(buffer: memoryview, position: int, *, flexible: bool) -> tuple[int, int]:
    """An array's length; null counts as empty. Refuses more items than there are bytes."""
    if flexible:
        count, position = read_uvarint(buffer, position)
        count -= 1
    else:
        count = INT32.unpack_from(buffer, position)[0]
        position += 4
    if count > len(buffer) - position:
        raise ValueError(f"array of {count} items in {len(buffer) - position} bytes")
    return max(count, 0), position


def read_string(buffer: memoryview, position: int, *, flexible: bool) -> tuple[str | None, int]:
    """A nullable string, compact or classic."""
    if flexible:
        size, position = read_uvarint(buffer, position)
        size -= 1
    else:
        size = INT16.unpack_from(buffer, position)[0]
        position += 2
    if size < 0:
        return None, position
    end = position + size
    if end > len(buffer):
        raise IndexError(f"string of {size} bytes runs past the request")
    return str(buffer[position:end], "utf-8"), end


def uvarint(value: int) -> bytes:
    """Encode an unsigned varint: 7 bits per byte, lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def count_bytes(count: int, *, flexible: bool) -> bytes:
    """Encode an array's length."""
    return uvarint(count + 1) if flexible else INT32.pack(count)


def string_bytes(value: str | None, *, flexible: bool) -> bytes:
    """Encode a nullable string."""
    if value is None:
        return NULL_COMPACT if flexible else NULL_STRING
    data = value.encode()
    return (uvarint(len(data) + 1) if flexible else INT16.pack(len(data))) + data
