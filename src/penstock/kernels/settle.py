"""Going through the batches of a run as they come: where the last whole one ends, and final base
offsets and labels where they aren't final yet.

The slow twins are `penstock.records.batch.patch_run` and `penstock.records.sums.run_sum`.
"""

from typing import Final

import numpy as np

from penstock.kernels.arrays import Uint8s, unsigned
from penstock.kernels.jit import kernel
from penstock.kernels.memory import read_int, write_int
from penstock.records.batch import HEADER_BYTES, LENGTH_END
from penstock.records.sums import EPOCH_STEP, MULTIPLIER

NO_BATCH: Final = -1
_EPOCH_STEP, _MULTIPLIER = np.uint64(EPOCH_STEP), np.uint64(MULTIPLIER)
_NONE, _32, _LOW = np.uint64(0), np.uint64(32), np.uint64((1 << 32) - 1)


def settle(
    data: Uint8s, start: int, end: int, *, expected: int, raw: int, log_start: int, seed: int
) -> tuple[int, int, int, int]:
    """Go through data[start:end], which begins with a batch and may end within one.

    Args:
        expected: the offset of the first batch, or before it where base offsets are final.
        raw: not 0: base offsets aren't final: they are written, from `expected` on, and so is the
            leader epoch, which is one less.
        log_start: batches that end at or before it aren't wanted.
        seed: of the partition's sums.

    Returns:
        The position behind the last whole batch, or NO_BATCH where there is none at that place;
        the offset behind it; the position of the first batch that is wanted, at least `start`; and
        the sum of the whole batches, modulo 2^64.
    """
    behind, following, wanted, total = _settle(
        data.ctypes.data, start, end, expected, int(raw), log_start, unsigned(seed)
    )
    return behind, following, wanted, int(total)


@kernel
def _settle(
    address: int,
    start: int,
    end: int,
    expected: int,
    raw: int,
    log_start: int,
    seed: np.uint64,
) -> tuple[int, int, int, np.uint64]:
    position, wanted = start, start
    total = _NONE
    while end - position >= HEADER_BYTES:
        base_offset = read_int(address, position, 8)
        size = LENGTH_END + read_int(address, position + 8, 4)
        delta = read_int(address, position + 23, 4)
        if size < HEADER_BYTES or delta < 0 or (not raw and base_offset < expected):
            return NO_BATCH, base_offset, position, total
        if size > end - position:
            break
        if raw:
            base_offset = expected
            write_int(address, position, expected, 8)
            write_int(address, position + LENGTH_END, raw - 1, 4)
        total += _batch_sum(
            seed,
            base_offset,
            read_int(address, position + LENGTH_END, 4),
            read_int(address, position + 17, 4),
            size,
        )
        expected = base_offset + delta + 1
        position += size
        if expected <= log_start:
            wanted = position
    return position, expected, wanted, total


@kernel
def _batch_sum(
    seed: np.uint64, base_offset: int, leader_epoch: int, crc: int, length: int
) -> np.uint64:
    start = seed + np.uint64(leader_epoch) * _EPOCH_STEP
    low = start + np.uint64(base_offset)
    factor = ((np.uint64(crc) & _LOW) << _32 | np.uint64(length)) ^ _MULTIPLIER
    # The upper half of the product, by halves of both factors.
    a0, a1, b0, b1 = low & _LOW, low >> _32, factor & _LOW, factor >> _32
    p00, p01, p10 = a0 * b0, a0 * b1, a1 * b0
    middle = (p00 >> _32) + (p01 & _LOW) + (p10 & _LOW)
    high = a1 * b1 + (p01 >> _32) + (p10 >> _32) + (middle >> _32)
    if low < start:
        high += factor
    return low * factor ^ high
