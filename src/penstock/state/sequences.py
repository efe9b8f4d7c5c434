"""Idempotent producers: which batch is next, which is a duplicate, which is refused. Pure.

Per (partition, producer id) the last five ranges of sequences are known, as in Kafka (KIP-98).
Sequences are int32 and wrap from 2^31-1 to 0; all arithmetic here is modulo 2^31.
"""

import struct
from typing import Final

from penstock.state.answers import BatchStatus, Refusal

SEQUENCE_COUNT: Final = 1 << 31
"""Sequences are in [0, SEQUENCE_COUNT)."""
SEQUENCE_MASK: Final = SEQUENCE_COUNT - 1
RANGES_MAX: Final = 5
NO_SEQUENCE: Final = -1
"""Last sequence of a producer that has none in its epoch."""

_RANGES: Final = [struct.Struct(">" + "iiq" * count) for count in range(RANGES_MAX + 1)]
_RANGE_BYTES: Final = 16
_RANGE_FIELDS: Final = 3


class ProducerState:
    """One producer in one partition. Mutable: `record` moves it on.

    `ranges` is flat: first sequence, last sequence, base offset per range, the oldest first.
    `in_transaction`: a transaction of it is open that has records in the partition.
    """

    __slots__ = ("epoch", "in_transaction", "last_timestamp", "next_sequence", "ranges")

    def __init__(
        self,
        epoch: int,
        ranges: list[int],
        last_timestamp: int,
        *,
        in_transaction: bool = False,
    ) -> None:
        self.in_transaction = in_transaction
        self.epoch = epoch
        self.ranges = ranges
        self.last_timestamp = last_timestamp
        self.next_sequence = (ranges[-2] + 1) & SEQUENCE_MASK if ranges else 0

    def record(self, epoch: int, sequence: int, count: int, base_offset: int, time_ms: int) -> None:
        """Take note of a batch that was stored.

        Args:
            count: records of the batch; the last one's sequence is `sequence + count - 1`.
            time_ms: journal time.
        """
        end = sequence + count
        ranges = self.ranges
        if epoch != self.epoch:
            self.epoch = epoch
            ranges.clear()
        elif len(ranges) == RANGES_MAX * _RANGE_FIELDS:
            del ranges[:_RANGE_FIELDS]
        ranges += (sequence, (end - 1) & SEQUENCE_MASK, base_offset)
        self.next_sequence = end & SEQUENCE_MASK
        self.last_timestamp = time_ms

    def end_transaction(self, epoch: int, time_ms: int) -> None:
        """Take note of a marker: its epoch holds from now on, as in Kafka
        (ProducerAppendInfo.appendEndTxnMarker)."""
        self.in_transaction = False
        self.last_timestamp = time_ms
        if epoch != self.epoch:
            self.epoch = epoch
            self.ranges.clear()
            self.next_sequence = 0


def judge(state: ProducerState, epoch: int, sequence: int, count: int) -> tuple[BatchStatus, int]:
    """Decide what becomes of a batch of a known producer.

    Returns:
        (STORED, 0); (DUPLICATE, the first one's base offset); or (REFUSED, a Refusal).
    """
    if epoch < state.epoch:
        return BatchStatus.REFUSED, Refusal.FENCED_PRODUCER
    if epoch > state.epoch:
        if sequence == 0:
            return BatchStatus.STORED, 0
        return BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE
    last = (sequence + count - 1) & SEQUENCE_MASK
    ranges = state.ranges
    for index in range(0, len(ranges), _RANGE_FIELDS):
        if ranges[index] == sequence and ranges[index + 1] == last:
            return BatchStatus.DUPLICATE, ranges[index + 2]
    if sequence == state.next_sequence:
        return BatchStatus.STORED, 0
    # Also one that lies behind the last five: clients take "duplicate" as stored, and whether it
    # was can't be known any more. As Kafka answers (ProducerAppendInfo.checkSequence).
    return BatchStatus.REFUSED, Refusal.OUT_OF_ORDER_SEQUENCE


def pack_ranges(ranges: list[int]) -> bytes:
    """Ranges as `producers.sequences` holds them (docs/formats/journal.md)."""
    return _RANGES[len(ranges) // _RANGE_FIELDS].pack(*ranges)


def unpack_ranges(packed: bytes) -> list[int]:
    """The inverse of `pack_ranges`."""
    return list(_RANGES[len(packed) // _RANGE_BYTES].unpack(packed))
