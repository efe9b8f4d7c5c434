"""Decoding the records of a stored batch: for the tools and the twins of kernels.

Not on the way of produces, whose records are walked (`penstock.records.walk`), nor of fetches and
look-ups by time. Where a topic's records aren't validated, bytes here are what clients sent:
anything that is not a whole batch raises BatchError, never another exception, and decompression is
bounded while it happens: 8 KB of zstd can be 256 MB of zeros.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import cramjam
from typing_extensions import Buffer

from penstock.records.batch import (
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchError,
    BatchFault,
)

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
DECOMPRESSED_BYTES_MAX: Final = 128 << 20
"""Bound for one batch. No size that a frame's header announces is believed; see `_bounded`."""
_FIRST_BUFFER_BYTES_MIN: Final = 64 << 10
_BUFFER_GROWTH: Final = 4
_BUFFER_IS_FULL: Final = "failed to write whole buffer"
"""How cramjam, which has one exception for everything, says that the output did not fit."""
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
"""How clients begin that wrap blocks of snappy in Xerial's framing."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Record:
    """One record; timestamp in ms since the epoch. `offset_delta` counts from the base offset."""

    offset_delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def decode_batch(batch: memoryview) -> Iterator[Record]:
    """All records of one whole batch (magic 2), in order.

    Raises:
        BatchError: the records are not what the header says.
    Source: Kafka docs, "Record"; varints are protobuf's, zigzag.
    """
    fields = HEADER.unpack_from(batch)
    attributes, base_timestamp, max_timestamp, count = fields[5], fields[7], fields[8], fields[12]
    data = decompress(attributes & CODEC_MASK, batch[HEADER_BYTES:])
    position = 0
    for _ in range(count):
        try:
            length, start = read_varint(data, position)
            end = start + length
            if length < 0 or end > len(data):
                raise BatchError(BatchFault.INVALID, f"record of {length} bytes at {position}")
            record = _record(data, start, end, base_timestamp)
        except IndexError as error:
            raise BatchError(
                BatchFault.INVALID, f"malformed record at byte {position}: {error}"
            ) from error
        if attributes & LOG_APPEND_TIME:
            record = Record(
                offset_delta=record.offset_delta,
                timestamp=max_timestamp,
                key=record.key,
                value=record.value,
                headers=record.headers,
            )
        yield record
        position = end
    if position != len(data):
        raise BatchError(BatchFault.INVALID, f"{len(data) - position} bytes after the last record")


def decompress(codec: int, data: memoryview, *, bytes_max: int | None = None) -> bytes:
    """The records block of a batch, uncompressed.

    Args:
        codec: the attributes' low three bits, an index into CODECS.

    Raises:
        BatchError: an unknown codec, bytes that are not of it (INVALID), or more than
            `bytes_max` (TOO_LARGE), or than DECOMPRESSED_BYTES_MAX where that is None; memory for
            no more than that is taken.
    """
    if bytes_max is None:
        bytes_max = DECOMPRESSED_BYTES_MAX
    if codec == 0:
        return bytes(data)
    try:
        if codec == 1:
            return _bounded(cramjam.gzip.decompress_into, data, bytes_max)
        if codec == 2:
            return _unsnappy(bytes(data), bytes_max)
        if codec == 3:
            return _bounded(cramjam.lz4.decompress_into, data, bytes_max)
        if codec == 4:
            return _bounded(cramjam.zstd.decompress_into, data, bytes_max)
    except (cramjam.DecompressionError, ValueError, OverflowError, MemoryError) as error:
        raise BatchError(
            BatchFault.INVALID, f"{len(data)} bytes are not {CODECS[codec]}: {error}"
        ) from error
    raise BatchError(BatchFault.INVALID, f"unknown compression codec {codec}")


def _bounded(
    decompress_into: Callable[[Buffer, Buffer], int], data: memoryview, bytes_max: int
) -> bytes:
    """Decompress into buffers of ours, each larger than the last, up to the bound.

    The decompressor stops where the buffer ends, so what a hostile batch costs is known before
    it begins. Trying again costs a third more than knowing the size would, and is rare: most
    batches are no longer than four times what was sent.
    """
    size = min(max(_BUFFER_GROWTH * len(data), _FIRST_BUFFER_BYTES_MIN), bytes_max)
    while True:
        buffer = bytearray(size)
        try:
            length = decompress_into(data, buffer)
        except cramjam.DecompressionError as error:
            if str(error) != _BUFFER_IS_FULL:
                raise
        else:
            return bytes(memoryview(buffer)[:length])
        if size == bytes_max:
            raise _too_large(size)
        size = min(_BUFFER_GROWTH * size, bytes_max)
        del buffer  # before the next one is made


def _unsnappy(data: bytes, bytes_max: int) -> bytes:
    # Java clients and librdkafka wrap blocks in Xerial's framing: magic, two versions, then
    # length-prefixed raw blocks; others send one raw block.
    if not data.startswith(XERIAL_MAGIC):
        return _snappy_block(data, bytes_max)
    position, parts, left = 16, [], bytes_max
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        block = data[position + 4 : position + 4 + size]
        if len(block) != size:
            raise ValueError(f"snappy block of {size} bytes at {position} is cut")
        part = _snappy_block(block, left)
        left -= len(part)
        parts.append(part)
        position += 4 + size
    return b"".join(parts)


def _snappy_block(block: bytes, bytes_max: int) -> bytes:
    # The decoder takes memory for what the block's preamble says before it looks further, and
    # fails where the block then has more: so here the announced length is the bound.
    if cramjam.snappy.decompress_raw_len(block) > bytes_max:
        raise _too_large(bytes_max)
    return bytes(cramjam.snappy.decompress_raw(block))


def _too_large(bytes_max: int) -> BatchError:
    return BatchError(BatchFault.TOO_LARGE, f"more than {bytes_max} bytes when decompressed")


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint at `position`: (value, position after it)."""
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            raise BatchError(BatchFault.INVALID, f"varint of more than 64 bits at {position}")
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7
        if shift > 63:
            raise BatchError(BatchFault.INVALID, f"varint longer than 10 bytes at {position}")


def _bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise BatchError(BatchFault.INVALID, f"field of {length} bytes runs past its record")
    return data[position : position + length], position + length


def _record(data: bytes, position: int, end: int, base_timestamp: int) -> Record:
    timestamp_delta, position = read_varint(data, position + 1)  # the attributes byte is unused
    offset_delta, position = read_varint(data, position)
    key, position = _bytes(data, position, end)
    value, position = _bytes(data, position, end)
    header_count, position = read_varint(data, position)
    if not 0 <= header_count <= end - position:
        raise BatchError(BatchFault.INVALID, f"{header_count} headers in {end - position} bytes")
    headers = []
    for _ in range(header_count):
        name, position = _bytes(data, position, end)
        if name is None:
            raise BatchError(BatchFault.INVALID, "header without a name")
        value_bytes, position = _bytes(data, position, end)
        # Kafka's Java client reads names that aren't UTF-8 so, and brokers look into none.
        headers.append((name.decode(errors="replace"), value_bytes))
    if position != end:
        raise BatchError(BatchFault.INVALID, f"{end - position} bytes left in a record")
    return Record(
        offset_delta=offset_delta,
        timestamp=base_timestamp + timestamp_delta,
        key=key,
        value=value,
        headers=tuple(headers),
    )
