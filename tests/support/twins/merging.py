"""The slow, plain twin of `penstock.kernels.merging`, which must give the same bytes.

docs/compaction.md, "Which batches are merged", has the rules. A record keeps its bytes but for its
length and its two deltas.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.model.errors import CorruptDataError
from penstock.records.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchError,
    crc_is_right,
)
from penstock.records.decode import decompress, read_varint
from penstock.records.encode import write_varint
from penstock.records.merging import (
    AS_PRODUCED,
    LARGE_BYTES,
    RECORD_BYTES_MIN,
    Merging,
    commonest,
    finish_batch,
)

INT32_MAX: Final = (1 << 31) - 1
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1


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
        self._max_timestamp = INT64_MIN
        self._count = 0

    def add(self, batch: memoryview, records: Sequence[_Record]) -> bool:
        """Take a batch in; False: it doesn't fit in, and nothing has changed."""
        fields = HEADER.unpack_from(batch)
        base, last_delta, base_timestamp, max_timestamp = fields[0], fields[6], fields[7], fields[8]
        key = _key(fields)
        first = self._base_offset if self._batches else base
        if self._batches and (key != self._key or base + last_delta - first > INT32_MAX):
            return False
        start = self._base_timestamp
        if start is None:
            start = base_timestamp
        body = bytearray()
        for attributes, timestamp_delta, offset_delta, rest in records:
            timestamp = base_timestamp + timestamp_delta
            if not (
                INT64_MIN <= timestamp <= INT64_MAX and INT64_MIN <= timestamp - start <= INT64_MAX
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
