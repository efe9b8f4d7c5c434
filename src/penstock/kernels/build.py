"""Writing the records of batches, uncompressed, from Arrow's columns.

The slow twin is `penstock.records.encode.encode_batch`.
"""

from typing import Final

from penstock.kernels.arrays import Int32s, Int64s, Uint8s, wide
from penstock.kernels.bigendian import copy_bytes, write_int
from penstock.kernels.jit import kernel
from penstock.kernels.varints import varint_bytes, write_varint
from penstock.records.batch import HEADER_BYTES, LENGTH_END, MAGIC

RECORD_OVERHEAD_BYTES: Final = 40
"""More than a record can have besides its key, value and headers."""
HEADER_OVERHEAD_BYTES: Final = 10

BATCH_POSITION: Final = 0
BATCH_SIZE: Final = 1
BATCH_COUNT: Final = 2
BATCH_MAX_TIMESTAMP: Final = 3
BATCH_BASE_TIMESTAMP: Final = 4
BATCH_FIRST_ROW: Final = 5
BATCH_COLUMNS: Final = 6

Bytes = tuple[Uint8s, Int32s, Uint8s]
"""A binary column: data, offsets, and per row 1 where it isn't null."""


@kernel
def _field_bytes(column: Bytes, row: int) -> int:
    """Bytes of a field with its length."""
    if column[2][row] == 0:
        return 1
    size = wide(column[1][row + 1]) - wide(column[1][row])
    return varint_bytes(size) + size


@kernel
def _write_field(out: Uint8s, position: int, column: Bytes, row: int) -> int:
    if column[2][row] == 0:
        return write_varint(out, position, wide(-1))
    start = wide(column[1][row])
    size = wide(column[1][row + 1]) - start
    position = write_varint(out, position, size)
    copy_bytes(out, position, column[0], start, size)
    return position + size


@kernel
def write_batches(
    keys: Bytes,
    values: Bytes,
    timestamps: Int64s,
    header_ends: Int32s,
    header_names: Bytes,
    header_values: Bytes,
    rows: Int64s,
    batch_bytes_max: int,
    batch_records_max: int,
    base_offset: int,
    attributes: int,
    stamp: int,
    out: Uint8s,
    batches: Int64s,
) -> tuple[int, int]:
    """Write rows as batches back to back, without CRC: (batches, bytes).

    A batch ends before the record that would make it larger than `batch_bytes_max`; a record that
    is larger alone has one of its own.

    Args:
        header_ends: shape (columns' rows + 1,); of length 1 where there are no headers.
        rows: which rows to write, in this order.
        attributes: of each batch.
        stamp: log append time in ms, or -1.
        out: room for all.
        batches: shape (len(rows), BATCH_COLUMNS), filled from the front.
    """
    position = wide(0)
    count = 0
    start = wide(0)
    in_batch = wide(0)
    base_timestamp = wide(0)
    max_timestamp = wide(0)
    first_row = wide(0)
    offset = base_offset
    for index in range(len(rows)):
        row = rows[index]
        timestamp = timestamps[row]
        first_header = wide(0)
        end_header = wide(0)
        if len(header_ends) > 1:
            first_header = wide(header_ends[row])
            end_header = wide(header_ends[row + 1])
        fixed = wide(1) + _field_bytes(keys, row) + _field_bytes(values, row)
        fixed += varint_bytes(end_header - first_header)
        for header in range(first_header, end_header):
            fixed += _field_bytes(header_names, header) + _field_bytes(header_values, header)
        if in_batch:
            body = fixed + varint_bytes(timestamp - base_timestamp) + varint_bytes(in_batch)
            size = position - start + varint_bytes(body) + body
            if size > batch_bytes_max or in_batch >= batch_records_max:
                _close(
                    out,
                    start,
                    position,
                    offset,
                    in_batch,
                    attributes,
                    base_timestamp,
                    max_timestamp,
                    stamp,
                    first_row,
                    batches,
                    count,
                )
                count += 1
                offset += in_batch
                in_batch = wide(0)
        if in_batch == 0:
            start = position
            position += HEADER_BYTES
            base_timestamp = timestamp
            max_timestamp = timestamp
            first_row = wide(index)
        body = fixed + varint_bytes(timestamp - base_timestamp) + varint_bytes(in_batch)
        position = write_varint(out, position, body)
        out[position] = 0
        position = write_varint(out, position + 1, timestamp - base_timestamp)
        position = write_varint(out, position, in_batch)
        position = _write_field(out, position, keys, row)
        position = _write_field(out, position, values, row)
        position = write_varint(out, position, end_header - first_header)
        for header in range(first_header, end_header):
            position = _write_field(out, position, header_names, header)
            position = _write_field(out, position, header_values, header)
        max_timestamp = max(max_timestamp, timestamp)
        in_batch += 1
    if in_batch:
        _close(
            out,
            start,
            position,
            offset,
            in_batch,
            attributes,
            base_timestamp,
            max_timestamp,
            stamp,
            first_row,
            batches,
            count,
        )
        count += 1
    return count, position


@kernel
def _close(
    out: Uint8s,
    start: int,
    end: int,
    base_offset: int,
    records: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    stamp: int,
    first_row: int,
    batches: Int64s,
    count: int,
) -> None:
    """Write a batch's header, but for the CRC."""
    if stamp >= 0:
        max_timestamp = stamp
    write_int(out, start, base_offset, 8)
    write_int(out, start + 8, end - start - LENGTH_END, 4)
    write_int(out, start + 12, 0, 4)
    out[start + 16] = MAGIC
    write_int(out, start + 17, 0, 4)
    write_int(out, start + 21, attributes, 2)
    write_int(out, start + 23, records - 1, 4)
    write_int(out, start + 27, base_timestamp, 8)
    write_int(out, start + 35, max_timestamp, 8)
    write_int(out, start + 43, -1, 8)
    write_int(out, start + 51, -1, 2)
    write_int(out, start + 53, -1, 4)
    write_int(out, start + 57, records, 4)
    batches[count, BATCH_POSITION] = start
    batches[count, BATCH_SIZE] = end - start
    batches[count, BATCH_COUNT] = records
    batches[count, BATCH_MAX_TIMESTAMP] = max_timestamp
    batches[count, BATCH_BASE_TIMESTAMP] = base_timestamp
    batches[count, BATCH_FIRST_ROW] = first_row
