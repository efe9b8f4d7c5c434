"""SipHash-2-4 with 128 bits inside kernels.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF"; the reference code's 128-bit
variant. The slow twin is in `tests/support/twins/keyed.py`.
"""

import numpy as np

from penstock.kernels.jit import kernel
from penstock.kernels.memory import load, load_word

_0 = np.uint64(0x736F6D6570736575)
_1 = np.uint64(0x646F72616E646F6D)
_2 = np.uint64(0x6C7967656E657261)
_3 = np.uint64(0x7465646279746573)
_EE = np.uint64(0xEE)
_DD = np.uint64(0xDD)
_13, _51 = np.uint64(13), np.uint64(51)
_16, _48 = np.uint64(16), np.uint64(48)
_17, _47 = np.uint64(17), np.uint64(47)
_21, _43 = np.uint64(21), np.uint64(43)
_32 = np.uint64(32)


@kernel
def _round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    v0 += v1
    v1 = (v1 << _13 | v1 >> _51) ^ v0
    v0 = v0 << _32 | v0 >> _32
    v2 += v3
    v3 = (v3 << _16 | v3 >> _48) ^ v2
    v0 += v3
    v3 = (v3 << _21 | v3 >> _43) ^ v0
    v2 += v1
    v1 = (v1 << _17 | v1 >> _47) ^ v2
    v2 = v2 << _32 | v2 >> _32
    return v0, v1, v2, v3


@kernel
def siphash(
    address: int, start: int, end: int, k0: np.uint64, k1: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """The hash of the bytes [start, end): (high, low).

    Args:
        k0, k1: the hash's key.
    """
    v0 = k0 ^ _0
    v1 = k1 ^ _1 ^ _EE
    v2 = k0 ^ _2
    v3 = k1 ^ _3
    whole = start + ((end - start) & ~7)
    for at in range(start, whole, 8):
        word = load_word(address, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
    word = np.uint64((end - start) & 0xFF) << np.uint64(56)
    for index in range(end - whole):
        word |= np.uint64(load(address, whole + index)) << np.uint64(8 * index)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _EE
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _DD
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3, low
