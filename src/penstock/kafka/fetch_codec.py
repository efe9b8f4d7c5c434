"""Fetch requests and responses, versions 4 to 18, by hand: record bytes are passed on as views.

Source: FetchRequest.json and FetchResponse.json of Apache Kafka 4; KIP-227 (sessions), KIP-392
(preferred replica), KIP-516 (topic ids), KIP-903 (replica state).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from typing_extensions import Buffer

from penstock.kafka.fetch_repeat import Span
from penstock.kafka.primitives import (
    INT32,
    INT64,
    MALFORMED,
    count_bytes,
    malformed,
    read_count,
    read_string,
    skip_tags,
    string_bytes,
    uvarint,
)
from penstock.log.fetch.regions import FileRegion, Part

FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13
SESSIONS_FROM: Final = 7

_REPLICA: Final = Struct(">i")
_WAIT: Final = Struct(">iiib")
_SESSION: Final = Struct(">ii")
_PARTITION_V4: Final = Struct(">iqi")
_PARTITION_V5: Final = Struct(">iqqi")
_PARTITION_V9: Final = Struct(">iiqqi")
_PARTITION_V12: Final = Struct(">iiqiqi")
_HEAD_V7: Final = Struct(">ihi")
_ANSWER_V4: Final = Struct(">ihqq")
_ANSWER_V12: Final = Struct(">ihqqq?i")


@dataclass(slots=True)
class FetchPartition:
    """One wanted partition. `topic` is its name (str) or id (16 bytes), as the client sent it."""

    topic: str | bytes
    partition: int
    fetch_offset: int
    bytes_max: int
    leader_epoch: int


@dataclass(slots=True)
class FetchRequest:
    """A parsed request; `wait_ms_max` and the byte counts are the client's."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[str | bytes, int]]
    rack: str
    spans: list[Span]
    """Where each partition lies in the body."""


@dataclass(slots=True)
class PartitionData:
    """One partition of a response; `views` are whole record batches of `length` bytes in all, in
    memory or as regions of files."""

    topic: str | bytes
    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    views: Sequence[Part] = ()
    length: int = 0
    preferred_read_replica: int = -1
    """A broker that is nearer to the client; then it is given nothing here (KIP-392)."""


def parse_fetch(body: memoryview, version: int) -> FetchRequest:
    """Parse the body of a Fetch request. Raises: MalformedRequestError."""
    try:
        flexible = version >= FLEXIBLE_FROM
        position = 0 if version >= 15 else _REPLICA.size
        wait_ms_max, bytes_min, bytes_max, isolation_level = _WAIT.unpack_from(body, position)
        position += _WAIT.size
        session_id, session_epoch = 0, -1
        if version >= SESSIONS_FROM:
            session_id, session_epoch = _SESSION.unpack_from(body, position)
            position += _SESSION.size
        partitions: list[FetchPartition] = []
        spans: list[Span] = []
        count, position = read_count(body, position, flexible=flexible)
        for _ in range(count):
            position = _parse_topic(body, position, version, partitions, spans)
        forgotten: list[tuple[str | bytes, int]] = []
        if version >= SESSIONS_FROM:
            count, position = read_count(body, position, flexible=flexible)
            for _ in range(count):
                position = _parse_forgotten(body, position, version, forgotten)
        rack: str | None = ""
        if version >= 11:
            rack, position = read_string(body, position, flexible=flexible)
        return FetchRequest(
            wait_ms_max,
            bytes_min,
            bytes_max,
            isolation_level,
            session_id,
            session_epoch,
            partitions,
            forgotten,
            rack or "",
            spans,
        )
    except MALFORMED as error:
        raise malformed("Fetch", version, error) from error


def _read_topic(body: memoryview, position: int, version: int) -> tuple[str | bytes, int]:
    if version >= TOPIC_IDS_FROM:
        topic_id = bytes(body[position : position + 16])
        if len(topic_id) != 16:
            raise IndexError("topic id runs past the request")
        return topic_id, position + 16
    name, position = read_string(body, position, flexible=version >= FLEXIBLE_FROM)
    if name is None:
        raise ValueError("topic name is null")
    return name, position


def _parse_topic(
    body: memoryview,
    position: int,
    version: int,
    partitions: list[FetchPartition],
    spans: list[Span],
) -> int:
    topic, position = _read_topic(body, position, version)
    flexible = version >= FLEXIBLE_FROM
    count, position = read_count(body, position, flexible=flexible)
    if flexible:
        unpack, size = _PARTITION_V12.unpack_from, _PARTITION_V12.size
        for _ in range(count):
            start = position
            partition, epoch, offset, _last, _start, bytes_max = unpack(body, position)
            position += size
            # Mostly no tags: one zero byte.
            position = position + 1 if body[position] == 0 else skip_tags(body, position)
            spans.append(Span(start, start + 8, position))
            partitions.append(FetchPartition(topic, partition, offset, bytes_max, epoch))
        return skip_tags(body, position)
    for _ in range(count):
        start = position
        epoch = -1
        if version >= 9:
            partition, epoch, offset, _start, bytes_max = _PARTITION_V9.unpack_from(body, position)
            position += _PARTITION_V9.size
        elif version >= 5:
            partition, offset, _start, bytes_max = _PARTITION_V5.unpack_from(body, position)
            position += _PARTITION_V5.size
        else:
            partition, offset, bytes_max = _PARTITION_V4.unpack_from(body, position)
            position += _PARTITION_V4.size
        spans.append(Span(start, start + (8 if version >= 9 else 4), position))
        partitions.append(FetchPartition(topic, partition, offset, bytes_max, epoch))
    return position


def _parse_forgotten(
    body: memoryview, position: int, version: int, forgotten: list[tuple[str | bytes, int]]
) -> int:
    flexible = version >= FLEXIBLE_FROM
    topic, position = _read_topic(body, position, version)
    count, position = read_count(body, position, flexible=flexible)
    for _ in range(count):
        forgotten.append((topic, INT32.unpack_from(body, position)[0]))
        position += 4
    return skip_tags(body, position) if flexible else position


def encode_fetch(
    partitions: list[PartitionData],
    version: int,
    *,
    error_code: int = 0,
    session_id: int = 0,
    read_committed: bool = False,
) -> list[Buffer | FileRegion]:
    """The body of a Fetch response: buffers for one vectored write, and regions of files.

    Args:
        partitions: those of one topic adjacent to one another.
        read_committed: then the list of aborted transactions is empty, else null.
    """
    flexible = version >= FLEXIBLE_FROM
    parts: list[Buffer | FileRegion] = []
    head = bytearray(
        _HEAD_V7.pack(0, error_code, session_id) if version >= SESSIONS_FROM else b"\0\0\0\0"
    )
    # No records; and no tags.
    empty = b"\x01\0" if flexible else b"\0\0\0\0"
    groups = _by_topic(partitions)
    head += count_bytes(len(groups), flexible=flexible)
    for group in groups:
        topic = group[0].topic
        head += topic if isinstance(topic, bytes) else string_bytes(topic, flexible=flexible)
        head += count_bytes(len(group), flexible=flexible)
        for data in group:
            if flexible:
                head += _ANSWER_V12.pack(
                    data.partition,
                    data.error_code,
                    data.high_watermark,
                    data.last_stable_offset,
                    data.log_start_offset,
                    read_committed,  # the list's length and one, or null
                    data.preferred_read_replica,
                )
            else:
                head += _classic_answer(data, version, read_committed=read_committed)
            length = data.length
            if not length:
                head += empty
                continue
            head += uvarint(length + 1) if flexible else INT32.pack(length)
            parts.append(head)
            parts += data.views
            head = bytearray(b"\0" if flexible else b"")
        if flexible:
            head.append(0)
    if flexible:
        head.append(0)
    if head:
        parts.append(head)
    return parts


def _classic_answer(data: PartitionData, version: int, *, read_committed: bool) -> bytes:
    """A partition's answer before version 12, up to its records."""
    answer = _ANSWER_V4.pack(
        data.partition, data.error_code, data.high_watermark, data.last_stable_offset
    )
    if version >= 5:
        answer += INT64.pack(data.log_start_offset)
    answer += INT32.pack(0 if read_committed else -1)
    if version >= 11:
        answer += INT32.pack(data.preferred_read_replica)
    return answer


def _by_topic(partitions: list[PartitionData]) -> list[list[PartitionData]]:
    groups: list[list[PartitionData]] = []
    previous: str | bytes | None = None
    for data in partitions:
        if data.topic != previous:
            groups.append([])
            previous = data.topic
        groups[-1].append(data)
    return groups
