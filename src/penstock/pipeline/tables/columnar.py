"""Values into Arrow's columns by the kernels that decode them, many at once.

What a kernel leaves (`penstock.kernels.shapes`) is the careful decoder's: here nothing is said of
whether it is bad.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.kernels import shapes
from penstock.kernels.arrays import Int64s, Uint8s
from penstock.kernels.texts import gather_texts
from penstock.pipeline.tables.shapes import Nodes, Shape, number_nodes

Kernel = Callable[..., tuple[int, int]]
_ELEMENTS_MIN: Final = 64
_TEXTS: Final = frozenset({shapes.TEXT, shapes.UUID, shapes.BYTES})
_DAYS_OR_INTS: Final = frozenset({shapes.INT, shapes.DATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Decoded values. `values`: those that weren't left, in their order; `is_left`: per value, 1
    for one that is the careful decoder's."""

    values: pa.Array
    is_left: NDArray[Any]


class ColumnDecoder:
    """Decodes values of one schema.

    Args:
        kind: what they become: fields are found by their names, and those that the schema lacks
            are null.
        kernel: `decode_json` or `decode_avro`.
    """

    def __init__(self, shape: Shape, kind: pa.DataType, kernel: Kernel) -> None:
        self._nodes = number_nodes(shape)
        self._kind = kind
        self._kernel = kernel
        self._rooms = np.zeros(self._nodes.group_count, dtype=np.int64)

    def decode(self, data: Uint8s, starts: Int64s, ends: Int64s) -> Columns:
        """Decode the values that lie at [start, end) of the data."""
        nodes = self._nodes
        self._rooms[0] = len(starts)
        self._rooms[1:] = np.maximum(self._rooms[1:], _ELEMENTS_MIN)
        slots = _Slots(nodes, self._rooms)
        counts = np.zeros(nodes.group_count, dtype=np.int64)
        is_left = np.zeros(len(starts), dtype=np.uint8)
        frame_longs = nodes.depth * shapes.FRAME_LONGS
        scratch = np.zeros(len(nodes.shapes) + nodes.group_count + frame_longs, dtype=np.int64)
        row = 0
        while True:
            row, group = self._kernel(
                data,
                starts,
                ends,
                row,
                nodes.table,
                nodes.names,
                slots.bases,
                self._rooms,
                counts,
                slots.longs,
                slots.valid,
                scratch,
                is_left,
            )
            if group < 0:
                break
            self._rooms[group] *= 2
            slots = slots.grown(self._rooms, counts)
        values = _Builder(nodes, slots, counts, data).build(0, self._kind)
        return Columns(values=values, is_left=is_left)


def nulls_of(count: int, kind: pa.DataType) -> pa.Array:
    """A column of nulls, which Arrow can cast whatever its type."""
    # `pa.nulls` makes a struct's fields null too, also those that never are.
    return pa.array([None] * count, kind) if pa.types.is_nested(kind) else pa.nulls(count, kind)


class _Slots:
    """The arrays that the kernels fill."""

    def __init__(self, nodes: Nodes, rooms: Int64s) -> None:
        self._nodes = nodes
        sizes = rooms[nodes.groups]
        self.bases: Int64s = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        self.longs: Int64s = np.zeros(int(sizes.sum()), dtype=np.int64)
        self.valid: Uint8s = np.zeros(int(sizes.sum()), dtype=np.uint8)

    def grown(self, rooms: Int64s, counts: Int64s) -> "_Slots":
        """The same with other rooms."""
        larger = _Slots(self._nodes, rooms)
        for node, group in enumerate(self._nodes.groups):
            count = counts[group]
            begin, end = self.bases[node], self.bases[node] + count
            to = slice(larger.bases[node], larger.bases[node] + count)
            larger.longs[to] = self.longs[begin:end]
            larger.valid[to] = self.valid[begin:end]
        return larger


class _Builder:
    """Makes Arrow's arrays of slots."""

    def __init__(self, nodes: Nodes, slots: _Slots, counts: Int64s, data: Uint8s) -> None:
        self._nodes = nodes
        self._slots = slots
        self._counts = counts
        self._data = data

    def build(self, node: int, kind: pa.DataType, within: Uint8s | None = None) -> pa.Array:
        """A node's column, as `kind`.

        Args:
            within: of a field that is never null where its struct isn't: where that is. Arrow
                wants no nulls of such a field at all.
        """
        shape = self._nodes.shapes[node]
        count = int(self._counts[self._nodes.groups[node]])
        base = int(self._slots.bases[node])
        longs = self._slots.longs[base : base + count]
        valid = self._slots.valid[base : base + count]
        is_whole = bool(valid.all()) or (within is not None and bool(valid[within != 0].all()))
        bits = None if is_whole else pa.py_buffer(np.packbits(valid != 0, bitorder="little"))
        if shape.kind == shapes.STRUCT:
            return self._struct(node, kind, valid, bits)
        if shape.kind in {shapes.LIST, shapes.MAP}:
            return self._elements(node, kind, longs, bits)
        found = self._leaf(shape, kind, longs, valid, bits)
        return found if found.type == kind else found.cast(kind)

    def _struct(self, node: int, kind: Any, valid: Uint8s, bits: Any) -> pa.Array:
        count = len(valid)
        first = self._nodes.firsts[node]
        numbers = {
            child.name: first + index
            for index, child in enumerate(self._nodes.shapes[node].children)
        }
        fields = [
            self.build(numbers[field.name], field.type, None if field.nullable else valid)
            if field.name in numbers
            else nulls_of(count, field.type)
            for field in kind
        ]
        return pa.StructArray.from_buffers(kind, count, [bits], children=fields)

    def _elements(self, node: int, kind: Any, longs: Int64s, bits: Any) -> pa.Array:
        ends = np.zeros(len(longs) + 1, dtype=np.int32)
        np.cumsum(longs, out=ends[1:])
        first = self._nodes.firsts[node]
        if self._nodes.shapes[node].kind == shapes.LIST:
            inner = self.build(first, kind.value_type)
        else:
            entries = pa.struct([kind.key_field, kind.item_field])
            children = [self.build(first, kind.key_type), self.build(first + 1, kind.item_type)]
            inner = pa.StructArray.from_buffers(
                entries, len(children[0]), [None], children=children
            )
        return type(pa.array([], kind)).from_buffers(
            kind, len(longs), [bits, pa.py_buffer(ends)], children=[inner]
        )

    def _leaf(self, shape: Shape, kind: Any, longs: Int64s, valid: Uint8s, bits: Any) -> pa.Array:
        count = len(longs)
        if shape.kind in _TEXTS:
            ends, body = gather_texts(self._data, longs)
            text = pa.binary() if shape.kind == shapes.BYTES else pa.string()
            return pa.Array.from_buffers(
                text, count, [bits, pa.py_buffer(ends), pa.py_buffer(body)]
            )
        if shape.kind == shapes.ENUM:
            places = pa.array(longs, mask=valid == 0)
            return pa.array(shape.symbols, pa.string()).take(places)
        if shape.kind == shapes.DOUBLE:
            values: Any = self._doubles(longs, valid)
            plain: Any = pa.float64()
        elif shape.kind == shapes.FLOAT:
            values, plain = longs.astype(np.uint32), pa.float32()
        elif shape.kind == shapes.BOOLEAN:
            values, plain = np.packbits(longs != 0, bitorder="little"), pa.bool_()
        elif shape.kind in _DAYS_OR_INTS:
            values = longs.astype(np.int32)
            plain = pa.int32() if shape.kind == shapes.INT else pa.date32()
        elif shape.kind == shapes.FIXED:
            values, plain = self._fixed(shape, longs, valid), pa.binary(shape.size_bytes)
        elif shape.kind in {shapes.DECIMAL, shapes.DECIMAL_FIXED}:
            # 128 bits: the number and its sign.
            values, plain = np.stack([longs, longs >> 63], axis=1).copy(), kind
        else:
            values = longs.copy()
            plain = pa.int64() if shape.kind == shapes.LONG else kind
        return pa.Array.from_buffers(plain, count, [bits, pa.py_buffer(values)])

    def _doubles(self, longs: Int64s, valid: Uint8s) -> Int64s:
        """Numbers of which some are texts yet: Arrow's parser rounds them as Python's does."""
        longs = longs.copy()
        hard = np.flatnonzero(valid == shapes.HARD)
        if len(hard):
            ends, body = gather_texts(self._data, longs[hard])
            texts = pa.Array.from_buffers(
                pa.string(), len(hard), [None, pa.py_buffer(ends), pa.py_buffer(body)]
            )
            longs[hard] = pc.cast(texts, pa.float64()).to_numpy().view(np.int64)
        return longs

    def _fixed(self, shape: Shape, longs: Int64s, valid: Uint8s) -> NDArray[Any]:
        body = np.zeros((len(longs), shape.size_bytes), dtype=np.uint8)
        there = valid != 0
        body[there] = gather_texts(self._data, longs[there])[1].reshape(-1, shape.size_bytes)
        return body
