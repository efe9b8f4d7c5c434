"""Record batches for tests: the one builder. What isn't asked for is as plain as a batch can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.records.batch import BatchLimits, NewBatch, patch_base_offset
from penstock.records.check import RecordCheck
from penstock.records.decode import Record
from penstock.records.encode import encode_batch

PLAIN = (-1, -1, -1)

ANY = BatchLimits(
    message_bytes_max=1 << 30,
    timestamp_before_max_ms=2**63 - 1,
    timestamp_after_max_ms=2**63 - 1,
    log_append_time=False,
    compacts=False,
)
"""Takes every valid batch."""


def make_batch(
    *values: bytes | None,
    keys: Iterable[bytes | None] | None = None,
    offset: int = 0,
    epoch: int | None = None,
    time: int = 5,
    step: int = 0,
    deltas: Sequence[int] | None = None,
    codec: str = "none",
    producer: tuple[int, int, int] = PLAIN,
) -> bytearray:
    """One batch with a record per value.

    Args:
        keys: of the records; none have one by default.
        offset: the batch's base offset.
        epoch: the leader epoch of its label; without it, the label is a producer's.
        time: of the first record; each is `step` ms after the one before.
        deltas: from the base offset to each record; one after another by default.
        producer: id, epoch and base sequence.
    """
    deltas = range(len(values)) if deltas is None else deltas
    keys = [None] * len(values) if keys is None else keys
    records = [
        Record(offset_delta=delta, timestamp=time + step * n, key=key, value=value, headers=())
        for n, (delta, key, value) in enumerate(zip(deltas, keys, values, strict=True))
    ]
    producer_id, producer_epoch, base_sequence = producer
    made = encode_batch(
        records,
        base_offset=offset,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    if epoch is not None:
        patch_base_offset(memoryview(made), offset, epoch)
    return made


def check_records(batch: NewBatch, limits: BatchLimits, now_ms: int) -> None:
    """Check a batch's records at once, however many there are, where a server does it in turns.

    Raises:
        BatchError: the records are refused (`RecordWalk.advance`).
    """
    if limits.validates:
        check = RecordCheck(batch, limits, now_ms)
        check.walk.advance()
        check.settle()
