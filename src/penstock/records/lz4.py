"""LZ4 frames around blocks of our own: what Kafka's clients write and read, and no more.

| bytes | field                                                                                |
| ---   | ---                                                                                  |
| 4     | magic, 0x184D2204, little-endian as all numbers here                                 |
| 1     | FLG: bits 7-6 version 01, 5 blocks independent, 4 block checksums, 3 content size,   |
|       | 2 content checksum, 0 dictionary id                                                  |
| 1     | BD: bits 6-4 greatest size of a block: 4 for 64 KiB, each more four times as large   |
| 8     | content size, if FLG says so                                                         |
| 1     | header checksum                                                                      |
| 4     | per block: length, top bit set where it isn't compressed; then its bytes, and 4 of   |
|       | checksum if FLG says so                                                              |
| 4     | zero: the end; then 4 of checksum if FLG says so                                     |

The libraries' frame coders hash all bytes twice, before and after compression, which takes longer
than LZ4 itself; a batch has its own CRC. Blocks don't depend on one another, since Kafka's Java
client reads no others ("Dependent block stream is unsupported").

Source: the LZ4 frame format, version 1.6.4; Kafka's KafkaLZ4BlockInputStream.
"""

from typing import Final

import cramjam
from typing_extensions import Buffer

_MAGIC: Final = b"\x04\x22\x4d\x18"
_HEADER: Final = _MAGIC + b"\x60\x40\x82"
"""Independent blocks of at most 64 KiB, no checksums; the last byte is the header's own."""
_END: Final = bytes(4)
BLOCK_BYTES: Final = 64 << 10
_STORED: Final = 1 << 31


def compress_lz4(body: Buffer, *, high_level: int | None = None) -> bytes:
    """A frame that holds `body`, by LZ4's fast mode, or at a level of its high compression."""
    view = memoryview(body).cast("B")
    parts: list[Buffer] = [_HEADER]
    for start in range(0, len(view), BLOCK_BYTES):
        block = view[start : start + BLOCK_BYTES]
        if high_level is None:
            packed = cramjam.lz4.compress_block(block, store_size=False)
        else:
            packed = cramjam.lz4.compress_block(
                block, mode="high_compression", compression=high_level, store_size=False
            )
        if len(packed) < len(block):
            parts += (len(packed).to_bytes(4, "little"), memoryview(packed))
        else:
            parts += ((_STORED | len(block)).to_bytes(4, "little"), block)
    parts.append(_END)
    return b"".join(parts)


def find_blocks(frame: memoryview) -> tuple[list[tuple[int, int, bool]], int] | None:
    """Find the blocks of a frame: (start, end, whether it is compressed), and the most bytes
    that one of them holds.

    None: the frame isn't a single one with independent blocks, or isn't whole; a general decoder
    must say what it is.
    """
    if len(frame) < 7 or bytes(frame[:4]) != _MAGIC:
        return None
    flags, sizes = frame[4], frame[5]
    if flags & 0xE3 != 0x60 or not 4 <= sizes >> 4 <= 7 or sizes & 0x0F:
        return None
    position = 15 if flags & 0x08 else 7
    trailing = 4 if flags & 0x10 else 0
    blocks: list[tuple[int, int, bool]] = []
    while position + 4 <= len(frame):
        length = int.from_bytes(frame[position : position + 4], "little")
        position += 4
        if length == 0:
            position += 4 if flags & 0x04 else 0
            return (blocks, 1 << (2 * (sizes >> 4) + 8)) if position == len(frame) else None
        is_packed = not length & _STORED
        length &= _STORED - 1
        blocks.append((position, position + length, is_packed))
        position += length + trailing
    return None
