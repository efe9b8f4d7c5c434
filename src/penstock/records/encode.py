"""Encoding records into a batch (magic 2): for the command line's producer and for tests."""

import struct
from collections.abc import Sequence
from typing import Final

import cramjam
from crc32c import crc32c

from penstock.records.batch import CRC_FROM, HEADER, LENGTH_END, MAGIC
from penstock.records.decode import CODECS, Record
from penstock.records.lz4 import compress_lz4

_NO_LEADER_EPOCH: Final = -1


def encode_batch(
    records: Sequence[Record],
    *,
    codec: str = "none",
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """One record batch of at least one record.

    Args:
        records: in order; their `offset_delta` is written as given.
        codec: one of `penstock.records.decode.CODECS`.
    """
    assert records
    base_timestamp = records[0].timestamp
    body = b"".join(_encode_record(record, base_timestamp) for record in records)
    body = compress(codec, body)
    attributes |= CODECS.index(codec)
    batch = bytearray(
        HEADER.pack(
            base_offset,
            HEADER.size - LENGTH_END + len(body),
            _NO_LEADER_EPOCH,
            MAGIC,
            0,
            attributes,
            records[-1].offset_delta,
            base_timestamp,
            max(record.timestamp for record in records),
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        )
    )
    batch += body
    batch[17:21] = crc32c(memoryview(batch)[CRC_FROM:]).to_bytes(4, "big")
    return batch


def empty_batch(start: int, end: int, leader_epoch: int) -> bytes:
    """A batch without records over offsets [start, end), at most 2^31 of them, as compaction leaves
    one at the end of a log (Kafka docs, "Compaction")."""
    count_bytes = bytes(4)
    # Attributes, last offset delta, both timestamps, producer id, epoch, base sequence, records.
    body = struct.pack(">hiqqqhi", 0, end - start - 1, -1, -1, -1, -1, -1) + count_bytes
    head = struct.pack(">iBI", leader_epoch, 2, crc32c(body))
    return struct.pack(">qi", start, len(head) + len(body)) + head + body


def compress(codec: str, body: bytes) -> bytes:
    """A records block as the codec has it; one of `penstock.records.decode.CODECS`."""
    if codec == "none":
        return body
    if codec == "gzip":
        return bytes(cramjam.gzip.compress(body))
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(body))
    if codec == "lz4":
        return compress_lz4(body)
    return bytes(cramjam.zstd.compress(body))


def write_varint(value: int) -> bytes:
    """A zigzag varint."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _bytes(value: bytes | None) -> bytes:
    return write_varint(-1) if value is None else write_varint(len(value)) + value


def _encode_record(record: Record, base_timestamp: int) -> bytes:
    body = b"".join(
        (
            b"\x00",
            write_varint(record.timestamp - base_timestamp),
            write_varint(record.offset_delta),
            _bytes(record.key),
            _bytes(record.value),
            write_varint(len(record.headers)),
            *(_bytes(name.encode()) + _bytes(value) for name, value in record.headers),
        )
    )
    return write_varint(len(body)) + body
