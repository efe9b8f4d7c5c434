"""Batches whose records are written as bytes, right or wrong, with a header and a CRC that fit."""

import struct
from collections.abc import Callable, Iterable

import cramjam
import lz4.frame
import snappy
from crc32c import crc32c

from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_END, MAGIC, BatchLimits

NOW = 1_790_000_000_000
LIMITS = BatchLimits(
    message_bytes_max=1 << 30,
    timestamp_before_max_ms=(1 << 63) - 1,
    timestamp_after_max_ms=3_600_000,
    log_append_time=False,
    compacts=False,
)


def varint(value: int) -> bytes:
    return raw_varint((value << 1) ^ (value >> 63) if value >= 0 else ((-value) << 1) - 1)


def raw_varint(raw: int) -> bytes:
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes(out) + bytes([raw])


def field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    delta: int,
    *,
    key: bytes = varint(-1),
    value: bytes = varint(1) + b"v",
    headers: bytes = varint(0),
    time_delta: bytes = varint(0),
    offset_delta: bytes | None = None,
    length: int | None = None,
) -> bytes:
    """One record; every part may be given as raw bytes, and another length than it has."""
    offset = varint(delta) if offset_delta is None else offset_delta
    body = b"\0" + time_delta + offset + key + value + headers
    return varint(len(body) if length is None else length) + body


def good(count: int) -> bytes:
    return b"".join(record(delta) for delta in range(count))


def uneven(count: int) -> bytes:
    """Right records of which no two that follow one another have one size."""
    return b"".join(record(delta, value=field(b"v" * (delta % 2))) for delta in range(count))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "none": lambda body: body,
    "gzip": lambda body: bytes(cramjam.gzip.compress(body)),
    "snappy": lambda body: bytes(cramjam.snappy.compress_raw(body)),
    "xerial": lambda body: b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(_blocks(body)),
    "lz4": lambda body: lz4.frame.compress(body, block_linked=False),
    "zstd": lambda body: bytes(cramjam.zstd.compress(body)),
}
NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "xerial": 2, "lz4": 3, "zstd": 4}


def batch(
    block: bytes | Iterable[bytes],
    count: int,
    *,
    codec: str = "none",
    packed: bool = False,
    base_timestamp: int = NOW,
    max_timestamp: int = NOW,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytearray:
    """A batch.

    Args:
        block: its records; compressed by `codec` unless `packed`.
        producer: id, epoch and base sequence.
    """
    body = block if isinstance(block, bytes) else b"".join(block)
    if not packed:
        body = PACKERS[codec](body)
    whole = bytearray(
        HEADER.pack(
            0,
            HEADER_BYTES - LENGTH_END + len(body),
            -1,
            MAGIC,
            0,
            attributes | NUMBERS[codec],
            count - 1,
            base_timestamp,
            max_timestamp,
            *producer,
            count,
        )
        + body
    )
    whole[17:21] = crc32c(memoryview(whole)[21:]).to_bytes(4, "big")
    return whole


def _blocks(body: bytes) -> Iterable[bytes]:
    for start in range(0, len(body), 32 << 10):
        block = snappy.compress(body[start : start + (32 << 10)])
        yield struct.pack(">i", len(block)) + block
