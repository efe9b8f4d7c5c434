"""The slow, plain twin of `penstock.kernels.keys`, which must give the same: batches as compaction
by key sees them, each record's key as a hash, and batches that keep some of their records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c

from penstock.records.batch import (
    CODEC_MASK,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    BatchError,
    BatchFault,
)
from penstock.records.decode import CODECS, decompress, read_varint
from penstock.records.encode import compress, write_varint

_MASK: Final = (1 << 64) - 1
_UINT32: Final = Struct(">I")
_NO_TIMESTAMP: Final = -1

HashKey = tuple[int, int]
"""Two unsigned 64-bit integers at random: who doesn't know them can't find keys that collide."""


@dataclass(slots=True, frozen=True, kw_only=True)
class KeyedRecord:
    """One record: bytes [start, end) of the batch's uncompressed body, its length before it.

    `key_hash`: SipHash-2-4-128 of the key, (high, low) as integers; None: there is no key.
    """

    offset: int
    timestamp: int
    key_hash: tuple[int, int] | None
    is_tombstone: bool
    start: int
    end: int


@dataclass(slots=True, frozen=True, kw_only=True)
class KeyedBatch:
    """A whole batch, its uncompressed body and its records."""

    batch: memoryview
    body: bytes
    records: list[KeyedRecord]


def index_batch(batch: memoryview, hash_key: HashKey) -> KeyedBatch:
    """Look into one whole batch (magic 2).

    Raises:
        BatchError: the records are not what the header says.
    """
    fields = HEADER.unpack_from(batch)
    base_offset, attributes, count = fields[0], fields[5], fields[12]
    last_delta, base_timestamp, max_timestamp = fields[6], fields[7], fields[8]
    if count == 0:
        return KeyedBatch(batch=batch, body=b"", records=[])
    body = decompress(attributes & CODEC_MASK, batch[HEADER_BYTES:])
    records = []
    position, delta_before = 0, -1
    for _ in range(count):
        try:
            start = position
            length, position = read_varint(body, position)
            end = position + length
            if length < 0 or end > len(body):
                raise BatchError(BatchFault.INVALID, f"record of {length} bytes at {start}")
            timestamp_delta, position = read_varint(body, position + 1)
            offset_delta, position = read_varint(body, position)
            key_bytes, position = read_varint(body, position)
            key_end = position + max(0, key_bytes)
            value_bytes, _ = read_varint(body, key_end)
        except IndexError as error:
            raise BatchError(BatchFault.INVALID, f"malformed record at byte {start}") from error
        if key_end >= end or not delta_before < offset_delta <= last_delta:
            raise BatchError(BatchFault.INVALID, f"malformed record at byte {start}")
        key = body[position:key_end]
        records.append(
            KeyedRecord(
                offset=base_offset + offset_delta,
                timestamp=max_timestamp
                if attributes & LOG_APPEND_TIME
                else _wrapped(base_timestamp + timestamp_delta),
                key_hash=None if key_bytes < 0 else siphash(key, hash_key),
                is_tombstone=value_bytes < 0,
                start=start,
                end=end,
            )
        )
        position, delta_before = end, offset_delta
    if position != len(body):
        raise BatchError(BatchFault.INVALID, f"{len(body) - position} bytes after the last record")
    return KeyedBatch(batch=batch, body=body, records=records)


def retain(
    indexed: KeyedBatch, keep: Sequence[bool], *, keep_empty: bool, delete_horizon_ms: int = -1
) -> bytes | None:
    """The batch with some of its records: offsets, producer fields and codec stay.

    Args:
        keep: per record.
        keep_empty: what to do where none is kept: true gives a header alone, false gives None.
        delete_horizon_ms: from when on tombstones may go; -1: nothing changes in this.

    Source: Kafka's MemoryRecords.filterTo and DefaultRecordBatch.writeEmptyHeader; KIP-534.
    """
    kept = [record for record, kept in zip(indexed.records, keep, strict=True) if kept]
    if not kept:
        return _empty(indexed.batch) if keep_empty else None
    if len(kept) == len(indexed.records) and delete_horizon_ms < 0:
        return bytes(indexed.batch)
    fields = list(HEADER.unpack_from(indexed.batch))
    attributes = fields[5]
    if delete_horizon_ms >= 0:
        body = b"".join(_moved(indexed, record, delete_horizon_ms) for record in kept)
        fields[5] |= DELETE_HORIZON
        fields[7] = delete_horizon_ms
    else:
        body = b"".join(indexed.body[record.start : record.end] for record in kept)
    if not attributes & LOG_APPEND_TIME:
        fields[8] = max(record.timestamp for record in kept)
    body = compress(CODECS[attributes & CODEC_MASK], body)
    fields[1] = HEADER_BYTES - LENGTH_END + len(body)
    fields[12] = len(kept)
    return _sealed(fields, body)


def siphash(data: bytes, hash_key: HashKey) -> tuple[int, int]:
    """SipHash-2-4 with 128 bits, as (high, low): the second and the first 8 bytes, little-endian.

    Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF"; the reference code's
    128-bit variant.
    """
    k0, k1 = hash_key
    v0 = k0 ^ 0x736F6D6570736575
    v1 = k1 ^ 0x646F72616E646F6D ^ 0xEE
    v2 = k0 ^ 0x6C7967656E657261
    v3 = k1 ^ 0x7465646279746573

    def rounds(count: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(count):
            v0 = (v0 + v1) & _MASK
            v1 = _rotated(v1, 13) ^ v0
            v0 = _rotated(v0, 32)
            v2 = (v2 + v3) & _MASK
            v3 = _rotated(v3, 16) ^ v2
            v0 = (v0 + v3) & _MASK
            v3 = _rotated(v3, 21) ^ v0
            v2 = (v2 + v1) & _MASK
            v1 = _rotated(v1, 17) ^ v2
            v2 = _rotated(v2, 32)

    whole = len(data) & ~7
    for at in range(0, whole, 8):
        word = int.from_bytes(data[at : at + 8], "little")
        v3 ^= word
        rounds(2)
        v0 ^= word
    word = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    v3 ^= word
    rounds(2)
    v0 ^= word
    v2 ^= 0xEE
    rounds(4)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    rounds(4)
    return v0 ^ v1 ^ v2 ^ v3, low


def _wrapped(value: int) -> int:
    """Wrap a sum as 64-bit arithmetic does: a client may have sent any deltas."""
    return (value + (1 << 63) & _MASK) - (1 << 63)


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _moved(indexed: KeyedBatch, record: KeyedRecord, base_timestamp: int) -> bytes:
    """The record's bytes with its timestamp relative to another one."""
    body = indexed.body
    _, at = read_varint(body, record.start)
    _, behind = read_varint(body, at + 1)
    content = (
        body[at : at + 1]
        + write_varint(_wrapped(record.timestamp - base_timestamp))
        + body[behind : record.end]
    )
    return write_varint(len(content)) + content


def _empty(batch: memoryview) -> bytes:
    fields = list(HEADER.unpack_from(batch))
    if fields[12] == 0:
        return bytes(batch)
    fields[1] = HEADER_BYTES - LENGTH_END
    fields[5] &= ~(CODEC_MASK | DELETE_HORIZON)
    fields[7] = _NO_TIMESTAMP
    fields[12] = 0
    return _sealed(fields, b"")


def _sealed(fields: list[int], body: bytes) -> bytes:
    fields[4] = 0
    batch = bytearray(HEADER.pack(*fields))
    batch += body
    _UINT32.pack_into(batch, 17, crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)
