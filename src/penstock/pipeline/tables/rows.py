"""Records as rows: the columns that every record has, and what of them can't be a row. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import Buffer

from penstock.kernels.decode import decode_chunks
from penstock.kernels.index import (
    BASE_OFFSET,
    LAST_DELTA,
    POSITION,
    SIZE,
    BatchIndex,
    check_crcs,
    index_batches,
)
from penstock.model.errors import CorruptDataError
from penstock.pipeline.tables.columns import HEADERS, TIMESTAMP

_TIMESTAMP_MS_MIN: Final = -62_135_596_800_000
_TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The years 1 to 9999: statistics and partitions of files are made by Python's calendar, which ends
there, and many engines' does. A producer that takes microseconds for milliseconds is beyond."""
_NO_TIMESTAMP: Final = -1
_BEYOND: Final = "its timestamp is beyond the years 1 to 9999"
_OF_A_BATCH: Final = re.compile(r"offsets \d+ to \d+, of a batch from \d+ ")
_COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP),
        pa.field("headers", HEADERS, nullable=False),
    ]
)
BAD_SCHEMA: Final = pa.schema([*RECORD_SCHEMA, pa.field("reason", pa.string(), nullable=False)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Some records of one partition, by offset. `rows`: RECORD_SCHEMA; `bad`: BAD_SCHEMA."""

    rows: pa.Table
    bad: pa.Table


def decode_records(body: Buffer, *, partition: int, start: int, end: int) -> Iterator[Records]:
    """The records with offsets in [start, end) of whole batches, in pieces of bounded size.

    Where a batch is what its producer sent, which its CRC says, and holds no records that anybody
    could read, it is one bad record, whose value is the whole batch.

    Raises:
        CorruptDataError: the bytes aren't batches, or a CRC differs.
    """
    index = index_batches(body, subject=f"partition {partition}")
    try:
        for chunk in _chunks(index, partition, start, end):
            yield _records(chunk, partition)
            start = chunk.column("offset")[-1].as_py() + 1
    except CorruptDataError:
        # Rare: batch by batch, then, from behind the chunks before.
        rows = index.rows
        for number in np.flatnonzero(rows[:, BASE_OFFSET] + rows[:, LAST_DELTA] >= start):
            batch = BatchIndex(index.data, index.view, rows[number : number + 1])
            yield from _decode_batch(batch, partition, start, end)


def is_one_record(reason: str) -> bool:
    """Whether a bad record of this reason is one record, with its own time, and not a whole batch
    or one whose time no column holds."""
    return reason != _BEYOND and _OF_A_BATCH.match(reason) is None


def _decode_batch(batch: BatchIndex, partition: int, start: int, end: int) -> Iterator[Records]:
    try:
        for chunk in _chunks(batch, partition, start, end):
            yield _records(chunk, partition)
    except CorruptDataError as error:
        check_crcs(batch.view, batch.rows, subject=f"partition {partition}")
        if isinstance(error.__cause__, MemoryError):
            raise
        yield _undecodable(batch, partition, start, end, error.detail)


def _chunks(index: BatchIndex, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
    return decode_chunks(
        index,
        start_offset=start,
        end_offset=end,
        columns=_COLUMNS,
        subject=f"partition {partition}",
    )


def _undecodable(batch: BatchIndex, partition: int, start: int, end: int, detail: str) -> Records:
    base = int(batch.rows[0, BASE_OFFSET])
    last = base + int(batch.rows[0, LAST_DELTA])
    position = int(batch.rows[0, POSITION])
    bad: dict[str, Any] = {
        "key": None,
        "value": bytes(batch.view[position : position + int(batch.rows[0, SIZE])]),
        "partition": partition,
        # A range may begin or end within a batch: each has a part of its offsets.
        "offset": max(base, start),
        "timestamp": None,
        "headers": [],
        "reason": f"offsets {max(base, start)} to {min(last, end - 1)}, of a batch from {base} to "
        f"{last} that can't be decoded: {detail}",
    }
    return Records(
        rows=RECORD_SCHEMA.empty_table(), bad=pa.Table.from_pylist([bad], schema=BAD_SCHEMA)
    )


def _records(chunk: pa.RecordBatch, partition: int) -> Records:
    timestamps_ms = chunk.column("timestamp").to_numpy()
    rows = pa.table(
        [
            chunk.column("key"),
            chunk.column("value"),
            pa.array(np.full(len(timestamps_ms), partition, np.int32)),
            chunk.column("offset"),
            pa.array(
                np.clip(timestamps_ms, _TIMESTAMP_MS_MIN, _TIMESTAMP_MS_MAX) * 1000,
                mask=timestamps_ms == _NO_TIMESTAMP,
                type=pa.int64(),
            ).cast(TIMESTAMP),
            chunk.column("headers").cast(HEADERS),
        ],
        schema=RECORD_SCHEMA,
    )
    beyond = (timestamps_ms > _TIMESTAMP_MS_MAX) | (timestamps_ms < _TIMESTAMP_MS_MIN)
    if not beyond.any():
        return Records(rows=rows, bad=BAD_SCHEMA.empty_table())
    # Clipped only so that the column could be made at all: a clipped record is not a row.
    return split_bad(rows, pa.array(beyond), _BEYOND)


def split_bad(rows: pa.Table, is_bad: pa.Array, reason: str | pa.Array) -> Records:
    """Rows without and with something wrong; `reason`: of all, or of each bad one in order."""
    bad = rows.filter(is_bad)
    reasons = pa.array([reason] * bad.num_rows, pa.string()) if isinstance(reason, str) else reason
    return Records(
        rows=rows.filter(pc.invert(is_bad)),
        bad=bad.append_column(BAD_SCHEMA.field("reason"), reasons),
    )
