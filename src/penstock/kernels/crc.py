"""CRC-32C inside kernels, of many short stretches: a call of the library for each costs more than
the sum. The twin is the library, `crc32c.crc32c`.

Eight bytes at a time by eight tables ("slicing by 8", Kounavis and Berry 2005): instructions of the
processor would be faster, and would have to be chosen for each kind of it.
"""

from typing import Final

import numpy as np
from numpy import uint32, uint64

from penstock.kernels.arrays import wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import load, load_word

_POLYNOMIAL: Final = 0x82F63B78
_SLICES: Final = 8


def _tables() -> "np.ndarray[tuple[int, int], np.dtype[uint32]]":
    rows = [[0] * 256 for _ in range(_SLICES)]
    for number in range(256):
        crc = number
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        rows[0][number] = crc
    for number in range(256):
        for row in range(1, _SLICES):
            before = rows[row - 1][number]
            rows[row][number] = before >> 8 ^ rows[0][before & 0xFF]
    return np.array(rows, dtype=uint32)


_TABLES: Final = _tables()
_ALL, _8, _BYTE = uint32(0xFFFFFFFF), uint32(8), uint32(0xFF)
_W8, _W16, _W24, _W32, _W40, _W48, _W56 = (uint64(8 * number) for number in range(1, 8))
_LOW: Final = uint64(0xFF)


@kernel
def crc_of(address: int, start: int, end: int) -> int:
    """The CRC-32C of the bytes [start, end)."""
    tables = _TABLES
    crc = _ALL
    position = start
    while end - position >= 8:
        word = load_word(address, position) ^ uint64(crc)
        crc = (
            tables[7, word & _LOW]
            ^ tables[6, (word >> _W8) & _LOW]
            ^ tables[5, (word >> _W16) & _LOW]
            ^ tables[4, (word >> _W24) & _LOW]
            ^ tables[3, (word >> _W32) & _LOW]
            ^ tables[2, (word >> _W40) & _LOW]
            ^ tables[1, (word >> _W48) & _LOW]
            ^ tables[0, word >> _W56]
        )
        position += 8
    while position < end:
        crc = (crc >> _8) ^ tables[0, (crc ^ uint32(load(address, position))) & _BYTE]
        position += 1
    return wide(crc ^ _ALL)
