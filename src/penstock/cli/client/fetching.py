"""Fetching: records of partitions from offsets on, without sessions.

Fetch version 11 (its layout is below) is served by every Kafka since 2.3 and names topics by name.
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.cli.client.cluster import Client
from penstock.cli.client.errors import check
from penstock.cli.client.offsets import TopicPartition
from penstock.kafka.errors import ErrorCode
from penstock.model.errors import CorruptDataError
from penstock.records.batch import HEADER_BYTES, LENGTH_END, crc_is_right, stored_header
from penstock.records.decode import decode_batch

VERSION: Final = 11
CONTROL: Final = 0x20
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_INT64 = struct.Struct(">q")
_REQUEST_HEAD: Final = struct.Struct(">iiiibii")
_REQUEST_PARTITION: Final = struct.Struct(">iiqqi")
_RESPONSE_HEAD: Final = struct.Struct(">ihii")
_RESPONSE_PARTITION: Final = struct.Struct(">ihqqqi")
_ABORTED_BYTES: Final = 16
_CONSUMER: Final = -1
_NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecord:
    """One record and where it lies; `timestamp` in ms since the epoch."""

    partition: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """One partition's answer. `records` holds what lies from the asked offset on; `next_offset`
    is where to go on; `bytes` the size of the batches."""

    partition: TopicPartition
    records: list[FetchedRecord]
    next_offset: int
    high_watermark: int
    out_of_range: bool
    bytes: int


def fetch(
    client: Client,
    positions: Mapping[TopicPartition, int],
    leaders: Mapping[TopicPartition, int],
    *,
    wait_ms: int,
    bytes_max: int,
) -> Iterator[FetchedPartition]:
    """Fetch from all leaders, one after the other.

    Args:
        positions: the offset to read from, by partition.
        leaders: the node that leads each partition.
        wait_ms: how long a server may wait for the first byte.
        bytes_max: of one answer, save for a first batch that is larger.

    Raises:
        RefusedError: a partition does not exist.
        CorruptDataError: a batch's CRC is wrong.
    """
    by_node: dict[int, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for partition, offset in positions.items():
        by_node[leaders[partition]][partition.topic].append((partition.partition, offset))
    for node_id, topics in by_node.items():
        body = _request(topics, wait_ms=wait_ms, bytes_max=bytes_max)
        answer = client.node(node_id).exchange("fetch", VERSION, body, wait_s=wait_ms / 1000)
        try:
            yield from _answers(answer, positions)
        except struct.error as error:
            raise CorruptDataError("fetch", f"node {node_id}", "cut answer") from error


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _request(topics: Mapping[str, list[tuple[int, int]]], *, wait_ms: int, bytes_max: int) -> bytes:
    parts = [
        # replica, wait, least and most bytes, isolation level, session id and epoch
        _REQUEST_HEAD.pack(_CONSUMER, wait_ms, 1, bytes_max, 0, 0, _NO_EPOCH),
        _INT32.pack(len(topics)),
    ]
    for name, rows in topics.items():
        parts += [_text(name), _INT32.pack(len(rows))]
        # partition, leader epoch, offset, log start (of followers), most bytes
        parts += [
            _REQUEST_PARTITION.pack(number, _NO_EPOCH, offset, -1, bytes_max)
            for number, offset in rows
        ]
    parts += [_INT32.pack(0), _text("")]  # forgotten topics, rack
    return b"".join(parts)


def _answers(
    answer: memoryview, positions: Mapping[TopicPartition, int]
) -> Iterator[FetchedPartition]:
    _, code, _, topic_count = _RESPONSE_HEAD.unpack_from(answer)
    check("fetch", "the server", code)
    position = _RESPONSE_HEAD.size
    for _ in range(topic_count):
        name_bytes = _INT16.unpack_from(answer, position)[0]
        position += 2 + name_bytes
        name = bytes(answer[position - name_bytes : position]).decode()
        partition_count = _INT32.unpack_from(answer, position)[0]
        position += 4
        for _ in range(partition_count):
            number, code, high_watermark, _, _, aborted_count = _RESPONSE_PARTITION.unpack_from(
                answer, position
            )
            position += _RESPONSE_PARTITION.size + max(0, aborted_count) * _ABORTED_BYTES
            position += 4  # preferred read replica
            size = max(0, _INT32.unpack_from(answer, position)[0])
            position += 4
            partition = TopicPartition(name, number)
            out_of_range = code == ErrorCode.OFFSET_OUT_OF_RANGE
            if not out_of_range:
                check("fetch", str(partition), code)
            start = positions[partition]
            data = answer[position : position + size]
            position += size
            records, following = read_batches(partition, data, start)
            yield FetchedPartition(
                partition=partition,
                records=records,
                next_offset=following,
                high_watermark=high_watermark,
                out_of_range=out_of_range,
                bytes=size,
            )


def read_batches(
    partition: TopicPartition, data: memoryview, start: int
) -> tuple[list[FetchedRecord], int]:
    """The records from offset `start` on in fetched batches, and the offset to go on from.

    The last batch of an answer may be cut, which means nothing; control batches hold no records.

    Raises:
        CorruptDataError: a batch's CRC is wrong.
    """
    records, following, position = [], start, 0
    while len(data) - position >= HEADER_BYTES:
        header = stored_header(data, position)
        batch = data[position : position + header.length]
        if len(batch) < header.length or header.length < LENGTH_END:
            break
        if not crc_is_right(batch):
            raise CorruptDataError(
                "fetch", f"{partition} offset {header.base_offset}", "CRC-32C differs"
            )
        if not header.attributes & CONTROL:
            records += [
                FetchedRecord(
                    partition=partition,
                    offset=header.base_offset + record.offset_delta,
                    timestamp=record.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
                for record in decode_batch(batch)
                if header.base_offset + record.offset_delta >= start
            ]
        following = max(following, header.end_offset)
        position += header.length
    return records, following
