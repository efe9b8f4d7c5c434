"""Arrow columns into record batches.

The slow twin is `penstock.records.encode.encode_batch`.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy import int64, uint8

from penstock.kernels import build
from penstock.kernels.arrays import Int32s, Int64s, Uint8s
from penstock.kernels.columns import bytes_column, header_columns, int64_column
from penstock.kernels.compress import compress
from penstock.model.errors import InvalidRequestError
from penstock.records.batch import CRC_FROM, HEADER_BYTES, LENGTH_END, LOG_APPEND_TIME
from penstock.records.decode import CODECS

BATCH_BYTES: Final = 512 << 10
"""Bytes of a batch before it is compressed, unless one record is larger."""
BATCH_RECORDS: Final = 10_000
STRETCH_BYTES: Final = 256 << 20
"""Rows of at most about so many bytes are written at a time."""
_CRC: Final = Struct(">I")
_LENGTH: Final = Struct(">i")


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """One batch, and what a commit says of it. Timestamps in ms since the epoch."""

    body: memoryview
    record_count: int
    max_timestamp: int

    @property
    def length(self) -> int:
        """Size in bytes."""
        return len(self.body)


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns as kernels read them, looked at once however often rows of them are encoded.

    Args:
        sizes: per row at least its bytes as a record in a batch of its own.
    """

    keys: build.Bytes
    values: build.Bytes
    timestamps: Int64s
    header_ends: Int32s
    header_names: build.Bytes
    header_values: build.Bytes
    sizes: Int64s

    @classmethod
    def of(
        cls, keys: pa.Array, values: pa.Array, timestamps: pa.Array, headers: pa.Array | None = None
    ) -> "Rows":
        """
        Args:
            keys, values: Arrow columns of binary or string; None: nulls.
            timestamps: int64 ms since the epoch, an Arrow column without nulls or a numpy array.
            headers: an Arrow column list<struct<key: string, value: binary>>, or None.

        Raises:
            InvalidRequestError: a header has no name.
        """
        times = int64_column(timestamps)
        count = len(times)
        key_column, value_column = bytes_column(keys, count), bytes_column(values, count)
        try:
            header_ends, names, header_values = header_columns(headers, count)
        except ValueError as error:
            raise InvalidRequestError("encode records", "headers", str(error)) from error
        sizes = _row_bytes(key_column, value_column, header_ends, names, header_values)
        return cls(key_column, value_column, times, header_ends, names, header_values, sizes)


def encode(
    keys: pa.Array,
    values: pa.Array,
    timestamps: pa.Array,
    headers: pa.Array | None = None,
    *,
    codec: str = "none",
    rows: Int64s | None = None,
    base_offset: int = 0,
    batch_bytes: int = BATCH_BYTES,
    batch_records: int = BATCH_RECORDS,
    message_bytes_max: int = 2**31 - 1,
    log_append_ms: int = -1,
) -> list[EncodedBatch]:
    """Encode rows of columns; arguments as of `Rows.of` and `encode_rows`."""
    return encode_rows(
        Rows.of(keys, values, timestamps, headers),
        codec=codec,
        rows=rows,
        base_offset=base_offset,
        batch_bytes=batch_bytes,
        batch_records=batch_records,
        message_bytes_max=message_bytes_max,
        log_append_ms=log_append_ms,
    )


def encode_rows(
    columns: Rows,
    *,
    codec: str = "none",
    rows: Int64s | None = None,
    base_offset: int = 0,
    batch_bytes: int = BATCH_BYTES,
    batch_records: int = BATCH_RECORDS,
    message_bytes_max: int = 2**31 - 1,
    log_append_ms: int = -1,
) -> list[EncodedBatch]:
    """Encode rows, in order, as batches without a producer.

    Args:
        codec: one of `penstock.records.decode.CODECS`.
        rows: which rows, in which order; None: all.
        base_offset: of the first batch; the others follow on.
        batch_bytes: a batch is not larger before it is compressed, save one of a single record.
        batch_records: the most records in a batch.
        message_bytes_max: what a topic takes: `max.message.bytes`.
        log_append_ms: the stamp of a LogAppendTime topic; -1: records keep their timestamps.

    Raises:
        InvalidRequestError: a batch of one record is larger than `message_bytes_max`.
    """
    count = len(columns.timestamps)
    if rows is None:
        rows = np.arange(count, dtype=int64)
    assert not len(rows) or (rows.min() >= 0 and rows.max() < count)
    codec_number = CODECS.index(codec)
    attributes = codec_number | (LOG_APPEND_TIME if log_append_ms >= 0 else 0)
    encoded: list[EncodedBatch] = []
    for stretch, room in _stretches(rows, columns.sizes):
        out = np.empty(room, dtype=uint8)
        batches = np.empty((len(stretch), build.BATCH_COLUMNS), dtype=int64)
        batch_count, used = build.write_batches(
            columns.keys,
            columns.values,
            columns.timestamps,
            columns.header_ends,
            columns.header_names,
            columns.header_values,
            stretch,
            min(batch_bytes, message_bytes_max),
            batch_records,
            base_offset,
            attributes,
            log_append_ms,
            out,
            batches,
        )
        assert used <= room, (used, room)
        base_offset += len(stretch)
        encoded += _finished(out, batches[:batch_count], codec_number, message_bytes_max, stretch)
    return encoded


def _finished(
    out: Uint8s,
    batches: Int64s,
    codec: int,
    message_bytes_max: int,
    rows: Int64s,
) -> list[EncodedBatch]:
    view = memoryview(out.data)
    finished = []
    for position, size, count, newest, first in batches.tolist():
        body = view[position : position + size]
        if codec:
            block = compress(codec, body[HEADER_BYTES:])
            joined = bytearray(HEADER_BYTES + len(block))
            joined[:HEADER_BYTES] = body[:HEADER_BYTES]
            joined[HEADER_BYTES:] = block
            body = memoryview(joined)
            _LENGTH.pack_into(body, 8, len(body) - LENGTH_END)
        if len(body) > message_bytes_max:
            if size > message_bytes_max:
                raise InvalidRequestError(
                    "encode records",
                    f"row {rows[first]}",
                    f"a batch of {len(body)} bytes; max.message.bytes is {message_bytes_max}",
                )
            # What compresses badly grows by a little; without the codec it fits.
            body = view[position : position + size]
            out[position + 22] &= ~uint8(7)
        _CRC.pack_into(body, 17, crc32c(body[CRC_FROM:]))
        finished.append(EncodedBatch(body, count, newest))
    return finished


def _row_bytes(
    keys: build.Bytes,
    values: build.Bytes,
    header_ends: Int32s,
    names: build.Bytes,
    header_values: build.Bytes,
) -> Int64s:
    """Return how many bytes each row has as a record, at least."""
    sizes = (
        np.diff(keys[1]).astype(int64)
        + np.diff(values[1])
        + (build.RECORD_OVERHEAD_BYTES + HEADER_BYTES)
    )
    if len(header_ends) > 1:
        each = np.zeros(len(names[1]), dtype=int64)
        np.cumsum(
            np.diff(names[1]).astype(int64)
            + np.diff(header_values[1])
            + build.HEADER_OVERHEAD_BYTES,
            out=each[1:],
        )
        sizes += np.diff(each[header_ends])
    return sizes


def _stretches(rows: Int64s, sizes: Int64s) -> list[tuple[Int64s, int]]:
    """Rows in stretches that need bounded room, with the room of each."""
    ends = np.cumsum(sizes[rows])
    stretches = []
    first = done = 0
    while first < len(rows):
        last = max(first + 1, int(np.searchsorted(ends, done + STRETCH_BYTES, side="right")))
        stretches.append((rows[first:last], int(ends[last - 1]) - done))
        first, done = last, int(ends[last - 1])
    return stretches
