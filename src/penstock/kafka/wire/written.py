"""Kafka's primitive types as bytes, for the responses that are written without kio. Pure.

Source: Kafka protocol guide, "Protocol Primitive Types".
"""

import struct
from typing import Final

pack_int16: Final = struct.Struct(">h").pack
pack_int32: Final = struct.Struct(">i").pack

NULL_STRING: Final = b"\xff\xff"
NULL_COMPACT: Final = b"\0"
NO_TAGS: Final = b"\0"
NO_UUID: Final = bytes(16)


def uvarint(value: int) -> bytes:
    """An unsigned variable-length integer: 7 bits per byte, lowest first."""
    if value < 0x80:
        return value.to_bytes(1, "little")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str | None, *, flexible: bool) -> bytes:
    """A nullable string: int16 length, or compact (length plus one as a uvarint)."""
    if text is None:
        return NULL_COMPACT if flexible else NULL_STRING
    body = text.encode()
    return (uvarint(len(body) + 1) if flexible else pack_int16(len(body))) + body


def array_length(count: int, *, flexible: bool) -> bytes:
    """The length before an array's items."""
    return uvarint(count + 1) if flexible else pack_int32(count)
