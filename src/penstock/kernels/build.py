"""Writing the records of batches, uncompressed, from Arrow's columns.

The slow twin is `penstock.records.encode.encode_batch`.
"""

from typing import Final

from penstock.kernels.arrays import Int32s, Int64s, Uint8s, wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import copy_bytes, store, write_int
from penstock.kernels.varints import varint_bytes, write_varint
from penstock.records.batch import HEADER_BYTES, LENGTH_END, MAGIC

RECORD_OVERHEAD_BYTES: Final = 40
"""More than a record can have besides its key, value and headers."""
HEADER_OVERHEAD_BYTES: Final = 10

BATCH_POSITION: Final = 0
BATCH_SIZE: Final = 1
BATCH_COUNT: Final = 2
BATCH_MAX_TIMESTAMP: Final = 3
BATCH_FIRST_ROW: Final = 4
BATCH_COLUMNS: Final = 5

Bytes = tuple[Uint8s, Int32s, Uint8s]
"""A binary column: data, offsets, and per row 1 where it isn't null."""


@kernel
def _field_bytes(size: int) -> int:
    """Bytes of a field with its length; -1: null."""
    if size < 0:
        return 1
    return varint_bytes(size) + size


@kernel
def _write_field(target: int, position: int, source: int, start: int, size: int) -> int:
    position = write_varint(target, position, size)
    if size > 0:
        copy_bytes(target, position, source, start, size)
        position += size
    return position


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
    key_data, key_ends, key_valid = keys
    value_data, value_ends, value_valid = values
    name_data, name_ends, _ = header_names
    header_data, header_value_ends, header_valid = header_values
    key_source, value_source = key_data.ctypes.data, value_data.ctypes.data
    name_source, header_source = name_data.ctypes.data, header_data.ctypes.data
    target = out.ctypes.data
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
        key_at = wide(key_ends[row])
        key_bytes = wide(key_ends[row + 1]) - key_at if key_valid[row] else wide(-1)
        value_at = wide(value_ends[row])
        value_bytes = wide(value_ends[row + 1]) - value_at if value_valid[row] else wide(-1)
        first_header = wide(0)
        end_header = wide(0)
        if len(header_ends) > 1:
            first_header = wide(header_ends[row])
            end_header = wide(header_ends[row + 1])
        fixed = wide(1) + _field_bytes(key_bytes) + _field_bytes(value_bytes)
        fixed += varint_bytes(end_header - first_header)
        for header in range(first_header, end_header):
            fixed += _field_bytes(wide(name_ends[header + 1]) - wide(name_ends[header]))
            header_bytes = wide(header_value_ends[header + 1]) - wide(header_value_ends[header])
            fixed += _field_bytes(header_bytes if header_valid[header] else wide(-1))
        body = fixed + varint_bytes(timestamp - base_timestamp) + varint_bytes(in_batch)
        if in_batch and (
            position - start + varint_bytes(body) + body > batch_bytes_max
            or in_batch >= batch_records_max
        ):
            newest = stamp if stamp >= 0 else max_timestamp
            _write_header(
                target, start, position, offset, in_batch, attributes, base_timestamp, newest
            )
            batches[count, BATCH_POSITION] = start
            batches[count, BATCH_SIZE] = position - start
            batches[count, BATCH_COUNT] = in_batch
            batches[count, BATCH_MAX_TIMESTAMP] = newest
            batches[count, BATCH_FIRST_ROW] = first_row
            count += 1
            offset += in_batch
            in_batch = wide(0)
        if in_batch == 0:
            start = position
            position += HEADER_BYTES
            base_timestamp = timestamp
            max_timestamp = timestamp
            first_row = wide(index)
            body = fixed + 2
        position = write_varint(target, position, body)
        store(target, position, wide(0))
        position = write_varint(target, position + 1, timestamp - base_timestamp)
        position = write_varint(target, position, in_batch)
        position = _write_field(target, position, key_source, key_at, key_bytes)
        position = _write_field(target, position, value_source, value_at, value_bytes)
        position = write_varint(target, position, end_header - first_header)
        for header in range(first_header, end_header):
            at = wide(name_ends[header])
            size = wide(name_ends[header + 1]) - at
            position = _write_field(target, position, name_source, at, size)
            at = wide(header_value_ends[header])
            size = wide(header_value_ends[header + 1]) - at if header_valid[header] else wide(-1)
            position = _write_field(target, position, header_source, at, size)
        max_timestamp = max(max_timestamp, timestamp)
        in_batch += 1
    if in_batch:
        newest = stamp if stamp >= 0 else max_timestamp
        _write_header(target, start, position, offset, in_batch, attributes, base_timestamp, newest)
        batches[count, BATCH_POSITION] = start
        batches[count, BATCH_SIZE] = position - start
        batches[count, BATCH_COUNT] = in_batch
        batches[count, BATCH_MAX_TIMESTAMP] = newest
        batches[count, BATCH_FIRST_ROW] = first_row
        count += 1
    return count, position


@kernel
def _write_header(
    target: int,
    start: int,
    end: int,
    base_offset: int,
    records: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
) -> None:
    """Write a batch's header, but for the CRC."""
    write_int(target, start, base_offset, 8)
    write_int(target, start + 8, end - start - LENGTH_END, 4)
    write_int(target, start + 12, wide(0), 4)
    store(target, start + 16, wide(MAGIC))
    write_int(target, start + 17, wide(0), 4)
    write_int(target, start + 21, attributes, 2)
    write_int(target, start + 23, records - 1, 4)
    write_int(target, start + 27, base_timestamp, 8)
    write_int(target, start + 35, max_timestamp, 8)
    write_int(target, start + 43, wide(-1), 8)
    write_int(target, start + 51, wide(-1), 2)
    write_int(target, start + 53, wide(-1), 4)
    write_int(target, start + 57, records, 4)
