"""Merging small batches into large ones: the same records at the same offsets. Pure.

docs/compaction.md, "Which batches are merged", has the rules. This is the slow, plain twin of
`penstock.kernels.merging`, which must give the same bytes. A record keeps its bytes but for its
length and its two deltas.
"""

from collections import Counter
from collections.abc import Sequence
from struct import Struct
from typing import Final

import cramjam
from crc32c import crc32c
from msgspec import Struct as Message
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError
from penstock.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchError,
    crc_is_right,
)
from penstock.records.decode import decompress, read_varint
from penstock.records.encode import write_varint
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
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
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


def merge_batches(batches: Sequence[memoryview], merging: Merging) -> list[bytes]:
    """Merge adjacent whole batches of one partition, which have final offsets.

    Returns:
        The batches to store; those that aren't merged are among them as they were.

    Raises:
        CorruptDataError: a CRC-32C differs.
    """
    merged: list[bytes] = []
    group = _Group(merging)
    for number, batch in enumerate(batches):
        if not crc_is_right(batch):
            raise CorruptDataError(
                "merge batches", f"batch {number}", f"CRC-32C differs in {len(batch)} bytes"
            )
        records = _records(batch, merging)
        if records is not None and group.add(batch, records):
            continue
        merged += group.finish()
        group = _Group(merging)
        if records is None or not group.add(batch, records):
            merged.append(bytes(batch))
    return merged + group.finish()


_Record = tuple[int, int, int, bytes]
"""Attributes, timestamp delta, offset delta, and the bytes from the key on."""


class _Group:
    """Batches that become one."""

    def __init__(self, merging: Merging) -> None:
        self._merging = merging
        self._batches: list[memoryview] = []
        self._codecs: list[int] = []
        self._body = bytearray()
        self._key: tuple[int, ...] = ()
        self._base_offset = self._end_offset = 0
        self._base_timestamp: int | None = None
        self._max_timestamp = -1
        self._count = 0

    def add(self, batch: memoryview, records: Sequence[_Record]) -> bool:
        """Take a batch in; False: it doesn't fit in, and nothing has changed."""
        fields = HEADER.unpack_from(batch)
        base, last_delta, base_timestamp, max_timestamp = fields[0], fields[6], fields[7], fields[8]
        key = _key(fields)
        first = self._base_offset if self._batches else base
        if self._batches and (key != self._key or base + last_delta - first > _INT32_MAX):
            return False
        start = self._base_timestamp
        if start is None:
            start = base_timestamp
        body = bytearray()
        for attributes, timestamp_delta, offset_delta, rest in records:
            timestamp = base_timestamp + timestamp_delta
            if not (
                _INT64_MIN <= timestamp <= _INT64_MAX
                and _INT64_MIN <= timestamp - start <= _INT64_MAX
            ):
                return False
            record = b"".join(
                (
                    bytes((attributes,)),
                    write_varint(timestamp - start),
                    write_varint(base + offset_delta - first),
                    rest,
                )
            )
            body += write_varint(len(record)) + record
        if HEADER_BYTES + len(self._body) + len(body) > self._merging.bytes_max:
            return False
        if records:
            self._base_timestamp = start
            self._max_timestamp = max(self._max_timestamp, max_timestamp)
            self._codecs.append(fields[5] & CODEC_MASK)
        self._base_offset, self._end_offset = first, base + last_delta + 1
        self._key = key
        self._batches.append(batch)
        self._body += body
        self._count += len(records)
        return True

    def finish(self) -> list[bytes]:
        """The group as one batch; as they were if there is one, or no record."""
        if len(self._batches) < 2 or not self._count:
            return [bytes(batch) for batch in self._batches]
        codec = self._merging.codec
        if codec == AS_PRODUCED:
            codec = commonest(self._codecs)
        assert self._base_timestamp is not None
        header = (
            self._base_offset,
            0,
            self._key[0],
            MAGIC,
            0,
            self._key[1],
            self._end_offset - self._base_offset - 1,
            self._base_timestamp,
            self._max_timestamp,
            -1,
            -1,
            -1,
            self._count,
        )
        return [bytes(finish_batch(self._merging, codec, header, self._body))]


def _key(fields: Sequence[int]) -> tuple[int, ...]:
    """Fields in which merged batches are the same."""
    flags = fields[5] & (LOG_APPEND_TIME | DELETE_HORIZON)
    return (
        fields[2],
        flags,
        fields[8] if flags & LOG_APPEND_TIME else 0,
        fields[7] if flags & DELETE_HORIZON else 0,
    )


def _records(batch: memoryview, merging: Merging) -> list[_Record] | None:
    """The records of a batch that may be merged; None: it may not be."""
    fields = HEADER.unpack_from(batch)
    attributes, last_delta, count = fields[5], fields[6], fields[12]
    if (
        attributes & (CONTROL | TRANSACTIONAL)
        or fields[3] != MAGIC
        or len(batch) >= LARGE_BYTES
        or (not count and len(batch) > HEADER_BYTES)
    ):
        return None
    if not count:
        return []
    try:
        block = batch[HEADER_BYTES:]
        body = decompress(attributes & CODEC_MASK, block, bytes_max=merging.bytes_max)
        if len(body) > merging.bytes_max or count * RECORD_BYTES_MIN > len(body):
            return None
        return _parsed(body, count, last_delta)
    except (BatchError, IndexError):
        return None


def _parsed(body: bytes, count: int, last_delta: int) -> list[_Record]:
    """Raises: BatchError, IndexError: the body doesn't hold `count` records and nothing else."""
    found: list[_Record] = []
    position, before = 0, -1
    for _ in range(count):
        length, position = read_varint(body, position)
        end = position + length
        if length < 1 or end > len(body):
            raise IndexError
        attributes = body[position]
        timestamp_delta, position = read_varint(body, position + 1)
        offset_delta, position = read_varint(body, position)
        if position > end or not before < offset_delta <= last_delta:
            raise IndexError
        rest = body[position:end]
        _check_rest(rest)
        found.append((attributes, timestamp_delta, offset_delta, rest))
        position, before = end, offset_delta
    if position != len(body):
        raise IndexError
    return found


def _check_rest(rest: bytes) -> None:
    """Raises: BatchError, IndexError: these aren't a key, a value and headers, and nothing else."""
    position = 0
    for _ in range(2):
        position = _skip(rest, position, may_be_null=True)
    headers, position = read_varint(rest, position)
    if not 0 <= headers <= len(rest) - position:
        raise IndexError
    for _ in range(headers):
        position = _skip(rest, position, may_be_null=False)
        position = _skip(rest, position, may_be_null=True)
    if position != len(rest):
        raise IndexError


def _skip(rest: bytes, position: int, *, may_be_null: bool) -> int:
    length, position = read_varint(rest, position)
    if length > len(rest) - position or (length < 0 and not may_be_null):
        raise IndexError
    return position + max(length, 0)
