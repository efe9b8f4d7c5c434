"""Zigzag varints of clients' bytes, by the bounds that Kafka's clients have. Pure.

Source: Kafka's ByteUtils, whose `readVarint` takes at most five bytes and `readVarlong` ten.
`penstock.records.decode.read_varint` is for stored bytes, and takes 64 bits everywhere.
"""

from typing import Final

INT32_BITS: Final = 32
INT64_BITS: Final = 64


class MalformedError(Exception):
    """The bytes aren't a whole record."""


def read_raw(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """A varint before its zigzag is undone: (value, position after it).

    Args:
        bits: it has at most so many, in a byte for each seven of them.

    Raises:
        MalformedError: it is longer. IndexError: the data ends before it does.
    """
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise MalformedError(f"a varint has more than {bits} bits")
    if raw >> bits:
        raise MalformedError(f"a varint has more than {bits} bits")
    return raw, position


def zigzag(raw: int) -> int:
    """The signed number that a varint holds."""
    return (raw >> 1) ^ -(raw & 1)
