"""Decompressing a batch's records piece by piece, so that no size in the bytes is believed. Pure.

A stream gives what it decompresses in pieces of at most the size that is asked for, and takes no
memory beyond that and the codec's own window, however much there is. Its end is an end only where
the codec says that all is there, checksums included, and nothing follows: what Kafka's Java client
or librdkafka would refuse to read is refused here.

| codec | what is taken | memory besides the piece |
| --- | --- | --- |
| none | the bytes as they are | none |
| gzip | one member (RFC 1952) | 32 KiB |
| snappy | Xerial's framing of raw blocks, or one raw block | a block, at most 22 times its bytes |
| lz4 | one frame of independent blocks | two blocks of at most 4 MiB |
| zstd | one frame (RFC 8878) | its window: at most 128 MiB, and no more than was decompressed |

Kafka's Java client reads no LZ4 frame whose blocks depend on one another, and zstd itself no window
above 128 MiB by default; levels from 20 on use such ones. Of several members or frames
librdkafka reads the first alone.
"""

import sys
import zlib
from collections.abc import Iterator
from typing import Final, Protocol

import cramjam
import lz4.frame

from penstock.records.batch import BatchError, BatchFault

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
"""How clients begin that wrap blocks of snappy in Xerial's framing."""
XERIAL_HEADER_BYTES: Final = 16
"""The magic and two versions of four bytes."""
PIECE_BYTES: Final = 64 << 10
"""Bytes that are asked for at a time."""

_FED_BYTES: Final = 64 << 10
"""Given to a decompressor at a time: what it has not used yet it copies at each call."""
_GZIP_WINDOW_BITS: Final = 31
_ZSTD_WINDOW_LOG_MAX: Final = 27
_ZSTD_OPTIONS: Final[dict[int, int]] = {
    zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX
}
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_FLAGS_AT: Final = 4
_SNAPPY_GROWTH_MAX: Final = 22
"""A copy of three bytes gives at most 64: a block that announces more lies."""


class RecordStream(Protocol):
    """The decompressed records of one batch."""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes that follow; none: the end.

        Raises:
            BatchError: INVALID: the bytes are not whole, or not of the codec.
        """
        ...


def open_stream(codec: int, data: memoryview) -> RecordStream:
    """The records block of a batch as a stream.

    Args:
        codec: the attributes' low three bits, an index into CODECS.
        data: the compressed block.

    Raises:
        BatchError: INVALID: an unknown codec.
    """
    if codec == 0:
        return _Plain(data)
    if codec == 1:
        return _Gzip(data)
    if codec == 2:
        return _Snappy(data)
    if codec == 3:
        if len(data) <= _LZ4_FLAGS_AT or not data[_LZ4_FLAGS_AT] & _LZ4_INDEPENDENT:
            raise _not_of(codec, data, "no frame of independent blocks")
        return _Fed(codec, data, lz4.frame.LZ4FrameDecompressor())
    if codec == 4:
        return _Fed(codec, data, zstd.ZstdDecompressor(options=_ZSTD_OPTIONS))
    raise BatchError(BatchFault.INVALID, f"unknown compression codec {codec}")


class _Plain:
    __slots__ = ("_data", "_position")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def read(self, size: int) -> bytes:
        piece = bytes(self._data[self._position : self._position + size])
        self._position += len(piece)
        return piece


class _Gzip:
    """zlib hands back what it has not used."""

    __slots__ = ("_data", "_decompressor", "_left", "_position")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0
        self._left = b""
        self._decompressor = zlib.decompressobj(_GZIP_WINDOW_BITS)

    def read(self, size: int) -> bytes:
        decompressor = self._decompressor
        while not decompressor.eof:
            fed: bytes | memoryview = self._left
            if not fed:
                fed = self._data[self._position : self._position + _FED_BYTES]
                self._position += len(fed)
            is_last = not fed
            try:
                piece = decompressor.decompress(fed, size)
            except zlib.error as error:
                raise _not_of(1, self._data, error) from error
            self._left = decompressor.unconsumed_tail
            if piece:
                return piece
            if is_last and not decompressor.eof:
                raise _not_of(1, self._data, "they are cut")
        if decompressor.unused_data or self._position < len(self._data):
            raise _not_of(1, self._data, "bytes follow the end")
        return b""


class _Decompressor(Protocol):
    """The interface that lz4's and zstd's decompressors share with the standard library's."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: bytes | memoryview, max_length: int = -1) -> bytes: ...


class _Fed:
    """A decompressor that keeps what it has not used."""

    __slots__ = ("_codec", "_data", "_decompressor", "_position")

    def __init__(self, codec: int, data: memoryview, decompressor: _Decompressor) -> None:
        self._codec = codec
        self._data = data
        self._position = 0
        self._decompressor = decompressor

    def read(self, size: int) -> bytes:
        decompressor = self._decompressor
        while not decompressor.eof:
            fed: bytes | memoryview = b""
            if decompressor.needs_input:
                fed = self._data[self._position : self._position + _FED_BYTES]
                self._position += len(fed)
                if not fed:
                    raise _not_of(self._codec, self._data, "they are cut")
            try:
                piece = decompressor.decompress(fed, max_length=size)
            except (zstd.ZstdError, RuntimeError, ValueError, MemoryError) as error:
                raise _not_of(self._codec, self._data, error) from error
            if piece:
                return piece
        if decompressor.unused_data or self._position < len(self._data):
            raise _not_of(self._codec, self._data, "bytes follow the end")
        return b""


class _Snappy:
    """A raw block can't be decompressed in part: `read` gives parts of the block in hand."""

    __slots__ = ("_at", "_block", "_blocks", "_data")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._block = b""
        self._at = 0
        self._blocks = self._framed() if bytes(data[:8]) == XERIAL_MAGIC else iter((data,))

    def read(self, size: int) -> bytes:
        while self._at == len(self._block):
            packed = next(self._blocks, None)
            if packed is None:
                return b""
            self._block, self._at = self._unpacked(packed), 0
        piece = self._block[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def _unpacked(self, packed: memoryview) -> bytes:
        try:
            # The decoder takes memory for what the block announces before it looks further, and
            # fails where the block then has more or less.
            announced = cramjam.snappy.decompress_raw_len(packed)
            if announced > _SNAPPY_GROWTH_MAX * len(packed):
                raise _not_of(
                    2, self._data, f"a block of {len(packed)} bytes announces {announced}"
                )
            return bytes(cramjam.snappy.decompress_raw(packed))
        except (cramjam.DecompressionError, ValueError, OverflowError, MemoryError) as error:
            raise _not_of(2, self._data, error) from error

    def _framed(self) -> Iterator[memoryview]:
        data, position = self._data, XERIAL_HEADER_BYTES
        if len(data) < position:
            raise _not_of(2, data, "they are cut")
        while position < len(data):
            start = position + 4
            position = start + int.from_bytes(data[position:start], "big")
            if start > len(data) or position > len(data):
                raise _not_of(2, data, f"the block that ends at byte {position} is cut")
            yield data[start:position]


def _not_of(codec: int, data: memoryview, why: object) -> BatchError:
    return BatchError(BatchFault.INVALID, f"{len(data)} bytes are not {CODECS[codec]}: {why}")
