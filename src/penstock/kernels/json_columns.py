"""JSON values into columns, by a schema's nodes (`penstock.kernels.shapes`).

Each value is read within its own bytes and has to be exactly one value of its schema; what is not,
or is written as few writers do, is left to `penstock.pipeline.tables.json_schema`, the slow twin,
which says whether it is bad and why. Nothing of a value that is left stays in the columns.
"""

from typing import Final

import numpy as np

from penstock.kernels.arrays import Int64s, Uint8s, wide
from penstock.kernels.jit import kernel
from penstock.kernels.json_text import (
    DIGITS_MAX,
    read_days,
    read_instant,
    read_number,
    skip_spaces,
    string_end,
)
from penstock.kernels.memory import bits_of, load, load_long, load_word, store, store_long
from penstock.kernels.shapes import (
    BOOLEAN,
    COUNT,
    DATE,
    DETAIL,
    DOUBLE,
    FIRST,
    FRAME_COUNT,
    FRAME_LONGS,
    FRAME_NEXT,
    FRAME_NODE,
    FRAME_SERIAL,
    FRAME_SLOT,
    HARD,
    INNER,
    INSTANT,
    IS_NULLABLE,
    IS_REQUIRED,
    KIND,
    LIST,
    LONG,
    MAP,
    MAP_ENTRIES_MAX,
    NAME_AT,
    NAME_BYTES,
    NODE_COLUMNS,
    REQUIRED_COUNT,
    STRUCT,
    TEXT,
    UUID,
    VALUE,
)
from penstock.kernels.slots import forget, has_twice, is_uuid, text_at

_NULL: Final = np.uint64(0x6C6C756E)
_TRUE: Final = np.uint64(0x65757274)
_ALSE: Final = np.uint64(0x65736C61)
_FOUR_BYTES: Final = np.uint64(0xFFFFFFFF)
_EXACT_MAX: Final = 1 << 53
_POWER_MAX: Final = 22
_HARD_BYTES_MAX: Final = 256
_HARD_POWER_MAX: Final = 280
"""Neither beyond a double nor so near to zero that it has fewer digits."""
_POWERS = np.array([10.0**power for power in range(_POWER_MAX + 1)])
"""Doubles hold these exactly. Source: Clinger, "How to Read Floating Point Numbers Accurately"."""

_IN_VALUE: Final = 0
_IN_KEY: Final = 1
_IN_ELEMENT: Final = 2
_BEHIND_VALUE: Final = 3
_AT_CLOSE: Final = 4

_DONE: Final = -1
_LEFT: Final = -2


@kernel
def decode_json(
    data: Uint8s,
    starts: Int64s,
    ends: Int64s,
    first: int,
    nodes: Int64s,
    names: Uint8s,
    bases: Int64s,
    rooms: Int64s,
    counts: Int64s,
    longs: Int64s,
    valid: Uint8s,
    scratch: Int64s,
    left: Uint8s,
) -> tuple[int, int]:
    """Decode values from row `first` on: (row it stopped at, group that has no more room or -1).

    Args:
        starts, ends: where each value lies.
        nodes: shape (nodes, NODE_COLUMNS).
        bases: where each node's slots begin; `rooms`: elements that each group has room for, the
            root's at least one for each row; `counts`: those it has.
        scratch: shape (nodes + groups + frames * FRAME_LONGS,).
        left: per row, 1 for a value that is left to the careful decoder: it has no slots.
    """
    data_at, node_at, name_at = data.ctypes.data, nodes.ctypes.data, names.ctypes.data
    base_at, room_at, count_at = bases.ctypes.data, rooms.ctypes.data, counts.ctypes.data
    long_at, valid_at = longs.ctypes.data, valid.ctypes.data
    seen_at = scratch.ctypes.data
    before_at = seen_at + 8 * len(nodes)
    frame_at = before_at + 8 * len(rooms)
    scratch[: len(nodes)] = 0
    serial = wide(0)
    for row in range(first, len(starts)):
        for group in range(len(rooms)):
            store_long(before_at, group, load_long(count_at, group))
        status, serial = _decode_one(
            data_at,
            starts[row],
            ends[row],
            node_at,
            name_at,
            base_at,
            room_at,
            count_at,
            long_at,
            valid_at,
            seen_at,
            frame_at,
            serial,
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
    start: int,
    end: int,
    nodes: int,
    names: int,
    bases: int,
    rooms: int,
    counts: int,
    longs: int,
    valid: int,
    seen: int,
    frames: int,
    serial: int,
) -> tuple[int, int]:
    """One value: _DONE, _LEFT, or the group that has no room; and the last serial.

    Args:
        serial: each struct that is opened has the next one; `seen`: per node, the struct that it
            was last a field of.
    """
    status = wide(_LEFT)
    node = wide(0)
    slot = load_long(counts, 0)
    depth = wide(0)
    state = _IN_VALUE
    at = skip_spaces(data, start, end)
    while True:
        if state == _IN_VALUE:
            if at >= end:
                break
            row = node * NODE_COLUMNS
            kind = load_long(nodes, row)
            index = load_long(bases, node) + slot
            byte = load(data, at)
            if kind <= MAP and byte == (91 if kind == LIST else 123):
                frame = depth * FRAME_LONGS
                serial += 1
                store_long(frames, frame + FRAME_NODE, node)
                store_long(frames, frame + FRAME_SLOT, slot)
                store_long(frames, frame + FRAME_NEXT, load_long(nodes, row + FIRST))
                store_long(frames, frame + FRAME_COUNT, wide(0))
                store_long(frames, frame + FRAME_SERIAL, serial)
                depth += 1
                store(valid, index, wide(VALUE))
                at = skip_spaces(data, at + 1, end)
                if at < end and load(data, at) == (93 if kind == LIST else 125):
                    state = _AT_CLOSE
                else:
                    state = _IN_ELEMENT if kind == LIST else _IN_KEY
                continue
            at = _read_leaf(
                data, at, end, kind, load_long(nodes, row + DETAIL), byte, longs, valid, index
            )
            if at < 0:
                at = -1 - at
                if (
                    byte != 110
                    or load_long(nodes, row + IS_NULLABLE) == 0
                    or at + 4 > end
                    or _four(data, at) != _NULL
                ):
                    break
                at += 4
            state = _BEHIND_VALUE
        elif state == _IN_KEY:
            if at >= end or load(data, at) != 34:
                break
            at += 1
            frame = (depth - 1) * FRAME_LONGS
            parent = load_long(frames, frame + FRAME_NODE) * NODE_COLUMNS
            if load_long(nodes, parent + KIND) == STRUCT:
                node, at = _field(
                    data,
                    at,
                    end,
                    nodes,
                    names,
                    load_long(nodes, parent + FIRST),
                    load_long(nodes, parent + COUNT),
                    load_long(frames, frame + FRAME_NEXT),
                )
                this = load_long(frames, frame + FRAME_SERIAL)
                if node < 0 or load_long(seen, node) == this:
                    break
                store_long(seen, node, this)
                store_long(frames, frame + FRAME_NEXT, node + 1)
                store_long(
                    frames,
                    frame + FRAME_COUNT,
                    load_long(frames, frame + FRAME_COUNT)
                    + load_long(nodes, node * NODE_COLUMNS + IS_REQUIRED),
                )
                slot = load_long(frames, frame + FRAME_SLOT)
            else:
                group = load_long(nodes, parent + INNER)
                slot = load_long(counts, group)
                if slot >= load_long(rooms, group):
                    status = group
                    break
                store_long(counts, group, slot + 1)
                node = load_long(nodes, parent + FIRST)
                close, is_escaped = string_end(data, at, end)
                if close < 0 or is_escaped:
                    break
                index = load_long(bases, node) + slot
                store_long(longs, index, text_at(at, close - at, wide(0)))
                store(valid, index, wide(VALUE))
                store_long(frames, frame + FRAME_COUNT, load_long(frames, frame + FRAME_COUNT) + 1)
                node += 1
                at = close + 1
            at = skip_spaces(data, at, end)
            if at >= end or load(data, at) != 58:
                break
            at = skip_spaces(data, at + 1, end)
            state = _IN_VALUE
        elif state == _IN_ELEMENT:
            frame = (depth - 1) * FRAME_LONGS
            parent = load_long(frames, frame + FRAME_NODE) * NODE_COLUMNS
            group = load_long(nodes, parent + INNER)
            slot = load_long(counts, group)
            if slot >= load_long(rooms, group):
                status = group
                break
            store_long(counts, group, slot + 1)
            store_long(frames, frame + FRAME_COUNT, load_long(frames, frame + FRAME_COUNT) + 1)
            node = load_long(nodes, parent + FIRST)
            state = _IN_VALUE
        elif state == _BEHIND_VALUE:
            at = skip_spaces(data, at, end)
            if depth == 0:
                if at == end:
                    status = wide(_DONE)
                break
            if at >= end:
                break
            byte = load(data, at)
            parent = load_long(frames, (depth - 1) * FRAME_LONGS + FRAME_NODE)
            is_list = load_long(nodes, parent * NODE_COLUMNS + KIND) == LIST
            if byte == 44:
                at = skip_spaces(data, at + 1, end)
                state = _IN_ELEMENT if is_list else _IN_KEY
            elif byte == (93 if is_list else 125):
                state = _AT_CLOSE
            else:
                break
        else:
            at += 1
            depth -= 1
            frame = depth * FRAME_LONGS
            parent = load_long(frames, frame + FRAME_NODE)
            count = load_long(frames, frame + FRAME_COUNT)
            row = parent * NODE_COLUMNS
            kind = load_long(nodes, row)
            if kind == STRUCT:
                if count != load_long(nodes, row + REQUIRED_COUNT):
                    break
            else:
                if kind == MAP and count > 1:
                    last = load_long(counts, load_long(nodes, row + INNER))
                    keys = load_long(bases, load_long(nodes, row + FIRST))
                    if count > MAP_ENTRIES_MAX or has_twice(data, longs, keys, last - count, last):
                        break
                slot = load_long(frames, frame + FRAME_SLOT)
                store_long(longs, load_long(bases, parent) + slot, count)
            state = _BEHIND_VALUE
    return status, serial


@kernel
def _read_leaf(
    data: int,
    at: int,
    end: int,
    kind: int,
    detail: int,
    byte: int,
    longs: int,
    valid: int,
    index: int,
) -> int:
    """Read a value that is not an object or an array: the position after it; else -1 - at."""
    if byte == 34:
        close, is_escaped = string_end(data, at + 1, end)
        if close < 0:
            return -1 - at
        found = wide(0)
        is_good = wide(1)
        if kind == TEXT:
            found = text_at(at + 1, close - at - 1, is_escaped)
        elif is_escaped:
            is_good = wide(0)
        elif kind == INSTANT:
            is_good, found = read_instant(data, at + 1, close, detail)
        elif kind == DATE:
            is_good, found = read_days(data, at + 1, close)
            if close - at != 11:
                is_good = wide(0)
        elif kind == UUID:
            is_good = is_uuid(data, at + 1, close - at - 1)
            found = text_at(at + 1, close - at - 1, wide(0))
        else:
            is_good = wide(0)
        if is_good == 0:
            return -1 - at
        store_long(longs, index, found)
        store(valid, index, wide(VALUE))
        return close + 1
    if kind == LONG or kind == DOUBLE:
        begin = at + 1 if byte == 45 else at
        behind, value, power, digits, is_fraction = read_number(data, begin, end)
        if behind < 0:
            return -1 - at
        if kind == LONG:
            if is_fraction or digits > DIGITS_MAX:
                return -1 - at
            store_long(longs, index, -value if byte == 45 else value)
            store(valid, index, wide(VALUE))
            return behind
        if digits > DIGITS_MAX or value > _EXACT_MAX or power > _POWER_MAX or power < -_POWER_MAX:
            if behind - at > _HARD_BYTES_MAX or detail or abs(power + digits) > _HARD_POWER_MAX:
                return -1 - at
            store_long(longs, index, text_at(at, behind - at, wide(0)))
            store(valid, index, wide(HARD))
            return behind
        if detail and is_fraction:
            return -1 - at
        number = float(value)
        if power < 0:
            number /= _POWERS[-power]
        elif power > 0:
            number *= _POWERS[power]
        if byte == 45 and (value != 0 or is_fraction):
            # -0 is an integer in Python's JSON, and integers have no such zero.
            number = -number
        store_long(longs, index, bits_of(number))
        store(valid, index, wide(VALUE))
        return behind
    if kind == BOOLEAN and at + 4 <= end:
        if byte == 116 and _four(data, at) == _TRUE:
            store_long(longs, index, wide(1))
            store(valid, index, wide(VALUE))
            return at + 4
        if byte == 102 and at + 5 <= end and _four(data, at + 1) == _ALSE:
            store(valid, index, wide(VALUE))
            return at + 5
    return -1 - at


@kernel
def _field(
    data: int,
    at: int,
    end: int,
    nodes: int,
    names: int,
    first: int,
    count: int,
    expected: int,
) -> tuple[int, int]:
    """The child that a key names, looked for from the one that is expected, and the position after
    the key's last quote; (-1, at): there is none, or the key has escapes."""
    if expected >= first + count:
        expected = first
    child = expected
    while True:
        row = child * NODE_COLUMNS
        size = load_long(nodes, row + NAME_BYTES)
        if size >= 0 and at + size < end and load(data, at + size) == 34:
            name = load_long(nodes, row + NAME_AT)
            index = wide(0)
            while index + 8 <= size:
                if load_word(data, at + index) != load_word(names, name + index):
                    break
                index += 8
            else:
                while index < size and load(data, at + index) == load(names, name + index):
                    index += 1
            if index == size:
                return child, at + size + 1
        child += 1
        if child == first + count:
            child = first
        if child == expected:
            return -1, at


@kernel
def _four(address: int, at: int) -> np.uint64:
    return np.uint64(
        load(address, at)
        | load(address, at + 1) << 8
        | load(address, at + 2) << 16
        | load(address, at + 3) << 24
    )
