"""The machine code behind `penstock.kernels.keys`: records' keys as hashes, and batches that keep
some of their records."""

from typing import Final

from penstock.kernels.arrays import Int64s, Uint8s, Uint64s, byte, wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import copy_bytes
from penstock.kernels.parse import (
    BAD_COUNT,
    BLOCK_BASE_OFFSET,
    BLOCK_COUNT,
    BLOCK_END,
    BLOCK_LAST_DELTA,
    BLOCK_STAMPED,
    BLOCK_START,
    BLOCK_TIMESTAMP,
    BYTES_LEFT,
    FINE,
    RECORD_BYTES_MIN,
    read_record,
)
from penstock.kernels.siphash import siphash
from penstock.kernels.varints import read_varint, varint_bytes, write_varint

HAS_KEY: Final = 1
IS_TOMBSTONE: Final = 2


@kernel
def find_keys(
    data: Uint8s,
    blocks: Int64s,
    hash_key: Uint64s,
    offsets: Int64s,
    timestamps: Int64s,
    hashes: Uint64s,
    flags: Uint8s,
    spans: Int64s,
) -> tuple[int, int, int]:
    """Go through the records of blocks: (records, fault, block of the fault).

    Args:
        blocks: shape (blocks, BLOCK_COLUMNS) as for `parse.find_fields`; count 0: not looked into.
        hashes: shape (records, 2): high, low; zeros where there is no key.
        spans: shape (records, 2): where a record begins, with its length, and ends.
    """
    row = 0
    address = data.ctypes.data
    for block in range(len(blocks)):
        count = blocks[block, BLOCK_COUNT]
        if count == 0:
            continue
        position = blocks[block, BLOCK_START]
        block_end = blocks[block, BLOCK_END]
        if count * RECORD_BYTES_MIN > block_end - position:
            return row, BAD_COUNT, block
        previous = wide(-1)
        for _ in range(count):
            fault, end, timestamp_delta, delta, key_at, key_length, _, value_length = read_record(
                address, position, block_end, previous, blocks[block, BLOCK_LAST_DELTA]
            )
            if fault != FINE:
                return row, fault, block
            previous = delta
            flag = 0
            if key_length >= 0:
                flag = HAS_KEY
                high, low = siphash(address, key_at, key_at + key_length, hash_key[0], hash_key[1])
                hashes[row, 0] = high
                hashes[row, 1] = low
            else:
                hashes[row, 0] = 0
                hashes[row, 1] = 0
            if value_length < 0:
                flag |= IS_TOMBSTONE
            flags[row] = byte(flag)
            offsets[row] = blocks[block, BLOCK_BASE_OFFSET] + delta
            stamped = blocks[block, BLOCK_STAMPED]
            timestamps[row] = blocks[block, BLOCK_TIMESTAMP] + (0 if stamped else timestamp_delta)
            spans[row, 0] = position
            spans[row, 1] = end
            row += 1
            position = end
        if position != block_end:
            return row, BYTES_LEFT, block
    return row, FINE, 0


@kernel
def write_kept(
    data: Uint8s,
    spans: Int64s,
    timestamps: Int64s,
    keep: Uint8s,
    first: int,
    last: int,
    horizon: int,
    out: Uint8s,
) -> tuple[int, int, int]:
    """Write the kept records of one batch: (bytes, records, greatest timestamp of them).

    Args:
        first, last: which records are the batch's.
        horizon: not -1: timestamps are written relative to it.
        out: room for all, and 12 bytes a record more with a horizon.
    """
    size = wide(0)
    source, target = data.ctypes.data, out.ctypes.data
    count = wide(0)
    newest = wide(-0x8000000000000000)
    for row in range(first, last):
        if keep[row] == 0:
            continue
        newest = max(newest, timestamps[row])
        count += 1
        start, end = spans[row, 0], spans[row, 1]
        if horizon < 0:
            copy_bytes(target, size, source, start, end - start)
            size += end - start
        else:
            _, at = read_varint(source, start, end)
            _, behind = read_varint(source, at + 1, end)
            delta = timestamps[row] - horizon
            size = write_varint(target, size, 1 + varint_bytes(delta) + end - behind)
            out[size] = data[at]
            size = write_varint(target, size + 1, delta)
            copy_bytes(target, size, source, behind, end - behind)
            size += end - behind
    return size, count, newest
