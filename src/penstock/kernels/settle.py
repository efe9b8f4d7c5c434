"""Going through the batches of a run as they come: where the last whole one ends, and final base
offsets and labels where they aren't final yet.

The slow twin is `penstock.records.batch.patch_run`.
"""

from typing import Final

from penstock.kernels.arrays import Uint8s
from penstock.kernels.jit import kernel
from penstock.kernels.memory import read_int, write_int
from penstock.records.batch import HEADER_BYTES, LENGTH_END

NO_BATCH: Final = -1


def settle(
    data: Uint8s, start: int, end: int, *, expected: int, raw: int, log_start: int
) -> tuple[int, int, int]:
    """Go through data[start:end], which begins with a batch and may end within one.

    Args:
        expected: the offset of the first batch, or before it where base offsets are final.
        raw: not 0: base offsets aren't final: they are written, from `expected` on, and so is the
            leader epoch, which is one less.
        log_start: batches that end at or before it aren't wanted.

    Returns:
        The position behind the last whole batch, or NO_BATCH where there is none at that place;
        the offset behind it; and the position of the first batch that is wanted, at least `start`.
    """
    return _settle(data.ctypes.data, start, end, expected, int(raw), log_start)


@kernel
def _settle(
    address: int, start: int, end: int, expected: int, raw: int, log_start: int
) -> tuple[int, int, int]:
    position, wanted = start, start
    while end - position >= HEADER_BYTES:
        base_offset = read_int(address, position, 8)
        size = LENGTH_END + read_int(address, position + 8, 4)
        delta = read_int(address, position + 23, 4)
        if size < HEADER_BYTES or delta < 0 or (not raw and base_offset < expected):
            return NO_BATCH, base_offset, position
        if size > end - position:
            break
        if raw:
            base_offset = expected
            write_int(address, position, expected, 8)
            write_int(address, position + LENGTH_END, raw - 1, 4)
        expected = base_offset + delta + 1
        position += size
        if expected <= log_start:
            wanted = position
    return position, expected, wanted
