"""The rules of Kafka's log cleaner say which records and batches outlive a cleaning by key. Pure.

A record stays if no later one of its key was cleaned with it. A tombstone also needs that its
batch's delete horizon hasn't come; a batch that keeps a tombstone for the first time gets one,
`delete.retention.ms` from now (KIP-534). Records without a key go: a compacted topic accepts none,
and its present ones were written before it was compacted. Batches that lose all their records go
too, except for the last of each active producer, which has the producer's sequence, and the very
last one, which has the log's end.
Source: Kafka's Cleaner.cleanInto and LogCleaner, MemoryRecords.filterTo; KIP-534.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np

from penstock.kernels.arrays import Int64s, Uint8s
from penstock.kernels.index import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    LAST_DELTA,
    POSITION,
    PRODUCER_ID,
)
from penstock.kernels.keys import KeyChunk
from penstock.records.batch import DELETE_HORIZON

_EPOCH_SEQUENCE: Final = Struct(">51xhi")
_SEQUENCE_MASK: Final = 0x7FFFFFFF


@dataclass(slots=True, frozen=True, kw_only=True)
class Retention:
    """Values that are the same for a whole cleaning.

    `producers`: (epoch, last sequence) by id. `end_offset`: the end of the cleaned section.
    """

    now_ms: int
    delete_retention_ms: int
    log_start: int
    end_offset: int
    producers: dict[int, tuple[int, int]]


@dataclass(slots=True, frozen=True)
class Verdict:
    """Holds per record whether it is kept; per batch whether it is kept without records, and its
    new delete horizon or -1."""

    keep: Uint8s
    keep_empty: Uint8s
    delete_horizons: Int64s


def judge(chunk: KeyChunk, newest: Uint8s, rules: Retention) -> Verdict:
    """Apply the rules.

    Args:
        newest: per record, 0 where a later one has its key.
    """
    rows = chunk.batches.rows[chunk.first : chunk.last]
    has_horizon = rows[:, ATTRIBUTES] & DELETE_HORIZON != 0
    expired = has_horizon & (rows[:, BASE_TIMESTAMP] <= rules.now_ms)
    batch = chunk.batch_of - chunk.first
    tombstone = chunk.is_tombstone.astype(bool)
    keep = newest.astype(bool) & chunk.has_key.astype(bool) & (chunk.offsets >= rules.log_start)
    keep &= ~(tombstone & expired[batch])
    horizons = np.full(len(rows), -1, dtype=np.int64)
    first_kept = np.unique(batch[keep & tombstone])
    horizons[first_kept] = np.where(
        has_horizon[first_kept], -1, rules.now_ms + rules.delete_retention_ms
    )
    return Verdict(
        keep=keep.astype(np.uint8), keep_empty=_kept_empty(chunk, rules), delete_horizons=horizons
    )


def _kept_empty(chunk: KeyChunk, rules: Retention) -> Uint8s:
    rows = chunk.batches.rows[chunk.first : chunk.last]
    ends = rows[:, BASE_OFFSET] + rows[:, LAST_DELTA] + 1
    found: Uint8s = (ends == rules.end_offset).astype(np.uint8)
    producer_ids = rows[:, PRODUCER_ID]
    if not rules.producers:
        return found
    known = np.isin(producer_ids, np.fromiter(rules.producers, dtype=np.int64))
    for number in np.flatnonzero(known & (ends > rules.log_start)).tolist():
        epoch, base_sequence = _EPOCH_SEQUENCE.unpack_from(
            chunk.batches.view, int(rows[number, POSITION])
        )
        last_sequence = (base_sequence + int(rows[number, LAST_DELTA])) & _SEQUENCE_MASK
        if rules.producers[int(producer_ids[number])] == (epoch, last_sequence):
            found[number] = 1
    return found
