"""Fetch requests and responses, versions 4 to 18, by hand: record bytes are passed on as views.

Source: FetchRequest.json and FetchResponse.json of Apache Kafka 4; KIP-227 (sessions), KIP-392
(preferred replica), KIP-516 (topic ids), KIP-903 (replica state).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from typing_extensions import Buffer

from penstock.kafka.wire.decode import ITEMS_MAX
from penstock.kafka.wire.fetch_repeat import Span
from penstock.kafka.wire.primitives import (
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
from penstock.model.steps import Steps, at_once

STEP_ITEMS: Final = 1_000
"""Topics and partitions that are read, or written, at a time: more than most consumers have, which
are answered without a pause."""
ITEM_COST: Final = 10
"""So many are read, or written, in the time of one item of a turn (`penstock.system.turns`)."""
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
_ABORTED: Final = Struct(">qq")
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
    aborted: Sequence[tuple[int, int]] = ()
    """Producer ids and first offsets of aborted transactions, for a reader of committed records."""
    preferred_read_replica: int = -1
    """A broker that is nearer to the client; then it is given nothing here (KIP-392)."""


def fetch_steps(body: memoryview, version: int) -> Steps[FetchRequest]:
    """Parse the body of a Fetch request, with a pause after every STEP_ITEMS topics and partitions.

    Raises: MalformedRequestError.
    """
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

        # Mostly there are none, of either: a session's request names what has changed.
        count, position = read_count(body, position, flexible=flexible)
        if count:

            def read_partitions(topic: str | bytes, position: int, count: int) -> int:
                return _parse_partitions(body, position, version, topic, count, partitions, spans)

            position = yield from _topic_steps(body, position, version, count, read_partitions)
        forgotten: list[tuple[str | bytes, int]] = []
        count = 0
        if version >= SESSIONS_FROM:
            count, position = read_count(body, position, flexible=flexible)
        if count:

            def read_forgotten(topic: str | bytes, position: int, count: int) -> int:
                return _parse_forgotten(body, position, topic, count, forgotten)

            position = yield from _topic_steps(body, position, version, count, read_forgotten)
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


def _topic_steps(
    body: memoryview,
    position: int,
    version: int,
    count: int,
    read: Callable[[str | bytes, int, int], int],
) -> Steps[int]:
    """Read `count` topics with partitions; gives the position after them.

    Args:
        read: takes a topic, the position of some of its partitions and how many they are; gives
            the position after them.
    """
    flexible = version >= FLEXIBLE_FROM
    items, left = count, STEP_ITEMS
    for _ in range(count):
        topic, position = _read_topic(body, position, version)
        wanted, position = read_count(body, position, flexible=flexible)
        items += wanted
        if items > ITEMS_MAX:
            raise ValueError(f"{items} topics and partitions, {ITEMS_MAX} items allowed")
        while wanted > left:
            position = read(topic, position, left)
            wanted -= left
            left = STEP_ITEMS
            yield STEP_ITEMS // ITEM_COST
        position = read(topic, position, wanted)
        if flexible:
            position = skip_tags(body, position)
        left -= wanted + 1
        if left <= 0:
            left = STEP_ITEMS
            yield STEP_ITEMS // ITEM_COST
    return position


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


def _parse_partitions(
    body: memoryview,
    position: int,
    version: int,
    topic: str | bytes,
    count: int,
    partitions: list[FetchPartition],
    spans: list[Span],
) -> int:
    if version >= FLEXIBLE_FROM:
        unpack, size = _PARTITION_V12.unpack_from, _PARTITION_V12.size
        for _ in range(count):
            start = position
            partition, epoch, offset, _last, _start, bytes_max = unpack(body, position)
            position += size
            # Mostly no tags: one zero byte.
            position = position + 1 if body[position] == 0 else skip_tags(body, position)
            spans.append(Span(start, start + 8, position))
            partitions.append(FetchPartition(topic, partition, offset, bytes_max, epoch))
        return position
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
    body: memoryview,
    position: int,
    topic: str | bytes,
    count: int,
    forgotten: list[tuple[str | bytes, int]],
) -> int:
    for _ in range(count):
        forgotten.append((topic, INT32.unpack_from(body, position)[0]))
        position += INT32.size
    return position


def encode_fetch(
    partitions: list[PartitionData],
    version: int,
    *,
    error_code: int = 0,
    session_id: int = 0,
    read_committed: bool = False,
) -> list[Buffer | FileRegion]:
    """The body of a Fetch response, at once; see `answer_steps`."""
    return at_once(
        answer_steps(
            partitions,
            version,
            error_code=error_code,
            session_id=session_id,
            read_committed=read_committed,
        )
    )


def answer_steps(
    partitions: list[PartitionData],
    version: int,
    *,
    error_code: int = 0,
    session_id: int = 0,
    read_committed: bool = False,
) -> Steps[list[Buffer | FileRegion]]:
    """The body of a Fetch response: buffers for one vectored write, and regions of files. With a
    pause after every STEP_ITEMS partitions.

    Args:
        partitions: those of one topic adjacent to one another.
        read_committed: then there is a list of aborted transactions, else it is null.
    """
    flexible = version >= FLEXIBLE_FROM
    parts: list[Buffer | FileRegion] = []
    head = bytearray(
        _HEAD_V7.pack(0, error_code, session_id) if version >= SESSIONS_FROM else b"\0\0\0\0"
    )
    # No records; and no tags.
    empty = b"\x01\0" if flexible else b"\0\0\0\0"
    groups = yield from _by_topic(partitions)
    left = STEP_ITEMS
    head += count_bytes(len(groups), flexible=flexible)
    for group in groups:
        topic = group[0].topic
        head += topic if isinstance(topic, bytes) else string_bytes(topic, flexible=flexible)
        head += count_bytes(len(group), flexible=flexible)
        for start in range(0, len(group), STEP_ITEMS):
            some = group[start : start + STEP_ITEMS]
            for data in some:
                if flexible and not data.aborted:
                    head += _ANSWER_V12.pack(
                        data.partition,
                        data.error_code,
                        data.high_watermark,
                        data.last_stable_offset,
                        data.log_start_offset,
                        read_committed,  # the list's length and one, or null
                        data.preferred_read_replica,
                    )
                elif flexible:
                    head += _answer_with_aborted(data)
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
            left -= len(some)
            if left <= 0:
                left = STEP_ITEMS
                yield STEP_ITEMS // ITEM_COST
        if flexible:
            head.append(0)
    if flexible:
        head.append(0)
    if head:
        parts.append(head)
    return parts


def _answer_with_aborted(data: PartitionData) -> bytes:
    """A partition's answer from version 12 on with aborted transactions, up to its records."""
    answer = _ANSWER_V4.pack(
        data.partition, data.error_code, data.high_watermark, data.last_stable_offset
    )
    answer += INT64.pack(data.log_start_offset) + uvarint(len(data.aborted) + 1)
    for producer_id, first_offset in data.aborted:
        answer += _ABORTED.pack(producer_id, first_offset) + b"\0"
    return answer + INT32.pack(data.preferred_read_replica)


def _classic_answer(data: PartitionData, version: int, *, read_committed: bool) -> bytes:
    """A partition's answer before version 12, up to its records."""
    answer = _ANSWER_V4.pack(
        data.partition, data.error_code, data.high_watermark, data.last_stable_offset
    )
    if version >= 5:
        answer += INT64.pack(data.log_start_offset)
    answer += INT32.pack(len(data.aborted) if read_committed else -1)
    for producer_id, first_offset in data.aborted:
        answer += _ABORTED.pack(producer_id, first_offset)
    if version >= 11:
        answer += INT32.pack(data.preferred_read_replica)
    return answer


def _by_topic(partitions: list[PartitionData]) -> Steps[list[list[PartitionData]]]:
    groups: list[list[PartitionData]] = []
    previous: str | bytes | None = None
    for start in range(0, len(partitions), 4 * STEP_ITEMS):
        for data in partitions[start : start + 4 * STEP_ITEMS]:
            if data.topic != previous:
                groups.append([])
                previous = data.topic
            groups[-1].append(data)
        if start:
            yield STEP_ITEMS // ITEM_COST
    return groups
