"""The rules of Kafka's log cleaner about transactions: which batches are aborted, which markers go.
Pure.

A batch of an aborted transaction loses all its records. A marker goes once a whole pass from the
log's start on has met no batch of its transaction: then it gets a delete horizon,
`delete.retention.ms` from now, and it goes at the first cleaning after that. A consumer that reads
records of a transaction so has as long to come to its marker.

Source: Kafka's CleanedTransactionMetadata and Cleaner.cleanInto; KIP-534.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.kernels.arrays import Int64s, Uint8s
from penstock.kernels.index import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    POSITION,
    PRODUCER_ID,
    RECORD_COUNT,
    SIZE,
    BatchIndex,
)
from penstock.kernels.keys import KeyChunk, emptied
from penstock.pipeline.ranges import AbortedBatches
from penstock.records.batch import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from penstock.records.markers import is_abort, marker_with_horizon

_GONE: Final = memoryview(b"")


class Transactions:
    """The transactions of one partition on the way through one cleaning.

    Args:
        aborted: flat, producer id, offsets of the first record and of the marker.
    """

    def __init__(self, aborted: Sequence[int], *, now_ms: int, delete_retention_ms: int) -> None:
        self._aborted = AbortedBatches()
        at = iter(aborted)
        for producer_id, first, marker in zip(at, at, at, strict=True):
            self._aborted.add((0, producer_id, first, marker))
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self._met: set[int] = set()
        """Producers of whose present transaction the last pass has met a batch."""
        self.gone_aborts: list[int] = []
        """Offsets of markers of aborts that the last pass has left out."""

    def aborted_rows(self, rows: Int64s) -> list[int]:
        """Return the rows of an index whose batches are of aborted transactions."""
        found = []
        for row in _marked(rows, TRANSACTIONAL):
            attributes, offset = int(rows[row, ATTRIBUTES]), int(rows[row, BASE_OFFSET])
            if self._aborted.holds(int(rows[row, PRODUCER_ID]), attributes, offset):
                found.append(row)
        return found

    def replaced(self, chunk: KeyChunk, keep_empty: Uint8s) -> dict[int, memoryview]:
        """Bytes that take the place of batches of a chunk, by their places in it; none: they go.
        To be asked for each chunk of the last pass, in order.

        Args:
            keep_empty: per batch of the chunk whether its header stays without records.
        """
        rows = chunk.batches.rows[chunk.first : chunk.last]
        aborted = set(self.aborted_rows(rows))
        found: dict[int, memoryview] = {}
        for at in _marked(rows, TRANSACTIONAL | CONTROL):
            producer_id = int(rows[at, PRODUCER_ID])
            if rows[at, ATTRIBUTES] & CONTROL == 0:
                self._met.add(producer_id)
                if at not in aborted:
                    continue
            elif producer_id in self._met:
                self._met.discard(producer_id)
                continue
            elif rows[at, RECORD_COUNT] and not rows[at, ATTRIBUTES] & DELETE_HORIZON:
                found[at] = marker_with_horizon(_batch(chunk.batches, rows, at), self._horizon_ms)
                continue
            elif rows[at, RECORD_COUNT] and rows[at, BASE_TIMESTAMP] > self._now_ms:
                continue
            batch = _batch(chunk.batches, rows, at)
            if rows[at, ATTRIBUTES] & CONTROL and rows[at, RECORD_COUNT] and is_abort(batch):
                self.gone_aborts.append(int(rows[at, BASE_OFFSET]))
            found[at] = emptied(batch) if keep_empty[at] else _GONE
        return found


def _marked(rows: Int64s, attributes: int) -> Iterable[int]:
    marked: list[int] = (rows[:, ATTRIBUTES] & attributes != 0).nonzero()[0].tolist()
    return marked


def _batch(index: BatchIndex, rows: Int64s, at: int) -> memoryview:
    start = int(rows[at, POSITION])
    return index.view[start : start + int(rows[at, SIZE])]
