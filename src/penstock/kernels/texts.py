"""Texts that a decoder found in its input, gathered as an Arrow column's bytes."""

import numpy as np
from numpy import int32, uint8

from penstock.kernels.arrays import Int32s, Int64s, Uint8s, wide
from penstock.kernels.jit import kernel
from penstock.kernels.json_text import hex_unit
from penstock.kernels.memory import copy_bytes, load, store
from penstock.kernels.shapes import ESCAPED, TEXT_BYTES_MAX


def gather_texts(data: Uint8s, texts: Int64s) -> tuple[Int32s, Uint8s]:
    """The texts' bytes one after the other, and where each ends; escapes of JSON are resolved.

    Args:
        texts: `slots.text_at` of each.
    """
    ends = np.zeros(len(texts) + 1, dtype=int32)
    size = _measure(data, texts, ends)
    out = np.empty(size, dtype=uint8)
    _copy(data, texts, ends, out)
    return ends, out


@kernel
def _measure(data: Uint8s, texts: Int64s, ends: Int32s) -> int:
    source = data.ctypes.data
    end = wide(0)
    for index in range(len(texts)):
        text = texts[index]
        size = text & TEXT_BYTES_MAX
        if text & ESCAPED:
            size = _unescape(source, text >> 32, size, 0, wide(-1))
        end += size
        ends[index + 1] = end
    return end


@kernel
def _copy(data: Uint8s, texts: Int64s, ends: Int32s, out: Uint8s) -> None:
    source, target = data.ctypes.data, out.ctypes.data
    for index in range(len(texts)):
        text = texts[index]
        size = text & TEXT_BYTES_MAX
        if text & ESCAPED:
            _unescape(source, text >> 32, size, target, wide(ends[index]))
        else:
            copy_bytes(target, wide(ends[index]), source, text >> 32, size)


@kernel
def _unescape(source: int, at: int, size: int, target: int, to: int) -> int:
    """Write a string of JSON that is right, as UTF-8: its bytes.

    Args:
        to: where in the target; -1: it is only counted.
    """
    is_counted = to < 0
    begin = wide(0) if is_counted else to
    to = begin
    end = at + size
    while at < end:
        found = load(source, at)
        at += 1
        if found != 92:
            if not is_counted:
                store(target, to, found)
            to += 1
            continue
        kind = load(source, at)
        at += 1
        if kind != 117:
            if kind == 98:
                kind = wide(8)
            elif kind == 102:
                kind = wide(12)
            elif kind == 110:
                kind = wide(10)
            elif kind == 114:
                kind = wide(13)
            elif kind == 116:
                kind = wide(9)
            if not is_counted:
                store(target, to, kind)
            to += 1
            continue
        point = hex_unit(source, at, end)
        at += 4
        if 0xD800 <= point < 0xDC00:
            point = 0x10000 + ((point - 0xD800) << 10) + hex_unit(source, at + 2, end) - 0xDC00
            at += 6
        count = 1 if point < 0x80 else 2 if point < 0x800 else 3 if point < 0x10000 else 4
        if not is_counted:
            if count == 1:
                store(target, to, point)
            else:
                store(target, to, (0xF00 >> count) & 0xFF | point >> (6 * (count - 1)))
                for index in range(1, count):
                    shift = 6 * (count - 1 - index)
                    store(target, to + index, 0x80 | (point >> shift) & 0x3F)
        to += count
    return to - begin
