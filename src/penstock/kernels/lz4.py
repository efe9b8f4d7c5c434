"""LZ4 frames inside kernels: a call of the library for each small batch costs more than its bytes.

Takes what `penstock.records.lz4.find_blocks` takes: one frame of independent blocks without a
dictionary. Anything else is the general decoder's to judge. Every length is checked against the
frame and the room before a byte is touched.

Source: the LZ4 frame format 1.6.4 and block format.
"""

from typing import Final

from penstock.kernels.arrays import wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import copy_bytes, load, store

NOT_PLAIN: Final = -1
"""The frame isn't of that form, or is broken, or there is too little room."""
_FRAME_BYTES_MIN: Final = 7
_MATCH_MIN: Final = 4


@kernel
def unpack_frame(
    source: int, start: int, end: int, target: int, target_at: int, target_end: int
) -> int:
    """Decompress the frame [start, end) to `target_at` on: the end of what it held, or
    NOT_PLAIN."""
    if end - start < _FRAME_BYTES_MIN or (
        load(source, start) != 0x04
        or load(source, start + 1) != 0x22
        or load(source, start + 2) != 0x4D
        or load(source, start + 3) != 0x18
    ):
        return NOT_PLAIN
    flags, sizes = load(source, start + 4), load(source, start + 5)
    if flags & 0xE3 != 0x60 or sizes >> 4 < 4 or sizes >> 4 > 7 or sizes & 0x0F:
        return NOT_PLAIN
    block_max = wide(1) << (2 * (sizes >> 4) + 8)
    position = start + (15 if flags & 0x08 else 7)
    trailing = 4 if flags & 0x10 else 0
    while position + 4 <= end:
        length = (
            load(source, position)
            | load(source, position + 1) << 8
            | load(source, position + 2) << 16
            | load(source, position + 3) << 24
        )
        position += 4
        if length == 0:
            position += 4 if flags & 0x04 else 0
            return target_at if position == end else NOT_PLAIN
        stored = length >> 31
        length &= 0x7FFFFFFF
        if length > end - position:
            return NOT_PLAIN
        if stored:
            if length > block_max or length > target_end - target_at:
                return NOT_PLAIN
            copy_bytes(target, target_at, source, position, length)
            target_at += length
        else:
            limit = min(target_end, target_at + block_max)
            target_at = _unpack_block(source, position, position + length, target, target_at, limit)
            if target_at < 0:
                return NOT_PLAIN
        position += length + trailing
    return NOT_PLAIN


@kernel
def _unpack_block(
    source: int, position: int, end: int, target: int, target_at: int, target_end: int
) -> int:
    first = target_at
    while position < end:
        token = load(source, position)
        position += 1
        literals = token >> 4
        if literals == 15:
            more = 255
            while more == 255:
                if position >= end:
                    return NOT_PLAIN
                more = load(source, position)
                position += 1
                literals += more
        if literals > end - position or literals > target_end - target_at:
            return NOT_PLAIN
        copy_bytes(target, target_at, source, position, literals)
        position += literals
        target_at += literals
        if position == end:
            return target_at  # the last sequence has no match
        if end - position < 2:
            return NOT_PLAIN
        distance = load(source, position) | load(source, position + 1) << 8
        position += 2
        if distance == 0 or distance > target_at - first:
            return NOT_PLAIN
        match = token & 15
        if match == 15:
            more = 255
            while more == 255:
                if position >= end:
                    return NOT_PLAIN
                more = load(source, position)
                position += 1
                match += more
        match += _MATCH_MIN
        if match > target_end - target_at:
            return NOT_PLAIN
        # Byte by byte: a match may overlap what it makes.
        for index in range(match):
            store(target, target_at + index, load(target, target_at + index - distance))
        target_at += match
    return NOT_PLAIN
