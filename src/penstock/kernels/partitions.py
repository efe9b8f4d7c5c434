"""The partitions that Kafka's default partitioner gives a column of keys.

Source: murmur2 by Austin Appleby (public domain), with the seed of Kafka's default partitioner, so
that a key written by the Java client and by this one lies in the same partition. The slow twin is
in `tests/support/twins/murmur.py`.
"""

import numpy as np
import pyarrow as pa
from numpy import int64

from penstock.kernels.arrays import Int64s, wide
from penstock.kernels.build import Bytes
from penstock.kernels.columns import bytes_column
from penstock.kernels.jit import kernel
from penstock.kernels.memory import load


def partition_of_keys(keys: pa.Array, partition_count: int) -> Int64s:
    """Return for each key its partition; -1 for a null.

    Args:
        keys: an Arrow column of binary or string.
    """
    out = np.empty(len(keys), dtype=int64)
    _partitions(bytes_column(keys, len(keys)), partition_count, out)
    return out


@kernel
def _partitions(keys: Bytes, partition_count: int, out: Int64s) -> None:
    data, ends, valid = keys
    address = data.ctypes.data
    for row in range(len(out)):
        if valid[row] == 0:
            out[row] = -1
        else:
            value = _murmur2(address, wide(ends[row]), wide(ends[row + 1]))
            out[row] = (value & 0x7FFFFFFF) % partition_count


@kernel
def _murmur2(address: int, start: int, end: int) -> int:
    length = end - start
    value = (0x9747B28C ^ length) & 0xFFFFFFFF
    whole = start + (length & ~3)
    for at in range(start, whole, 4):
        word = (
            load(address, at)
            | load(address, at + 1) << 8
            | load(address, at + 2) << 16
            | load(address, at + 3) << 24
        )
        word = (word * 0x5BD1E995) & 0xFFFFFFFF
        word ^= word >> 24
        word = (word * 0x5BD1E995) & 0xFFFFFFFF
        value = ((value * 0x5BD1E995) & 0xFFFFFFFF) ^ word
    if whole < end:
        word = wide(0)
        for at in range(whole, end):
            word |= load(address, at) << (8 * (at - whole))
        value ^= word
        value = (value * 0x5BD1E995) & 0xFFFFFFFF
    value ^= value >> 13
    value = (value * 0x5BD1E995) & 0xFFFFFFFF
    return value ^ value >> 15
