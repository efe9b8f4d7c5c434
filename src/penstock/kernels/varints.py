"""Zigzag varints inside kernels, bounded by each byte.

The slow twins are `_varint` of `penstock.records.decode` and of `penstock.records.encode`.
"""

from penstock.kernels.arrays import wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import load, store


@kernel
def read_varint(address: int, position: int, end: int) -> tuple[int, int]:
    """The varint at `position`: (value, position after it).

    A position of -1: it doesn't end before `end`, or has more than 64 bits.
    """
    # One and two bytes are by far the most: lengths of fields, deltas, counts.
    if position + 1 < end:
        first = load(address, position)
        if first < 0x80:
            value, behind = (first >> 1) ^ -(first & 1), position + 1
        else:
            second = load(address, position + 1)
            if second < 0x80:
                raw = (first & 0x7F) | second << 7
                value, behind = (raw >> 1) ^ -(raw & 1), position + 2
            else:
                value, behind = _read_long(address, position, end)
    else:
        value, behind = _read_long(address, position, end)
    return value, behind


@kernel
def _read_long(address: int, position: int, end: int) -> tuple[int, int]:
    raw = wide(0)
    shift = 0
    while position < end:
        byte = load(address, position)
        position += 1
        if shift == 63 and byte > 1:
            return 0, -1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            # The sign bit must not be drawn in from the left.
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), position
        shift += 7
        if shift > 63:
            return 0, -1
    return 0, -1


@kernel
def varint_bytes(value: int) -> int:
    """Count the bytes that `write_varint` takes."""
    raw = (value << 1) ^ (value >> 63)
    size = 1
    while raw > 0x7F or raw < 0:
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
        size += 1
    return size


@kernel
def write_varint(address: int, position: int, value: int) -> int:
    """Write a varint; the position after it. there must be room for it."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F or raw < 0:
        store(address, position, (raw & 0x7F) | 0x80)
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
        position += 1
    store(address, position, raw)
    return position + 1
