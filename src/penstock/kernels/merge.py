"""The kernels of merging small batches; `penstock.kernels.merging` calls them.

The slow twin is in `tests/support/twins/merging.py`.
"""

from typing import Final

from penstock.kernels.arrays import Int64s, Uint8s, wide
from penstock.kernels.crc import crc_of
from penstock.kernels.index import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CRC,
    LAST_DELTA,
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    SIZE,
)
from penstock.kernels.jit import kernel
from penstock.kernels.lz4 import NOT_PLAIN, unpack_frame
from penstock.kernels.memory import copy_bytes, load, load_word, read_int, store
from penstock.kernels.varints import read_varint, varint_bytes, write_varint
from penstock.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
)
from penstock.records.merging import LARGE_BYTES, RECORD_BYTES_MIN

BLOCK_SOURCE: Final = 0
BLOCK_START: Final = 1
BLOCK_END: Final = 2
BLOCK_COLUMNS: Final = 3

STAYS: Final = -1
"""BLOCK_SOURCE of a batch that stays as it is; else where its records lie, uncompressed:"""
PENDING: Final = -2
"""Not decompressed yet, or where they lie:"""
IN_REGION: Final = 0
IN_ARENA: Final = 1

GROUP_FIRST: Final = 0
GROUP_LAST: Final = 1
GROUP_START: Final = 2
GROUP_END: Final = 3
GROUP_COUNT: Final = 4
"""Records, or STAYS where the batches stay as they are."""
GROUP_BASE_TIMESTAMP: Final = 5
GROUP_MAX_TIMESTAMP: Final = 6
GROUP_COLUMNS: Final = 7

RECORD_GROWTH_BYTES: Final = 20
"""More than a record can grow by longer deltas and a longer length."""

_LZ4: Final = 3
_FLAGS: Final = LOG_APPEND_TIME | DELETE_HORIZON
_APART: Final = CONTROL | TRANSACTIONAL
_INT32_MAX: Final = (1 << 31) - 1
_FINE: Final = 0
_NO_FIT: Final = 1
_NO_RECORDS: Final = 2


@kernel
def first_wrong_crc(data: Uint8s, rows: Int64s) -> int:
    """The first batch whose CRC-32C differs, or how many there are."""
    address = data.ctypes.data
    for row in range(len(rows)):
        start = rows[row, POSITION]
        if crc_of(address, start + CRC_FROM, start + rows[row, SIZE]) != rows[row, CRC]:
            return row
    return len(rows)


@kernel
def find_blocks(
    data: Uint8s, rows: Int64s, blocks: Int64s, out: Uint8s, used: int, bytes_max: int
) -> int:
    """Find where the records of batches lie uncompressed, and decompress LZ4: how much of `out` is
    used. What is compressed otherwise is marked as PENDING.

    Args:
        out: where it is decompressed, from `used` on.
    """
    source, target = data.ctypes.data, out.ctypes.data
    for row in range(len(rows)):
        attributes, size = rows[row, ATTRIBUTES], rows[row, SIZE]
        count = rows[row, RECORD_COUNT]
        start = rows[row, POSITION] + HEADER_BYTES
        end = rows[row, POSITION] + size
        codec = attributes & CODEC_MASK
        if attributes & _APART or size >= LARGE_BYTES or (count == 0 and end > start):
            blocks[row, BLOCK_SOURCE] = STAYS
            continue
        place = wide(IN_REGION)
        if codec != 0 and count > 0:
            place = wide(IN_ARENA)
            end = NOT_PLAIN
            if codec == _LZ4:
                end = unpack_frame(
                    source, start, rows[row, POSITION] + size, target, used, len(out)
                )
            if end == NOT_PLAIN:
                blocks[row, BLOCK_SOURCE] = PENDING
                continue
            start, used = used, end
        if count > 0 and (end - start > bytes_max or count * RECORD_BYTES_MIN > end - start):
            blocks[row, BLOCK_SOURCE] = STAYS
            continue
        blocks[row, BLOCK_SOURCE] = place
        blocks[row, BLOCK_START] = start
        blocks[row, BLOCK_END] = end
    return used


@kernel
def _read_head(address: int, position: int, block_end: int) -> tuple[int, int, int, int]:
    """A record up to its key: (its end or -1, timestamp delta, offset delta, where its key's length
    is). Its attributes are the byte after its length."""
    none = wide(0)
    length, position = read_varint(address, position, block_end)
    if position < 0 or length < 1 or length > block_end - position:
        return wide(-1), none, none, none
    end = position + length
    timestamp_delta, position = read_varint(address, position + 1, end)
    if position < 0:
        return wide(-1), none, none, none
    offset_delta, position = read_varint(address, position, end)
    if position < 0:
        return wide(-1), none, none, none
    return end, timestamp_delta, offset_delta, position


@kernel
def _is_rest(address: int, position: int, end: int) -> bool:
    """Whether these bytes are a key, a value and headers, and nothing else."""
    for _ in range(2):
        length, position = read_varint(address, position, end)
        if position < 0 or length > end - position:
            return False
        position += max(length, wide(0))
    headers, position = read_varint(address, position, end)
    if position < 0 or headers < 0 or headers > end - position:
        return False
    for _ in range(headers):
        length, position = read_varint(address, position, end)
        if position < 0 or length < 0 or length > end - position:
            return False
        position += length
        length, position = read_varint(address, position, end)
        if position < 0 or length > end - position:
            return False
        position += max(length, wide(0))
    return position == end


@kernel
def _write_records(
    source: int,
    position: int,
    block_end: int,
    count: int,
    last_delta: int,
    timestamp: int,
    group_timestamp: int,
    shift: int,
    target: int,
    target_at: int,
    target_end: int,
) -> tuple[int, int]:
    """Write a batch's records relative to another base: (_FINE, _NO_FIT or _NO_RECORDS; the
    position after them).

    Args:
        timestamp, group_timestamp: the old and the new base.
        shift: is added to offset deltas.
        target_end: what goes past it doesn't fit; there is room beyond for all records.
    """
    before = wide(-1)
    for _ in range(count):
        length_at = position
        end, timestamp_delta, offset_delta, rest_at = _read_head(source, position, block_end)
        if end < 0 or offset_delta <= before or offset_delta > last_delta:
            return _NO_RECORDS, target_at
        if not _is_rest(source, rest_at, end):
            return _NO_RECORDS, target_at
        before = offset_delta
        time = timestamp + timestamp_delta
        new_delta = time - group_timestamp
        # Both are sums of 64 bits: whether one has gone around shows in the signs.
        if (timestamp ^ time) & (timestamp_delta ^ time) < 0:
            return _NO_FIT, target_at
        if (time ^ group_timestamp) & (time ^ new_delta) < 0:
            return _NO_FIT, target_at
        _, attributes_at = read_varint(source, length_at, block_end)
        new_offset = offset_delta + shift
        rest = end - rest_at
        body = 1 + varint_bytes(new_delta) + varint_bytes(new_offset) + rest
        if body + varint_bytes(body) > target_end - target_at:
            return _NO_FIT, target_at
        target_at = write_varint(target, target_at, body)
        store(target, target_at, load(source, attributes_at))
        target_at = write_varint(target, target_at + 1, new_delta)
        target_at = write_varint(target, target_at, new_offset)
        copy_bytes(target, target_at, source, rest_at, rest)
        target_at += rest
        position = end
    if position != block_end:
        return _NO_RECORDS, target_at
    return _FINE, target_at


@kernel
def merge_blocks(
    data: Uint8s,
    arena: Uint8s,
    rows: Int64s,
    blocks: Int64s,
    bytes_max: int,
    out: Uint8s,
    groups: Int64s,
) -> int:
    """Gather adjacent batches, and write the records of each group: how many groups.

    Args:
        bytes_max: of a merged batch with its header.
        out: room for all records with RECORD_GROWTH_BYTES more for each.
        groups: shape (batches, GROUP_COLUMNS), filled from the front.
    """
    region_at, arena_at, target = data.ctypes.data, arena.ctypes.data, out.ctypes.data
    groups_found = wide(0)
    used = wide(0)
    # Of the open group, which has no batch while first == row.
    first = wide(0)
    start = wide(0)
    records = wide(0)
    base_offset = wide(0)
    base_timestamp = wide(0)
    max_timestamp = wide(0)
    epoch = wide(0)
    flags = wide(0)
    stamp = wide(0)
    horizon = wide(0)
    row = wide(0)
    while row < len(rows):
        position = rows[row, POSITION]
        count = rows[row, RECORD_COUNT]
        own_flags = rows[row, ATTRIBUTES] & _FLAGS
        own_epoch = read_int(region_at, position + LENGTH_END, 4)
        own_stamp = rows[row, MAX_TIMESTAMP] if own_flags & LOG_APPEND_TIME else wide(0)
        own_horizon = rows[row, BASE_TIMESTAMP] if own_flags & DELETE_HORIZON else wide(0)
        opens = first == row
        outcome = wide(_FINE)
        if blocks[row, BLOCK_SOURCE] == STAYS:
            outcome = wide(_NO_RECORDS)
        elif opens:
            start = used
            records = wide(0)
            base_offset = rows[row, BASE_OFFSET]
            epoch, flags, stamp, horizon = own_epoch, own_flags, own_stamp, own_horizon
        elif (
            own_epoch != epoch
            or own_flags != flags
            or own_stamp != stamp
            or own_horizon != horizon
            or rows[row, BASE_OFFSET] + rows[row, LAST_DELTA] - base_offset > _INT32_MAX
        ):
            outcome = wide(_NO_FIT)
        if outcome == _FINE and count > 0:
            group_timestamp = rows[row, BASE_TIMESTAMP] if records == 0 else base_timestamp
            source = region_at if blocks[row, BLOCK_SOURCE] == IN_REGION else arena_at
            outcome, behind = _write_records(
                source,
                blocks[row, BLOCK_START],
                blocks[row, BLOCK_END],
                count,
                rows[row, LAST_DELTA],
                rows[row, BASE_TIMESTAMP],
                group_timestamp,
                rows[row, BASE_OFFSET] - base_offset,
                target,
                used,
                start + bytes_max - HEADER_BYTES,
            )
            if outcome == _FINE:
                used = behind
                base_timestamp = group_timestamp
                greatest = rows[row, MAX_TIMESTAMP]
                max_timestamp = greatest if records == 0 else max(max_timestamp, greatest)
                records += count
        if outcome == _FINE:
            row += 1
            continue
        if not opens:
            # It ends before this batch, which is looked at again as the first of the next.
            groups_found = _close(
                groups,
                groups_found,
                first,
                row,
                start,
                used,
                records,
                base_timestamp,
                max_timestamp,
            )
            first = row
            continue
        groups_found = _close(
            groups, groups_found, first, row + 1, start, start, wide(STAYS), wide(0), wide(0)
        )
        row += 1
        first = row
    if first < row:
        groups_found = _close(
            groups, groups_found, first, row, start, used, records, base_timestamp, max_timestamp
        )
    return groups_found


@kernel
def _close(
    groups: Int64s,
    number: int,
    first: int,
    last: int,
    start: int,
    end: int,
    records: int,
    base_timestamp: int,
    max_timestamp: int,
) -> int:
    stays = records <= 0 or last - first < 2
    groups[number, GROUP_FIRST] = first
    groups[number, GROUP_LAST] = last
    groups[number, GROUP_START] = start
    groups[number, GROUP_END] = end
    groups[number, GROUP_COUNT] = STAYS if stays else records
    groups[number, GROUP_BASE_TIMESTAMP] = base_timestamp
    groups[number, GROUP_MAX_TIMESTAMP] = max_timestamp
    return number + 1


@kernel
def _are_equal(first: int, first_at: int, second: int, second_at: int, count: int) -> bool:
    at = wide(0)
    while count - at >= 8:
        if load_word(first, first_at + at) != load_word(second, second_at + at):
            return False
        at += 8
    while at < count:
        if load(first, first_at + at) != load(second, second_at + at):
            return False
        at += 1
    return True


@kernel
def same_records(
    data: Uint8s,
    arena: Uint8s,
    rows: Int64s,
    blocks: Int64s,
    merged: Uint8s,
    start: int,
    end: int,
    base_offset: int,
    base_timestamp: int,
    count: int,
) -> bool:
    """Whether a merged batch's records, decompressed in merged[start:end], are those of batches.

    Args:
        rows, blocks: of its inputs.
        base_offset, base_timestamp, count: as its header has them.
    """
    region_at, arena_at, found = data.ctypes.data, arena.ctypes.data, merged.ctypes.data
    at = start
    seen = wide(0)
    for row in range(len(rows)):
        source = region_at if blocks[row, BLOCK_SOURCE] == IN_REGION else arena_at
        position, block_end = blocks[row, BLOCK_START], blocks[row, BLOCK_END]
        for _ in range(rows[row, RECORD_COUNT]):
            record_end, time, offset, rest_at = _read_head(source, position, block_end)
            merged_end, merged_time, merged_offset, merged_rest = _read_head(found, at, end)
            if record_end < 0 or merged_end < 0:
                return False
            _, attributes_at = read_varint(source, position, block_end)
            _, merged_attributes = read_varint(found, at, end)
            if (
                base_offset + merged_offset != rows[row, BASE_OFFSET] + offset
                or base_timestamp + merged_time != rows[row, BASE_TIMESTAMP] + time
                or load(source, attributes_at) != load(found, merged_attributes)
                or merged_end - merged_rest != record_end - rest_at
                or not _are_equal(source, rest_at, found, merged_rest, record_end - rest_at)
            ):
                return False
            position, at = record_end, merged_end
            seen += 1
    return at == end and seen == count
