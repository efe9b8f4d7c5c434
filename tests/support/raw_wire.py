"""Produce (version 7) and Fetch (version 11) of one partition, as bytes. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.records.batch import HEADER_BYTES, LENGTH_END, crc_is_right, stored_header
from penstock.records.decode import Record, decode_batch

PRODUCE_VERSION = 7
FETCH_VERSION = 11
CONTROL = 0x20
_FETCH_HEAD = struct.Struct(">ihii")
_FETCHED = struct.Struct(">ihqqqi")
_ABORTED = struct.Struct(">qq")
_PRODUCED = struct.Struct(">ihqqq")


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One partition's; where the whole request failed, with its code and nothing else."""

    partition: int
    code: int
    high_watermark: int = -1
    log_start: int = -1
    batches: memoryview | bytes = b""
    last_stable: int = -1
    aborted: tuple[tuple[int, int], ...] = ()
    """Producer id and first offset of aborted transactions, for a reader of committed records."""


def produce_request(
    topic: str, partition: int, batch: bytes | bytearray, *, timeout_ms: int
) -> bytes:
    """One batch, acks=all."""
    head = struct.pack(">hhii", -1, -1, timeout_ms, 1) + _text(topic)
    return head + struct.pack(">iii", 1, partition, len(batch)) + batch


def produce_answer(answer: memoryview) -> tuple[int, int]:
    """(error code, base offset)."""
    name_bytes = struct.unpack_from(">h", answer, 4)[0]
    _, code, offset, _, _ = _PRODUCED.unpack_from(answer, 4 + 2 + name_bytes + 4)
    return code, offset


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    *,
    wait_ms: int,
    bytes_max: int = 1 << 20,
    leader_epoch: int = -1,
    committed: bool = False,
) -> bytes:
    """From an offset on, without a session. `committed`: of committed records alone."""
    head = struct.pack(">iiiibii", -1, wait_ms, 1, bytes_max, committed, 0, -1)
    named = struct.pack(">i", 1) + _text(topic) + struct.pack(">i", 1)
    row = struct.pack(">iiqqi", partition, leader_epoch, offset, -1, bytes_max)
    return head + named + row + struct.pack(">i", 0) + _text("")


def fetch_answer(answer: memoryview, partition: int) -> FetchAnswer:
    """The answer to a request for that partition."""
    _, code, _, topics = _FETCH_HEAD.unpack_from(answer)
    if code or not topics:
        return FetchAnswer(partition, code)
    at = _FETCH_HEAD.size
    at += 2 + struct.unpack_from(">h", answer, at)[0] + 4
    number, code, high_watermark, stable, log_start, aborted = _FETCHED.unpack_from(answer, at)
    at += _FETCHED.size
    ranges = tuple(_ABORTED.unpack_from(answer, at + 16 * one) for one in range(max(0, aborted)))
    at += 16 * len(ranges) + 4
    length = max(0, struct.unpack_from(">i", answer, at)[0])
    data = answer[at + 4 : at + 4 + length]
    return FetchAnswer(number, code, high_watermark, log_start, data, stable, ranges)


def read_batches(data: memoryview | bytes, start: int) -> tuple[list[tuple[int, Record]], int]:
    """Offsets and records from `start` on in fetched batches, and the offset to go on from.

    The last batch of an answer may be cut, which means nothing; control batches hold no records.
    """
    data = memoryview(data)
    records, following, position = [], start, 0
    while len(data) - position >= HEADER_BYTES:
        header = stored_header(data, position)
        batch = data[position : position + header.length]
        if len(batch) < header.length or header.length < LENGTH_END:
            break
        assert crc_is_right(batch), f"offset {header.base_offset}: CRC-32C differs"
        if not header.attributes & CONTROL:
            records += [
                (header.base_offset + record.offset_delta, record)
                for record in decode_batch(batch)
                if header.base_offset + record.offset_delta >= start
            ]
        following = max(following, header.end_offset)
        position += header.length
    return records, following


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
