"""The record batch of a transaction's marker: its bytes are a pure function of a few numbers. Pure.

A marker says in the log of a partition how a transaction of a producer ended there. It is a
control batch with one record (docs/formats/journal.md, "The marker"). No client sends it: fetch
makes it of a row of the state, and equal rows give equal bytes on every agent.

Source: Kafka's EndTransactionMarker and MemoryRecords.writeEndTransactionalMarker.
"""

from struct import Struct
from typing import Final

from crc32c import crc32c
from typing_extensions import Buffer

from penstock.records.batch import (
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    TRANSACTIONAL,
)

_RECORD: Final = Struct(">bbbbbhhbhib")
MARKER_BYTES: Final = HEADER_BYTES + _RECORD.size
"""The size of every marker's batch."""
_TYPE_FROM_END: Final = 10
"""The bytes of a marker from its type on: the value's length, the value, no headers."""
_CHECKED: Final = Struct(">hiqqqhii")
"""The header's fields from the attributes on, which the CRC is over together with the record."""
_ATTRIBUTES: Final = TRANSACTIONAL | CONTROL
_NO_SEQUENCE: Final = -1
_COORDINATOR_EPOCH: Final = 0
"""Consumers don't look at it, and what it is for is done by the journal's order."""


def marker_crc(*, producer_id: int, producer_epoch: int, commits: bool, time_ms: int) -> int:
    """The CRC-32C in a marker's header: the same in all partitions that one end marks."""
    return crc32c(_checked_bytes(producer_id, producer_epoch, time_ms) + _record_bytes(commits))


def marker_batch(
    *,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    commits: bool,
    time_ms: int,
) -> bytes:
    """Make a marker's batch, with its final offset.

    Args:
        time_ms: journal time of the entry that ended the transaction.

    Returns:
        MARKER_BYTES bytes.
    """
    header = HEADER.pack(
        base_offset,
        MARKER_BYTES - LENGTH_END,
        leader_epoch,
        MAGIC,
        marker_crc(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            commits=commits,
            time_ms=time_ms,
        ),
        _ATTRIBUTES,
        0,
        time_ms,
        time_ms,
        producer_id,
        producer_epoch,
        _NO_SEQUENCE,
        1,
    )
    return header + _record_bytes(commits)


def is_abort(batch: Buffer) -> bool:
    """Whether a marker says that its transaction was aborted."""
    data = bytes(batch)
    return data[-_TYPE_FROM_END : -_TYPE_FROM_END + 2] == b"\x00\x00"


def marker_with_horizon(batch: Buffer, horizon_ms: int) -> memoryview:
    """The same marker with a delete horizon (KIP-534), which takes the place of the base timestamp.
    Its record's timestamp stays what it is.

    Args:
        batch: of `marker_batch`.
    """
    fields = list(HEADER.unpack_from(batch))
    assert not fields[5] & DELETE_HORIZON
    # Its length, attributes and a timestamp delta of 0 are a byte each.
    rest = bytes(batch)[HEADER_BYTES + 3 :]
    delta = _varint(fields[7] - horizon_ms)
    record = _varint(1 + len(delta) + len(rest)) + b"\x00" + delta + rest
    fields[1] = HEADER_BYTES + len(record) - LENGTH_END
    fields[5] |= DELETE_HORIZON
    fields[7] = horizon_ms
    written = bytearray(HEADER.pack(*fields) + record)
    crc = crc32c(memoryview(written)[CRC_FROM:])
    written[CRC_FROM - 4 : CRC_FROM] = crc.to_bytes(4, "big")
    return memoryview(written)


def _checked_bytes(producer_id: int, producer_epoch: int, time_ms: int) -> bytes:
    return _CHECKED.pack(
        _ATTRIBUTES, 0, time_ms, time_ms, producer_id, producer_epoch, _NO_SEQUENCE, 1
    )


def _record_bytes(commits: bool) -> bytes:  # noqa: FBT001 - the type in the key
    # Lengths are zigzag varints: 16 bytes follow, a key of 4, a value of 6.
    return _RECORD.pack(32, 0, 0, 0, 8, 0, int(commits), 12, 0, _COORDINATOR_EPOCH, 0)


def _varint(number: int) -> bytes:
    """A signed number as records have it: zigzag, seven bits a byte."""
    raw = (number << 1) ^ (number >> 63)
    written = bytearray()
    while raw > 0x7F:
        written.append(raw & 0x7F | 0x80)
        raw >>= 7
    written.append(raw)
    return bytes(written)


assert _CHECKED.size == HEADER_BYTES - CRC_FROM
