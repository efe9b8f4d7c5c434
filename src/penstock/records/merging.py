"""The form of merged batches, and the header and block that a merged batch has. Pure.

docs/compaction.md, "Which batches are merged", has the rules; `penstock.kernels.merging` merges.
"""

from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import Final

import cramjam
from crc32c import crc32c
from msgspec import Struct as Message
from typing_extensions import Buffer

from penstock.records.batch import (
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
)
from penstock.records.lz4 import compress_lz4

MERGED_BYTES_MAX: Final = 1 << 20
"""A merged batch has at most so many bytes before it is compressed."""
LARGE_BYTES: Final = 64 << 10
"""A batch of so many bytes, as stored, stays as it is."""
AS_PRODUCED: Final = -1
"""`Merging.codec` for the codec that most of the inputs have."""
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, lengths of key and value, header count: a byte each."""
_LZ4_FAST: Final = 9
_GZIP_DEFAULT: Final = -1
_UINT32: Final = Struct(">I")


class Merging(Message, frozen=True, array_like=True, kw_only=True):
    """The form of merged batches: `codec` is its number in a batch's attributes, or AS_PRODUCED;
    levels are Kafka's."""

    codec: int = AS_PRODUCED
    gzip_level: int = -1
    lz4_level: int = 9
    zstd_level: int = 3
    bytes_max: int = MERGED_BYTES_MAX


def compress_at(merging: Merging, codec: int, block: Buffer) -> memoryview:
    """A records block, compressed by a codec other than 0 at the level that is asked for."""
    if codec == 1:
        level = 6 if merging.gzip_level == _GZIP_DEFAULT else merging.gzip_level
        return _view(cramjam.gzip.compress(block, level))
    if codec == 2:
        return _view(cramjam.snappy.compress_raw(block))
    if codec == 3:
        # As in Kafka, whose default is the fast mode.
        level = merging.lz4_level
        return _view(compress_lz4(block, high_level=None if level == _LZ4_FAST else level))
    return _view(cramjam.zstd.compress(block, merging.zstd_level))


def _view(packed: Buffer) -> memoryview:
    return memoryview(packed).cast("B")


def commonest(codecs: Sequence[int]) -> int:
    """The codec that most of some batches have; at a tie the one with the smaller number."""
    return min(Counter(codecs).items(), key=lambda item: (-item[1], item[0]))[0]


def finish_batch(merging: Merging, codec: int, header: Sequence[int], body: Buffer) -> bytearray:
    """A whole batch, its body compressed unless that makes it longer.

    Args:
        header: as `penstock.records.batch.HEADER` has it; length, CRC and codec are filled in.
    """
    plain = memoryview(body).cast("B")
    block = plain
    if codec:
        block = compress_at(merging, codec, plain)
        if len(block) >= len(plain):
            block, codec = plain, 0
    fields = list(header)
    fields[1] = HEADER_BYTES - LENGTH_END + len(block)
    fields[5] |= codec
    batch = bytearray(HEADER_BYTES + len(block))
    HEADER.pack_into(batch, 0, *fields)
    batch[HEADER_BYTES:] = block
    _UINT32.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch
