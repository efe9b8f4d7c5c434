"""The newest offset of each key: open addressing over arrays, keys by their 128-bit hashes.

As Kafka's SkimpyOffsetMap keeps them, 24 bytes a key and no key itself. The slow twin is a dict.
Keys that don't fit are left to later passes: the map then narrows to the hashes of one residue
(`modulus`, a power of two), and says which residues are still to be done.
"""

from typing import Final

import numpy as np

from penstock.kernels.arrays import Int64s, Uint8s, Uint64s, unsigned
from penstock.kernels.jit import kernel

SLOT_BYTES: Final = 24
LOAD_MAX: Final = 0.7
_NONE: Final = -1


class OffsetMap:
    """Newest offsets of the keys whose hash has one residue.

    Args:
        bytes_max: memory for slots; at least some hundred.
        records_max: no more keys than this will come.
    """

    def __init__(self, *, bytes_max: int, records_max: int, modulus: int = 1, residue: int = 0):
        wanted = int(records_max / LOAD_MAX) + 8
        slots = 1 << max(3, min(wanted - 1, max(8, bytes_max // SLOT_BYTES)).bit_length())
        while slots * SLOT_BYTES > bytes_max and slots > 8:
            slots //= 2
        self._high = np.zeros(slots, dtype=np.uint64)
        self._low = np.zeros(slots, dtype=np.uint64)
        self._offsets = np.full(slots, _NONE, dtype=np.int64)
        self._keys_max = max(1, int(slots * LOAD_MAX))
        self.key_count = 0
        self.modulus = modulus
        self.residue = residue
        self.left: list[tuple[int, int]] = []
        """Residues that were given up for want of room: (modulus, residue)."""

    def add(self, hashes: Uint64s, offsets: Int64s, has_key: Uint8s) -> None:
        """Take note of records in offset order; those without a key or of other residues don't
        count."""
        start = 0
        while start < len(offsets):
            start, self.key_count = _insert(
                self._high,
                self._low,
                self._offsets,
                hashes,
                offsets,
                has_key,
                start,
                self.key_count,
                self._keys_max,
                self.modulus,
                self.residue,
            )
            if start < len(offsets):
                self._narrow()

    def mark_superseded(
        self, hashes: Uint64s, offsets: Int64s, has_key: Uint8s, keep: Uint8s
    ) -> None:
        """Set `keep` to 0 for records whose key has a newer one."""
        _mark_superseded(
            self._high,
            self._low,
            self._offsets,
            hashes,
            offsets,
            has_key,
            keep,
            self.modulus,
            self.residue,
        )

    def _narrow(self) -> None:
        """Give up half of the residue's hashes."""
        assert self.modulus < 1 << 60, "hashes that are alike in 60 bits"
        self.left.append((2 * self.modulus, self.residue + self.modulus))
        self.modulus *= 2
        mask = unsigned(self.modulus - 1)
        kept = (self._offsets != _NONE) & ((self._low & mask) == unsigned(self.residue))
        hashes = np.column_stack((self._high[kept], self._low[kept]))
        offsets = self._offsets[kept]
        self._offsets.fill(_NONE)
        has_key = np.ones(len(offsets), dtype=np.uint8)
        _, self.key_count = _insert(
            self._high,
            self._low,
            self._offsets,
            hashes,
            offsets,
            has_key,
            0,
            0,
            self._keys_max + 1,
            self.modulus,
            self.residue,
        )


@kernel
def _insert(
    table_high: Uint64s,
    table_low: Uint64s,
    table_offsets: Int64s,
    hashes: Uint64s,
    offsets: Int64s,
    has_key: Uint8s,
    start: int,
    key_count: int,
    keys_max: int,
    modulus: int,
    residue: int,
) -> tuple[int, int]:
    """From record `start` on until the table is full: (record at which it stopped, keys)."""
    mask = unsigned(len(table_offsets) - 1)
    residue_mask = unsigned(modulus - 1)
    wanted = unsigned(residue)
    for record in range(start, len(offsets)):
        high, low = hashes[record, 0], hashes[record, 1]
        if not has_key[record] or (low & residue_mask) != wanted:
            continue
        slot = high & mask
        while True:
            if table_offsets[slot] < 0:
                if key_count >= keys_max:
                    return record, key_count
                table_high[slot] = high
                table_low[slot] = low
                table_offsets[slot] = offsets[record]
                key_count += 1
                break
            if table_high[slot] == high and table_low[slot] == low:
                table_offsets[slot] = max(table_offsets[slot], offsets[record])
                break
            slot = (slot + unsigned(1)) & mask
    return len(offsets), key_count


@kernel
def _mark_superseded(
    table_high: Uint64s,
    table_low: Uint64s,
    table_offsets: Int64s,
    hashes: Uint64s,
    offsets: Int64s,
    has_key: Uint8s,
    keep: Uint8s,
    modulus: int,
    residue: int,
) -> None:
    mask = unsigned(len(table_offsets) - 1)
    residue_mask = unsigned(modulus - 1)
    wanted = unsigned(residue)
    for record in range(len(offsets)):
        high, low = hashes[record, 0], hashes[record, 1]
        if not has_key[record] or (low & residue_mask) != wanted:
            continue
        slot = high & mask
        while table_offsets[slot] >= 0:
            if table_high[slot] == high and table_low[slot] == low:
                if offsets[record] < table_offsets[slot]:
                    keep[record] = 0
                break
            slot = (slot + unsigned(1)) & mask
