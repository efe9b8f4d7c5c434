"""Zigzag varints inside kernels, bounded by each byte.

The slow twins are `_varint` of `penstock.records.decode` and of `penstock.records.encode`.
"""

from penstock.kernels.arrays import Uint8s, byte, wide
from penstock.kernels.jit import kernel

VARINT_BYTES_MAX = 10


@kernel
def read_varint(data: Uint8s, position: int, end: int) -> tuple[int, int]:
    """The varint at `position`: (value, position after it).

    A position of -1: it doesn't end before `end`, or has more than 64 bits.
    """
    if position >= end:
        return 0, -1
    byte = wide(data[position])
    position += 1
    if byte < 0x80:  # lengths of small fields, deltas, counts: by far the most
        return (byte >> 1) ^ -(byte & 1), position
    raw = byte & 0x7F
    shift = 7
    while position < end:
        byte = wide(data[position])
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
    """How many bytes `write_varint` takes."""
    raw = (value << 1) ^ (value >> 63)
    size = 1
    while raw > 0x7F or raw < 0:
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
        size += 1
    return size


@kernel
def write_varint(out: Uint8s, position: int, value: int) -> int:
    """Write a varint; the position after it. `out` must have room for it."""
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F or raw < 0:
        out[position] = byte((raw & 0x7F) | 0x80)
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
        position += 1
    out[position] = byte(raw)
    return position + 1
