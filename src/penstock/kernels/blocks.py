"""The records blocks of batches, uncompressed, side by side in one array.

A codec's announced sizes are not believed: each block is decompressed into room that is ours and
bounded, as `penstock.records.decode.decompress` (the slow twin) does it.
"""

from collections.abc import Callable
from typing import Final

import cramjam
import numpy as np
from numpy import uint8
from typing_extensions import Buffer

from penstock.kernels.arrays import Uint8s
from penstock.model.errors import CorruptDataError
from penstock.records.decode import CODECS, DECOMPRESSED_BYTES_MAX, XERIAL_MAGIC
from penstock.records.lz4 import find_blocks

_GROWTH: Final = 4
_IS_FULL: Final = "failed to write whole buffer"
_INTO: Final[dict[int, Callable[[Buffer, Buffer], int]]] = {
    1: cramjam.gzip.decompress_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}


class BlockArena:
    """Blocks one behind the other; used again for the next ones after `clear`."""

    def __init__(self) -> None:
        self.data: Uint8s = np.empty(0, dtype=uint8)
        self.used = 0

    def clear(self) -> None:
        """Forget what is there, and keep the room."""
        self.used = 0

    def append(
        self,
        codec: int,
        block: memoryview,
        *,
        subject: str,
        bytes_max: int | None = None,
    ) -> tuple[int, int]:
        """Add a block: where it lies, (start, end).

        Raises:
            CorruptDataError: it is not of the codec, or larger than `bytes_max`, or than
                DECOMPRESSED_BYTES_MAX where that is None.
        """
        if bytes_max is None:
            bytes_max = DECOMPRESSED_BYTES_MAX
        start = self.used
        try:
            if codec == 0:
                self.reserve(len(block))
                self.data[start : start + len(block)] = np.frombuffer(block, dtype=uint8)
                self.used += len(block)
            elif codec == 2:
                self._append_snappy(block, bytes_max)
            elif codec == 3 and self._append_lz4(block, bytes_max):
                pass
            elif codec in _INTO:
                self._append_stream(_INTO[codec], block, bytes_max)
            else:
                raise _RefusedError(f"unknown compression codec {codec}")
        except (
            _RefusedError,
            cramjam.DecompressionError,
            ValueError,
            OverflowError,
            MemoryError,
        ) as error:
            name = CODECS[codec] if codec < len(CODECS) else str(codec)
            raise CorruptDataError(
                "decompress batch", subject, f"{len(block)} bytes of {name}: {error}"
            ) from error
        return start, self.used

    def _append_stream(
        self, decompress_into: Callable[[Buffer, Buffer], int], block: Buffer, bytes_max: int
    ) -> None:
        start = self.used
        size = len(memoryview(block))
        room = min(max(_GROWTH * size, 64 << 10), bytes_max)
        while True:
            self.reserve(room)
            # All the room there is, up to the bound: what is left of a growing arena is free.
            end = min(len(self.data), start + bytes_max)
            try:
                self.used = start + decompress_into(block, memoryview(self.data.data)[start:end])
            except cramjam.DecompressionError as error:
                if str(error) != _IS_FULL:
                    raise
            else:
                return
            if end - start >= bytes_max:
                raise _RefusedError(f"more than {bytes_max} bytes when decompressed")
            room = min(_GROWTH * (end - start), bytes_max)

    def _append_lz4(self, frame: memoryview, bytes_max: int) -> bool:
        """Add a frame block by block; False: it needs the general decoder."""
        found = find_blocks(frame)
        if found is None:
            return False
        blocks, block_max = found
        start = self.used
        for at, end, is_packed in blocks:
            if not is_packed:
                if end - at > block_max:
                    raise _RefusedError(f"an LZ4 block of {end - at} bytes")
                self.reserve(end - at)
                self.data[self.used : self.used + end - at] = np.frombuffer(
                    frame[at:end], dtype=uint8
                )
                self.used += end - at
            else:
                self.reserve(block_max)
                room = memoryview(self.data.data)[self.used : self.used + block_max]
                self.used += cramjam.lz4.decompress_block_into(
                    frame[at:end], room, output_len=block_max
                )
            if self.used - start > bytes_max:
                raise _RefusedError(f"more than {bytes_max} bytes when decompressed")
        return True

    def _append_snappy(self, block: memoryview, bytes_max: int) -> None:
        if bytes(block[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
            self._append_snappy_block(bytes(block), bytes_max)
            return
        start, position = self.used, 16
        while position < len(block):
            size = int.from_bytes(block[position : position + 4], "big")
            part = block[position + 4 : position + 4 + size]
            if len(part) != size:
                raise _RefusedError(f"snappy block of {size} bytes at {position} is cut")
            self._append_snappy_block(bytes(part), bytes_max - (self.used - start))
            position += 4 + size

    def _append_snappy_block(self, block: bytes, bytes_max: int) -> None:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > bytes_max:
            raise _RefusedError(f"more than {bytes_max} bytes when decompressed")
        self.reserve(size)
        room = memoryview(self.data.data)[self.used : self.used + size]
        self.used += cramjam.snappy.decompress_raw_into(block, room)

    def reserve(self, count: int) -> None:
        """Make room for so many bytes more."""
        wanted = self.used + count
        if wanted <= len(self.data):
            return
        larger = np.empty(max(wanted, 2 * len(self.data)), dtype=uint8)
        larger[: self.used] = self.data[: self.used]
        self.data = larger


class _RefusedError(Exception):
    """The bytes aren't the codec's; the caller raises a CorruptDataError instead."""
