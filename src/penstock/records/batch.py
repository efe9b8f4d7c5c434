"""The header of a record batch (magic 2): parsing, checking, and patching what the CRC leaves out.

Layout, big-endian (source: Kafka docs, "Record Batch"):

| offset | size | field                                                                        |
| ---    | ---  | ---                                                                          |
| 0      | 8    | base offset (outside the CRC)                                                |
| 8      | 4    | batch length: bytes that follow this field                                   |
| 12     | 4    | partition leader epoch (outside the CRC)                                     |
| 16     | 1    | magic, 2                                                                     |
| 17     | 4    | CRC-32C of everything from the attributes on                                 |
| 21     | 2    | attributes: 0-2 codec, 3 log append time, 4 transactional, 5 control,        |
|        |      | 6 the base timestamp is the delete horizon (KIP-534)                         |
| 23     | 4    | last offset delta                                                            |
| 27     | 8    | base timestamp, ms                                                           |
| 35     | 8    | max timestamp, ms                                                            |
| 43     | 8    | producer id, -1: none                                                        |
| 51     | 2    | producer epoch                                                               |
| 53     | 4    | base sequence                                                                |
| 57     | 4    | record count                                                                 |
| 61     |      | records, compressed as one block                                             |
"""

import enum
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c
from typing_extensions import Buffer

from penstock.model.errors import CorruptDataError

HEADER_BYTES: Final = 61
LENGTH_END: Final = 12
"""Batch length counts from here: a batch's size is LENGTH_END + batch length."""
CRC_FROM: Final = 21
MAGIC: Final = 2
NO_TIMESTAMP: Final = -1
TIMESTAMP_MAX: Final = (1 << 63) - 1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
ZSTD: Final = 4
CODEC_MAX: Final = ZSTD

HEADER: Final = Struct(">qiibIhiqqqhii")
_OFFSET_LENGTH: Final = Struct(">qi")
_OFFSET: Final = Struct(">q")
_UINT32: Final = Struct(">I")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


class BatchFault(enum.Enum):
    """Kinds of faults in a batch that a client sent."""

    TRUNCATED = "truncated"
    """Nothing, or the beginning of a batch."""
    LENGTH = "length"
    MAGIC = "magic"
    CRC = "crc"
    TOO_LARGE = "too large"
    INVALID = "invalid"
    TIMESTAMP = "timestamp"
    NULL_KEY = "null key"
    TRANSACTION = "transaction"


class RecordError(NamedTuple):
    """The reason to refuse one record of a batch; `record` counts from its first (KIP-467)."""

    record: int
    message: str


class BatchError(Exception):
    """A client's batch is refused; nothing of it was kept.

    `record_errors` names the records that are at fault, where the fault is theirs.
    """

    def __init__(
        self, fault: BatchFault, detail: str, record_errors: tuple[RecordError, ...] = ()
    ) -> None:
        self.fault = fault
        self.detail = detail
        self.record_errors = record_errors
        super().__init__(fault, detail, record_errors)

    def __str__(self) -> str:
        return self.detail


@dataclass(slots=True)
class NewBatch:
    """One checked batch on its way into the log.

    `view` is writable and holds the whole batch; its base offset is patched when the commit's
    answer is known. Not frozen: creating a frozen dataclass costs three times as much, and one
    is made for every batch.
    """

    view: memoryview
    length: int
    record_count: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    log_append_time: int
    """The stamp in ms for LogAppendTime topics, else -1."""
    crc: int
    """CRC in the header: checked, or computed where the batch was stamped."""
    is_transactional: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class BatchLimits:
    """Limits of what a topic accepts. Timestamps in ms; the difference limits are KIP-937's."""

    message_bytes_max: int
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    log_append_time: bool
    compacts: bool
    validates: bool = True
    """Whether records are looked at (`penstock.records.walk`), or headers alone."""
    records_max: int = 1_000_000
    """Records of one batch at most, and headers of all its records together."""
    decoded_bytes_max: int = 128 << 20
    """Bytes of a batch's records at most, decompressed."""
    takes_transactions: bool = False
    """Whether batches may be of a transaction."""


def check_batch(view: memoryview, limits: BatchLimits, now_ms: int) -> NewBatch:
    """Check the header of the one record batch that a produce request holds for a partition.

    Its records are `penstock.records.check`'s.

    Args:
        view: writable, the request's records of one partition.
        limits: the topic's.
        now_ms: the agent's clock, ms since the epoch.

    Returns:
        The batch, stamped if the topic is of LogAppendTime.

    Raises:
        BatchError: truncated, of another magic, damaged, too large or otherwise invalid.
    Source: Kafka's LogValidator; KIP-98 for the sequence fields; KIP-937 for timestamps.
    """
    size = len(view)
    if size < HEADER_BYTES:
        raise _short_or_old(view)
    (
        _base_offset,
        batch_length,
        _leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise BatchError(
            BatchFault.MAGIC, f"magic {magic}; only record batches of magic 2 are kept"
        )
    if batch_length + LENGTH_END != size:
        if HEADER_BYTES <= batch_length + LENGTH_END < size:
            # Kafka: since Produce v3, exactly one batch per partition.
            raise BatchError(BatchFault.INVALID, f"more than one batch in {size} bytes")
        fault = BatchFault.TRUNCATED if batch_length + LENGTH_END > size else BatchFault.LENGTH
        raise BatchError(fault, f"batch length says {batch_length + LENGTH_END} of {size} bytes")
    if size > limits.message_bytes_max:
        raise BatchError(
            BatchFault.TOO_LARGE,
            f"batch of {size} bytes; max.message.bytes is {limits.message_bytes_max}",
        )
    if crc32c(view[CRC_FROM:]) != crc:
        raise BatchError(BatchFault.CRC, f"CRC-32C differs in a batch of {size} bytes")
    if record_count <= 0 or last_offset_delta != record_count - 1:
        raise BatchError(
            BatchFault.INVALID,
            f"{record_count} records with last offset delta {last_offset_delta}",
        )
    is_transactional = attributes & TRANSACTIONAL != 0
    if attributes & (CONTROL | DELETE_HORIZON) or attributes & CODEC_MASK > CODEC_MAX:
        raise BatchError(
            BatchFault.INVALID, f"attributes {attributes:#x} are not a client's to send"
        )
    if is_transactional:
        if not limits.takes_transactions:
            raise BatchError(BatchFault.TRANSACTION, "a batch of a transaction is not taken here")
        if producer_id < 0:
            raise BatchError(BatchFault.INVALID, "a batch of a transaction has no producer id")
    if producer_id >= 0 and (producer_epoch < 0 or base_sequence < 0):
        raise BatchError(
            BatchFault.INVALID,
            f"producer {producer_id} with epoch {producer_epoch}, sequence {base_sequence}",
        )
    stamp = NO_TIMESTAMP
    if limits.log_append_time:
        stamp = max_timestamp = now_ms
        crc = _stamp(view, attributes, now_ms)
    else:
        if attributes & LOG_APPEND_TIME:
            raise BatchError(BatchFault.INVALID, "a client's batch is marked with log append time")
        if not limits.validates:
            _check_timestamps(limits, now_ms, base_timestamp, max_timestamp)
    return NewBatch(
        view,
        size,
        record_count,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        stamp,
        crc,
        is_transactional,
    )


def patch_base_offset(view: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write the offset that the commit gave, and the epoch of it. Outside the CRC."""
    _OFFSET.pack_into(view, 0, base_offset)
    _INT32.pack_into(view, LENGTH_END, leader_epoch)


def patch_run(run: memoryview, base_offset: int, leader_epoch: int, *, subject: str) -> int:
    """Write final base offsets into adjacent batches that still carry their producers'.

    Args:
        run: writable, whole batches.
        base_offset: of the first one.
        leader_epoch: that they were appended in.
        subject: what to name in an error.

    Returns:
        The offset after the last record.

    Raises:
        CorruptDataError: the bytes are not whole batches.
    """
    position, end, offset = 0, len(run), base_offset
    while position < end:
        if end - position < HEADER_BYTES:
            raise CorruptDataError("read run", subject, f"{end - position} bytes at {position}")
        size = LENGTH_END + _INT32.unpack_from(run, position + 8)[0]
        if not HEADER_BYTES <= size <= end - position:
            raise CorruptDataError("read run", subject, f"batch of {size} bytes at {position}")
        _OFFSET.pack_into(run, position, offset)
        _INT32.pack_into(run, position + LENGTH_END, leader_epoch)
        offset += _INT32.unpack_from(run, position + 23)[0] + 1
        position += size
    return offset


def batch_bounds(buffer: Buffer, position: int) -> tuple[int, int]:
    """(base offset, size in bytes) of the batch whose first 12 bytes lie at `position`."""
    base_offset, batch_length = _OFFSET_LENGTH.unpack_from(buffer, position)
    return base_offset, LENGTH_END + batch_length


def stored_header(buffer: Buffer, position: int) -> "StoredHeader":
    """The whole header of a stored batch at `position`."""
    fields = HEADER.unpack_from(buffer, position)
    return StoredHeader(
        base_offset=fields[0],
        leader_epoch=fields[2],
        length=LENGTH_END + fields[1],
        crc=fields[4],
        attributes=fields[5],
        end_offset=fields[0] + fields[6] + 1,
        base_timestamp=fields[7],
        max_timestamp=fields[8],
        producer_id=fields[9],
        record_count=fields[12],
        magic=fields[3],
    )


@dataclass(slots=True, frozen=True, kw_only=True)
class StoredHeader:
    """The header of a batch that is in the log; `length` is its whole size in bytes."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    length: int
    magic: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    record_count: int


def codec_of(batch: memoryview) -> int:
    """The compression codec of a whole batch, as in its attributes."""
    return batch[22] & CODEC_MASK


def crc_is_right(batch: memoryview) -> bool:
    """Whether a whole stored batch still has its CRC-32C."""
    return bool(crc32c(batch[CRC_FROM:]) == _UINT32.unpack_from(batch, 17)[0])


def _stamp(view: memoryview, attributes: int, now_ms: int) -> int:
    """Write the time of arrival into a batch; its new CRC."""
    _INT16.pack_into(view, 21, attributes | LOG_APPEND_TIME)
    return set_max_timestamp(view, now_ms)


def set_max_timestamp(view: memoryview, max_timestamp: int) -> int:
    """Write the greatest timestamp into a batch's header, in ms; its new CRC."""
    # It lies inside the CRC: this and the attributes are all that is ever rewritten at arrival.
    _INT64.pack_into(view, 35, max_timestamp)
    crc: int = crc32c(view[CRC_FROM:])
    _UINT32.pack_into(view, 17, crc)
    return crc


def _check_timestamps(
    limits: BatchLimits, now_ms: int, base_timestamp: int, max_timestamp: int
) -> None:
    """Check what the header alone says: the first record's timestamp, and the greatest."""
    if max_timestamp == NO_TIMESTAMP:
        return
    for timestamp in (base_timestamp, max_timestamp):
        problem = timestamp_problem(timestamp, limits, now_ms)
        if problem is not None:
            raise BatchError(BatchFault.TIMESTAMP, problem)


def timestamp_problem(timestamp: int, limits: BatchLimits, now_ms: int) -> str | None:
    """Say what is wrong with a record's timestamp, or None. NO_TIMESTAMP is always right."""
    if timestamp == NO_TIMESTAMP:
        return None
    if timestamp < 0:
        return f"timestamp {timestamp} ms lies before 1970"
    if timestamp - now_ms > limits.timestamp_after_max_ms:
        return (
            f"timestamp {timestamp} is {timestamp - now_ms} ms ahead of {now_ms}; "
            f"message.timestamp.after.max.ms is {limits.timestamp_after_max_ms}"
        )
    if timestamp > TIMESTAMP_MAX:
        return f"timestamp {timestamp} ms has more than 63 bits"
    if now_ms - timestamp > limits.timestamp_before_max_ms:
        return (
            f"timestamp {timestamp} is {now_ms - timestamp} ms behind {now_ms}; "
            f"message.timestamp.before.max.ms is {limits.timestamp_before_max_ms}"
        )
    return None


def _short_or_old(view: memoryview) -> BatchError:
    size = len(view)
    # Message sets of magic 0 and 1 can be shorter than a batch header; magic is at the same place.
    if size > 16 and view[16] in (0, 1):
        return BatchError(
            BatchFault.MAGIC, f"magic {view[16]}; only record batches of magic 2 are kept"
        )
    return BatchError(BatchFault.TRUNCATED, f"{size} bytes are less than a batch header of 61")
