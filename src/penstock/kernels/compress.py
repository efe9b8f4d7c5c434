"""Compressing the records blocks of batches, at explicit levels.

Kafka's defaults of levels; LZ4 has none in its fast mode (`penstock.records.lz4`).
"""

from collections.abc import Callable
from typing import Final

import cramjam
from typing_extensions import Buffer

from penstock.records.lz4 import compress_lz4

ZSTD_LEVEL: Final = 3
GZIP_LEVEL: Final = 6

COMPRESSORS: Final[dict[int, Callable[[Buffer], Buffer]]] = {
    1: lambda block: cramjam.gzip.compress(block, GZIP_LEVEL),
    2: cramjam.snappy.compress_raw,
    3: compress_lz4,
    4: lambda block: cramjam.zstd.compress(block, ZSTD_LEVEL),
}
"""Compressors by the codec's number in a batch's attributes; 0 has none."""


def compress(codec: int, block: Buffer) -> memoryview:
    """A block, compressed by a codec other than 0."""
    return memoryview(COMPRESSORS[codec](block)).cast("B")
