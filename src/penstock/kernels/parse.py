"""The records of uncompressed blocks: finding their fields, and copying them into columns.

The slow twin is `penstock.records.decode.decode_batch`. Every length is checked against the
record, and the record against its block, before a byte is looked at.
"""

from typing import Final

from penstock.kernels.arrays import Int32s, Int64s, Uint8s, byte, wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import copy_bytes
from penstock.kernels.varints import read_varint

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, lengths of key and value, header count: a byte each."""

FINE: Final = 0
BAD_LENGTH: Final = 1
BAD_FIELD: Final = 2
BAD_OFFSET: Final = 3
BAD_HEADERS: Final = 4
BYTES_LEFT: Final = 5
BAD_COUNT: Final = 6
FAULTS: Final = {
    BAD_LENGTH: "a record is longer than what is left of its batch",
    BAD_FIELD: "a field of a record runs past its end",
    BAD_OFFSET: "a record's offset isn't behind the one before, or not within its batch",
    BAD_HEADERS: "a record's headers are malformed",
    BYTES_LEFT: "bytes are left behind the last field or the last record",
    BAD_COUNT: "a batch has more records than bytes for them",
}

BLOCK_START: Final = 0
BLOCK_END: Final = 1
BLOCK_BASE_OFFSET: Final = 2
BLOCK_LAST_DELTA: Final = 3
BLOCK_TIMESTAMP: Final = 4
"""Base of the timestamp deltas, or the stamp of all records where BLOCK_STAMPED is 1."""
BLOCK_STAMPED: Final = 5
BLOCK_COUNT: Final = 6
BLOCK_COLUMNS: Final = 7

FIELD_KEY_AT: Final = 0
FIELD_VALUE_AT: Final = 1
FIELD_HEADERS_AT: Final = 2
FIELD_HEADERS_END: Final = 3
FIELD_COLUMNS: Final = 4


@kernel
def read_record(
    address: int, position: int, block_end: int, previous: int, last_delta: int
) -> tuple[int, int, int, int, int, int, int, int]:
    """A record up to its headers: (fault, end, timestamp delta, offset delta, where its key is, the
    key's length, where its value is, the value's length); negative lengths are nulls.

    Args:
        position: where it begins, with its length, in a block that ends at `block_end`.
        previous: the offset delta of the record before, -1 for the first.
        last_delta: the batch's.
    """
    none = wide(0)
    length, position = read_varint(address, position, block_end)
    if position < 0 or length < 1 or length > block_end - position:
        return BAD_LENGTH, none, none, none, none, none, none, none
    end = position + length
    # The attributes byte is unused.
    timestamp_delta, position = read_varint(address, position + 1, end)
    if position < 0:
        return BAD_FIELD, none, none, none, none, none, none, none
    delta, position = read_varint(address, position, end)
    if position < 0:
        return BAD_FIELD, none, none, none, none, none, none, none
    if delta <= previous or delta > last_delta:
        return BAD_OFFSET, none, none, none, none, none, none, none
    key_length, key_at = read_varint(address, position, end)
    if key_at < 0 or key_length > end - key_at:
        return BAD_FIELD, none, none, none, none, none, none, none
    value_length, value_at = read_varint(address, key_at + max(key_length, none), end)
    if value_at < 0 or value_length > end - value_at:
        return BAD_FIELD, none, none, none, none, none, none, none
    return FINE, end, timestamp_delta, delta, key_at, key_length, value_at, value_length


@kernel
def find_fields(
    data: Uint8s,
    blocks: Int64s,
    start_offset: int,
    end_offset: int,
    offsets: Int64s,
    timestamps: Int64s,
    stamped: Int32s,
    places: Int64s,
    key_bytes: Int32s,
    value_bytes: Int32s,
    header_counts: Int32s,
) -> tuple[int, int, int]:
    """Find the records of blocks: (records kept, fault, block of the fault).

    Args:
        data: shape (bytes,).
        blocks: shape (blocks, BLOCK_COLUMNS).
        start_offset, end_offset: records outside are left out.
        places: shape (records, FIELD_COLUMNS), positions in `data`.
        key_bytes, value_bytes: lengths, -1 for null.
    """
    row = 0
    address = data.ctypes.data
    for block in range(len(blocks)):
        position = blocks[block, BLOCK_START]
        block_end = blocks[block, BLOCK_END]
        base_offset = blocks[block, BLOCK_BASE_OFFSET]
        last_delta = blocks[block, BLOCK_LAST_DELTA]
        base_timestamp = blocks[block, BLOCK_TIMESTAMP]
        is_stamped = blocks[block, BLOCK_STAMPED]
        count = blocks[block, BLOCK_COUNT]
        if count * RECORD_BYTES_MIN > block_end - position:
            return row, BAD_COUNT, block
        previous = wide(-1)
        for _ in range(count):
            fault, end, timestamp_delta, delta, key_at, key_length, value_at, value_length = (
                read_record(address, position, block_end, previous, last_delta)
            )
            if fault != FINE:
                return row, fault, block
            previous = delta
            position = value_at + max(value_length, wide(0))
            headers, position = read_varint(address, position, end)
            if position < 0 or headers < 0 or headers > end - position:
                return row, BAD_HEADERS, block
            headers_at = position
            for _ in range(headers):
                name_length, position = read_varint(address, position, end)
                if position < 0 or name_length < 0 or name_length > end - position:
                    return row, BAD_HEADERS, block
                position += name_length
                header_length, position = read_varint(address, position, end)
                if position < 0 or header_length > end - position:
                    return row, BAD_HEADERS, block
                position += max(header_length, wide(0))
            if position != end:
                return row, BYTES_LEFT, block
            offset = base_offset + delta
            if start_offset <= offset < end_offset:
                offsets[row] = offset
                timestamps[row] = base_timestamp + (0 if is_stamped else timestamp_delta)
                stamped[row] = is_stamped
                places[row, FIELD_KEY_AT] = key_at
                places[row, FIELD_VALUE_AT] = value_at
                places[row, FIELD_HEADERS_AT] = headers_at
                places[row, FIELD_HEADERS_END] = end
                key_bytes[row] = max(key_length, wide(-1))
                value_bytes[row] = max(value_length, wide(-1))
                header_counts[row] = headers
                row += 1
        if position != block_end:
            return row, BYTES_LEFT, block
    return row, FINE, 0


@kernel
def column_offsets(lengths: Int32s, out: Int32s, valid: Uint8s) -> tuple[int, int]:
    """Arrow offsets of fields of these lengths: (bytes of all, how many are null).

    Args:
        out: shape (fields + 1,).
        valid: one bit per field, the lowest first; zeroed by the caller.
    """
    total = wide(0)
    nulls = 0
    out[0] = 0
    for row in range(len(lengths)):
        length = lengths[row]
        if length < 0:
            nulls += 1
        else:
            total += length
            valid[row >> 3] |= byte(1 << (row & 7))
        out[row + 1] = total
    return total, nulls


@kernel
def copy_column(
    data: Uint8s,
    places: Int64s,
    field: int,
    offsets: Int32s,
    out: Uint8s,
) -> None:
    """Copy one field of all records one behind the other."""
    source, target = data.ctypes.data, out.ctypes.data
    for row in range(len(places)):
        at = offsets[row]
        copy_bytes(target, at, source, places[row, field], offsets[row + 1] - at)


@kernel
def find_headers(
    data: Uint8s,
    places: Int64s,
    counts: Int32s,
    header_places: Int64s,
    name_bytes: Int32s,
    value_bytes: Int32s,
) -> None:
    """Find the headers of records that `find_fields` has checked.

    Args:
        header_places: shape (headers, 2): where name and value begin.
    """
    header = 0
    address = data.ctypes.data
    for row in range(len(counts)):
        position = places[row, FIELD_HEADERS_AT]
        end = places[row, FIELD_HEADERS_END]
        for _ in range(counts[row]):
            name_length, position = read_varint(address, position, end)
            header_places[header, 0] = position
            name_bytes[header] = name_length
            position += name_length
            value_length, position = read_varint(address, position, end)
            header_places[header, 1] = position
            value_bytes[header] = max(value_length, wide(-1))
            position += max(value_length, wide(0))
            header += 1
