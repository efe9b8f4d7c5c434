"""The rows that kernels take for the records of batches, and the errors for their faults. No Arrow
here: compaction does without."""

import numpy as np
from numpy import int64

from penstock.kernels import parse
from penstock.kernels.arrays import Int64s
from penstock.kernels.index import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    LAST_DELTA,
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    SIZE,
)
from penstock.model.errors import CorruptDataError
from penstock.records.batch import HEADER_BYTES, LOG_APPEND_TIME


def blocks_of(rows: Int64s) -> Int64s:
    """Return the rows that `parse.find_fields` takes for batches that hold their blocks."""
    stamped = (rows[:, ATTRIBUTES] & LOG_APPEND_TIME) != 0
    blocks = np.empty((len(rows), parse.BLOCK_COLUMNS), dtype=int64)
    blocks[:, parse.BLOCK_START] = rows[:, POSITION] + HEADER_BYTES
    blocks[:, parse.BLOCK_END] = rows[:, POSITION] + rows[:, SIZE]
    blocks[:, parse.BLOCK_BASE_OFFSET] = rows[:, BASE_OFFSET]
    blocks[:, parse.BLOCK_LAST_DELTA] = rows[:, LAST_DELTA]
    blocks[:, parse.BLOCK_TIMESTAMP] = np.where(
        stamped, rows[:, MAX_TIMESTAMP], rows[:, BASE_TIMESTAMP]
    )
    blocks[:, parse.BLOCK_STAMPED] = stamped
    blocks[:, parse.BLOCK_COUNT] = rows[:, RECORD_COUNT]
    return blocks


def corrupt(fault: int, block: Int64s, subject: str) -> CorruptDataError:
    """The error for a fault of `parse` in a block."""
    offset = block[parse.BLOCK_BASE_OFFSET]
    return CorruptDataError(
        "decode batch", f"{subject}, batch of offset {offset}", parse.FAULTS[fault]
    )
