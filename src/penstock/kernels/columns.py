"""Arrow columns as the arrays that kernels read. Nothing is copied but masks of nulls."""

import numpy as np
import pyarrow as pa
from numpy import int32, int64, uint8

from penstock.kernels.arrays import Int32s, Int64s, Uint8s
from penstock.kernels.build import Bytes

_EMPTY_DATA = np.zeros(1, dtype=uint8)


def bytes_column(array: pa.Array, count: int) -> Bytes:
    """A binary or string column; None: `count` nulls.

    Args:
        array: an Arrow array of binary or string, or None.
    """
    if array is None or pa.types.is_null(array.type):
        return _EMPTY_DATA, np.zeros(count + 1, dtype=int32), np.zeros(count, dtype=uint8)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type not in {pa.binary(), pa.string()}:
        array = array.cast(pa.string() if pa.types.is_large_string(array.type) else pa.binary())
    _, offsets, data = array.buffers()
    start = array.offset
    ends = (
        np.frombuffer(offsets, dtype=int32)[start : start + count + 1]
        if offsets is not None and offsets.size
        else np.zeros(count + 1, dtype=int32)
    )
    body = np.frombuffer(data, dtype=uint8) if data is not None and data.size else _EMPTY_DATA
    return body, ends, valid_rows(array)


def valid_rows(array: pa.Array) -> Uint8s:
    """Return for each row 1 where it isn't null."""
    if not array.null_count:
        return np.ones(len(array), dtype=uint8)
    valid: Uint8s = array.is_valid().to_numpy(zero_copy_only=False).astype(uint8, copy=False)
    return valid


def header_columns(array: pa.Array, count: int) -> tuple[Int32s, Bytes, Bytes]:
    """A column list<struct<string, binary>>: per row where its headers end, names and values.

    A null list is one without headers.
    """
    if array is None or pa.types.is_null(array.type):
        return np.zeros(1, dtype=int32), bytes_column(None, 0), bytes_column(None, 0)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.null_count:
        # What lies behind a null list may be anything.
        array = array.fill_null([])
    items = array.flatten()
    ends = np.zeros(count + 1, dtype=int32)
    lengths = np.asarray(array.value_lengths())
    np.cumsum(lengths, out=ends[1:])
    names, values = (items.field(index) for index in range(2))
    if items.null_count or names.null_count:
        raise ValueError("a header, or its name, is null")
    return ends, bytes_column(names, len(items)), bytes_column(values, len(items))


def int64_column(array: pa.Array) -> Int64s:
    """A column of 64-bit integers without nulls."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array, dtype=int64)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return np.ascontiguousarray(array.cast(pa.int64()).to_numpy(zero_copy_only=False), dtype=int64)
