"""Finds the batches of a region, and reads their headers.

The slow twin is `penstock.records.batch.stored_header`, called batch by batch.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from crc32c import crc32c
from numpy import int64, uint8
from typing_extensions import Buffer

from penstock.kernels.arrays import Int64s, Uint8s, wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import read_int
from penstock.model.errors import CorruptDataError
from penstock.records.batch import CRC_FROM, HEADER_BYTES, LENGTH_END, MAGIC

POSITION: Final = 0
SIZE: Final = 1
BASE_OFFSET: Final = 2
LAST_DELTA: Final = 3
ATTRIBUTES: Final = 4
BASE_TIMESTAMP: Final = 5
MAX_TIMESTAMP: Final = 6
PRODUCER_ID: Final = 7
RECORD_COUNT: Final = 8
CRC: Final = 9
INDEX_COLUMNS: Final = 10

_FINE: Final = 0
_TRUNCATED: Final = 1
_BAD_SIZE: Final = 2
_BAD_MAGIC: Final = 3
_BAD_COUNT: Final = 4
_BAD_OFFSET: Final = 5
_FAULTS: Final = {
    _TRUNCATED: "the bytes end within a batch's header",
    _BAD_SIZE: "a batch's length doesn't fit into what is there",
    _BAD_MAGIC: "the batch isn't of magic 2",
    _BAD_COUNT: "the batch has a record count that its last offset delta denies",
    _BAD_OFFSET: "the batch's offsets aren't behind those of the batch before",
}

Rows = Int64s
"""Shape (batches, INDEX_COLUMNS)."""


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """The batches of `data`, a region of whole batches; `rows` as the constants above say."""

    data: Uint8s
    view: memoryview
    rows: Rows

    @property
    def end_offset(self) -> int:
        """One more than the last batch's last offset; 0 without batches."""
        if not len(self.rows):
            return 0
        return int(self.rows[-1, BASE_OFFSET] + self.rows[-1, LAST_DELTA]) + 1


def index_batches(buffer: Buffer, *, subject: str = "batches") -> BatchIndex:
    """Index a region of whole batches in offset order; there may be gaps, and empty batches.

    Args:
        buffer: whole batches back to back, with final base offsets.
        subject: what to name in an error.

    Raises:
        CorruptDataError: a header is not that of a stored batch.
    """
    view = memoryview(buffer).cast("B")
    data = np.frombuffer(view, dtype=uint8)
    rows = np.empty((min(64, len(data) // HEADER_BYTES + 1), INDEX_COLUMNS), dtype=int64)
    position = count = 0
    while True:
        count, position, fault = _index(data, position, rows, count)
        if fault != _FINE:
            raise CorruptDataError("read batches", f"{subject} at byte {position}", _FAULTS[fault])
        if position == len(data):
            return BatchIndex(data, view, rows[:count])
        # As many as the bytes seen so far make likely, and twice as many as there were at least.
        wanted = max(2 * len(rows), count * len(data) // max(position, 1) + 16)
        larger = np.empty((wanted, INDEX_COLUMNS), dtype=int64)
        larger[:count] = rows[:count]
        rows = larger


def check_crcs(view: memoryview, rows: Rows, *, subject: str = "batches") -> None:
    """Check the CRC-32C of some batches of a region.

    Args:
        view: the region.
        rows: those batches' in its index.

    Raises:
        CorruptDataError: one differs.
    """
    for position, size, crc in rows[:, (POSITION, SIZE, CRC)].tolist():
        if crc32c(view[position + CRC_FROM : position + size]) != crc:
            raise CorruptDataError(
                "read batches",
                f"{subject} at byte {position}",
                f"CRC-32C differs in a batch of {size} bytes",
            )


@kernel
def _index(data: Uint8s, position: int, rows: Rows, count: int) -> tuple[int, int, int]:
    """Fill rows from `position` on until they are full: (rows filled, position, fault)."""
    end = len(data)
    address = data.ctypes.data
    expected = wide(0)
    if count:
        expected = rows[count - 1, BASE_OFFSET] + rows[count - 1, LAST_DELTA] + 1
    while position < end and count < len(rows):
        if end - position < HEADER_BYTES:
            return count, position, _TRUNCATED
        size = read_int(address, position + 8, 4) + LENGTH_END
        if size < HEADER_BYTES or size > end - position:
            return count, position, _BAD_SIZE
        if data[position + 16] != MAGIC:
            return count, position, _BAD_MAGIC
        base_offset = read_int(address, position, 8)
        last_delta = read_int(address, position + 23, 4)
        records = read_int(address, position + 57, 4)
        # Compaction by key leaves fewer records than offsets, none at all too.
        if last_delta < 0 or records < 0 or records > last_delta + 1:
            return count, position, _BAD_COUNT
        if base_offset < expected or base_offset > 0x7FFFFFFF00000000:
            return count, position, _BAD_OFFSET
        expected = base_offset + last_delta + 1
        rows[count, POSITION] = position
        rows[count, SIZE] = size
        rows[count, BASE_OFFSET] = base_offset
        rows[count, LAST_DELTA] = last_delta
        rows[count, ATTRIBUTES] = read_int(address, position + 21, 2)
        rows[count, BASE_TIMESTAMP] = read_int(address, position + 27, 8)
        rows[count, MAX_TIMESTAMP] = read_int(address, position + 35, 8)
        rows[count, PRODUCER_ID] = read_int(address, position + 43, 8)
        rows[count, RECORD_COUNT] = records
        rows[count, CRC] = read_int(address, position + 17, 4) & 0xFFFFFFFF
        count += 1
        position += size
    return count, position, _FINE
