"""Avro values into columns, by a schema's nodes (`penstock.kernels.shapes`).

Each value is read within its own bytes and has to end with them. What a column can't hold as it is
(a union's other branch, a decimal beyond 64 bits, a time out of its range, text that is not UTF-8,
a map with a key twice) is left to `penstock.pipeline.tables.avro`, the slow twin, which says
whether it is bad and why.

Source: Apache Avro 1.12 specification, "Binary encoding".
"""

from typing import Final

import numpy as np

from penstock.kernels.arrays import Int64s, Uint8s, wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import load, load_long, load_word, store, store_long
from penstock.kernels.shapes import (
    BOOLEAN,
    COUNT,
    DATE,
    DAYS_MAX,
    DAYS_MIN,
    DECIMAL,
    DECIMAL_FIXED,
    DETAIL,
    DOUBLE,
    ENUM,
    FIRST,
    FIXED,
    FLOAT,
    FRAME_COUNT,
    FRAME_LONGS,
    FRAME_NEXT,
    FRAME_NODE,
    FRAME_SLOT,
    INNER,
    INSTANT,
    INSTANT_MS,
    INT,
    KIND,
    LONG,
    MAP,
    MAP_ENTRIES_MAX,
    MICROSECONDS_MAX,
    MICROSECONDS_MIN,
    NODE_COLUMNS,
    NULL_BRANCH,
    STRUCT,
    TEXT,
    TIME,
    TIME_MS,
    UUID,
    VALUE,
    VALUE_BRANCH,
)
from penstock.kernels.slots import forget, has_twice, is_uuid, text_at, utf8_end
from penstock.kernels.varints import read_varint

_HIGHS = np.uint64(0x8080808080808080)
_NOTHING = np.uint64(0)
_DAY_MS: Final = 86_400_000
_INT_MAX: Final = (1 << 31) - 1
_LONG_BYTES: Final = 8
_DONE: Final = -1
_LEFT: Final = -2


@kernel
def decode_avro(
    data: Uint8s,
    starts: Int64s,
    ends: Int64s,
    first: int,
    nodes: Int64s,
    names: Uint8s,  # noqa: ARG001 - kernels of both formats are called alike
    bases: Int64s,
    rooms: Int64s,
    counts: Int64s,
    longs: Int64s,
    valid: Uint8s,
    scratch: Int64s,
    left: Uint8s,
) -> tuple[int, int]:
    """Decode values from row `first` on: (row it stopped at, group that has no more room or -1).

    The arguments are those of `penstock.kernels.json_columns.decode_json`; `names` are not read.
    """
    data_at, node_at = data.ctypes.data, nodes.ctypes.data
    base_at, room_at, count_at = bases.ctypes.data, rooms.ctypes.data, counts.ctypes.data
    long_at, valid_at = longs.ctypes.data, valid.ctypes.data
    before_at = scratch.ctypes.data + 8 * len(nodes)
    frame_at = before_at + 8 * len(rooms)
    for row in range(first, len(starts)):
        for group in range(len(rooms)):
            store_long(before_at, group, load_long(count_at, group))
        status = _decode_one(
            data_at,
            starts[row],
            ends[row],
            node_at,
            base_at,
            room_at,
            count_at,
            long_at,
            valid_at,
            frame_at,
        )
        if status == _DONE:
            store_long(count_at, 0, load_long(count_at, 0) + 1)
            continue
        forget(node_at, len(nodes), base_at, long_at, valid_at, before_at, count_at, len(rooms))
        if status >= 0:
            return row, status
        left[row] = 1
    return len(starts), -1


@kernel
def _decode_one(
    data: int,
    at: int,
    end: int,
    nodes: int,
    bases: int,
    rooms: int,
    counts: int,
    longs: int,
    valid: int,
    frames: int,
) -> int:
    """One value: _DONE, _LEFT, or the group that has no room."""
    node = wide(0)
    slot = load_long(counts, 0)
    depth = wide(0)
    while True:
        row = node * NODE_COLUMNS
        index = load_long(bases, node) + slot
        is_null = False
        branch = load_long(nodes, row + VALUE_BRANCH)
        if branch >= 0:
            found, at = read_varint(data, at, end)
            if at < 0:
                return _LEFT
            if found != branch:
                if found != load_long(nodes, row + NULL_BRANCH):
                    return _LEFT
                is_null = True
        if not is_null:
            kind = load_long(nodes, row + KIND)
            store(valid, index, wide(VALUE))
            if kind <= MAP:
                frame = depth * FRAME_LONGS
                store_long(frames, frame + FRAME_NODE, node)
                store_long(frames, frame + FRAME_SLOT, slot)
                store_long(
                    frames,
                    frame + FRAME_NEXT,
                    load_long(nodes, row + FIRST) if kind == STRUCT else wide(0),
                )
                store_long(frames, frame + FRAME_COUNT, wide(0))
                depth += 1
            else:
                at = _read_leaf(
                    data,
                    at,
                    end,
                    kind,
                    load_long(nodes, row + COUNT),
                    load_long(nodes, row + DETAIL),
                    longs,
                    index,
                )
                if at < 0:
                    return _LEFT
        # What comes next: a field, an element, or the end of what is open.
        while True:
            if depth == 0:
                return _DONE if at == end else _LEFT
            frame = (depth - 1) * FRAME_LONGS
            parent = load_long(frames, frame + FRAME_NODE)
            row = parent * NODE_COLUMNS
            kind = load_long(nodes, row + KIND)
            first = load_long(nodes, row + FIRST)
            following = load_long(frames, frame + FRAME_NEXT)
            if kind == STRUCT:
                if following < first + load_long(nodes, row + COUNT):
                    store_long(frames, frame + FRAME_NEXT, following + 1)
                    node = following
                    slot = load_long(frames, frame + FRAME_SLOT)
                    break
                depth -= 1
                continue
            group: int = load_long(nodes, row + INNER)
            total = load_long(frames, frame + FRAME_COUNT)
            slot = load_long(counts, group)
            if following == 0:
                following, at = read_varint(data, at, end)
                if at < 0:
                    return _LEFT
                if following == 0:
                    if kind == MAP and total > 1:
                        keys = load_long(bases, first)
                        if total > MAP_ENTRIES_MAX or has_twice(
                            data, longs, keys, slot - total, slot
                        ):
                            return _LEFT
                    owner = load_long(bases, parent) + load_long(frames, frame + FRAME_SLOT)
                    store_long(longs, owner, total)
                    depth -= 1
                    continue
                if following < 0:
                    following = -following
                    size, at = read_varint(data, at, end)
                    if at < 0 or size < 0:
                        return _LEFT
                # No element takes less than a byte, but for such as only fastavro need count.
                if following < 0 or following > end - at:
                    return _LEFT
            if slot >= load_long(rooms, group):
                return group
            store_long(frames, frame + FRAME_NEXT, following - 1)
            store_long(frames, frame + FRAME_COUNT, total + 1)
            store_long(counts, group, slot + 1)
            node = first
            if kind == MAP:
                index = load_long(bases, first) + slot
                at = _read_leaf(data, at, end, wide(TEXT), wide(0), wide(0), longs, index)
                if at < 0:
                    return _LEFT
                store(valid, index, wide(VALUE))
                node = first + 1
            break


@kernel
def _read_leaf(
    data: int, at: int, end: int, kind: int, size: int, detail: int, longs: int, index: int
) -> int:
    """Read a value that holds no others: the position after it, or -1.

    Args:
        size: of a fixed, in bytes.
    """
    found = wide(0)
    if kind <= DECIMAL_FIXED:
        if kind < FIXED:
            size, at = read_varint(data, at, end)
        if at < 0 or size < 0 or size > end - at:
            return -1
        if kind == TEXT and not _is_text(data, at, at + size):
            return -1
        if kind == UUID and not is_uuid(data, at, size):
            return -1
        found = text_at(at, size, wide(0))
        if kind == DECIMAL or kind == DECIMAL_FIXED:
            if size == 0:
                return -1
            found = _signed(data, at + max(size - _LONG_BYTES, 0), min(size, _LONG_BYTES))
            for place in range(size - _LONG_BYTES):
                # What lies above 64 bits has to be the sign alone.
                if load(data, at + place) != (255 if found < 0 else 0):
                    return -1
            if found <= -detail or found >= detail:
                return -1
        at += size
    elif kind == BOOLEAN:
        if at >= end:
            return -1
        found = load(data, at)
        if found > 1:
            return -1
        at += 1
    elif kind == FLOAT or kind == DOUBLE:
        size = wide(4) if kind == FLOAT else wide(8)
        if size > end - at:
            return -1
        for place in range(size):
            found |= load(data, at + place) << (8 * place)
        at += size
    else:
        found, at = read_varint(data, at, end)
        if at < 0:
            return -1
        if kind == LONG:
            is_good = True
        elif kind == INT:
            is_good = -_INT_MAX - 1 <= found <= _INT_MAX
        elif kind == ENUM:
            is_good = 0 <= found < detail
        elif kind == DATE:
            is_good = DAYS_MIN <= found <= DAYS_MAX
        elif kind == INSTANT:
            is_good = MICROSECONDS_MIN <= found <= MICROSECONDS_MAX
        elif kind == INSTANT_MS:
            is_good = MICROSECONDS_MIN // 1000 <= found <= MICROSECONDS_MAX // 1000
            found *= 1000
        elif kind == TIME:
            is_good = 0 <= found < _DAY_MS * 1000
        elif kind == TIME_MS:
            is_good = 0 <= found < _DAY_MS
            found *= 1000
        else:
            is_good = False
        if not is_good:
            return -1
    store_long(longs, index, found)
    return at


@kernel
def _signed(data: int, at: int, size: int) -> int:
    found = wide(0)
    for place in range(size):
        found = found << 8 | load(data, at + place)
    shift = 64 - 8 * size
    return (found << shift) >> shift


@kernel
def _is_text(data: int, at: int, end: int) -> bool:
    while at < end:
        if at + 8 <= end and (load_word(data, at) & _HIGHS) == _NOTHING:
            at += 8
        elif load(data, at) < 128:
            at += 1
        else:
            at = utf8_end(data, at, end)
            if at < 0:
                return False
    return True
