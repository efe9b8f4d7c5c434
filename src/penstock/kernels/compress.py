"""Compressing the records blocks of batches, at explicit levels.

The libraries' defaults aren't ours: cramjam's of lz4 takes six times as long as level 0 and comes
to the same size, and links blocks, which Kafka's reader refuses.
"""

from collections.abc import Callable
from typing import Any, Final

import cramjam
from typing_extensions import Buffer

from penstock.records.encode import compress_lz4

LZ4_LEVEL: Final = 0
ZSTD_LEVEL: Final = 3
GZIP_LEVEL: Final = 6

COMPRESSORS: Final[dict[int, Callable[[Buffer], Any]]] = {
    1: lambda block: cramjam.gzip.compress(block, GZIP_LEVEL),
    2: cramjam.snappy.compress_raw,
    3: lambda block: compress_lz4(block, LZ4_LEVEL),
    4: lambda block: cramjam.zstd.compress(block, ZSTD_LEVEL),
}
"""By the codec's number in a batch's attributes; 0 has none."""


def compress(codec: int, block: Buffer) -> memoryview:
    """A block, compressed by a codec other than 0."""
    return memoryview(COMPRESSORS[codec](block)).cast("B")
