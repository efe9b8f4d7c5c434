"""The newest record of each key: open addressing over arrays, keys by their 128-bit hashes.

As Kafka's SkimpyOffsetMap, 24 bytes a key and no key itself; records go by their ordinals, so that
a bit per record tells which ones are superseded. The slow twin is a dict. Keys that don't fit are
left to later passes: the map then narrows to the hashes of one residue (`modulus`, a power of two),
and says which residues are still to be done.
"""

from typing import Final

import numpy as np

from penstock.kernels.arrays import Int64s, Uint8s, Uint64s, byte, unsigned
from penstock.kernels.jit import kernel

SLOT_BYTES: Final = 24
LOAD_MAX: Final = 0.7
_NONE: Final = -1


class KeyMap:
    """Newest records of the keys whose hash has one residue.

    Args:
        bytes_max: memory for slots; at least some hundred.
        keys_max: no more keys than this will come.
    """

    def __init__(
        self, *, bytes_max: int, keys_max: int, modulus: int = 1, residue: int = 0
    ) -> None:
        wanted = int(keys_max / LOAD_MAX) + 8
        slots = 1 << max(3, min(wanted - 1, max(8, bytes_max // SLOT_BYTES)).bit_length())
        while slots * SLOT_BYTES > bytes_max and slots > 8:
            slots //= 2
        self._hashes = np.zeros((slots, 2), dtype=np.uint64)
        self._records = np.full(slots, _NONE, dtype=np.int64)
        self._keys_max = max(1, int(slots * LOAD_MAX))
        self.key_count = 0
        self.modulus = modulus
        self.residue = residue
        self.left: list[tuple[int, int]] = []
        """Residues that were given up for want of room: (modulus, residue)."""

    def add(self, hashes: Uint64s, has_key: Uint8s, first: int, superseded: Uint8s) -> None:
        """Take note of records that follow those before.

        Args:
            hashes: shape (records, 2).
            has_key: per record; those without, and of other residues, don't count.
            first: ordinal of the first of them.
            superseded: a bit per ordinal, the lowest first: set for records whose key comes again.
        """
        start = 0
        while start < len(hashes):
            start, self.key_count = _insert(
                self._hashes,
                self._records,
                hashes,
                has_key,
                first,
                superseded,
                start,
                self.key_count,
                self._keys_max,
                self.modulus,
                self.residue,
            )
            if start < len(hashes):
                self._narrow()

    def mark_superseded(self, hashes: Uint64s, has_key: Uint8s, keep: Uint8s) -> None:
        """Set `keep` to 0 for records before all that were added, if their key is among those."""
        _mark_superseded(
            self._hashes, self._records, hashes, has_key, keep, self.modulus, self.residue
        )

    def _narrow(self) -> None:
        """Give up half of the residue's hashes."""
        assert self.modulus < 1 << 60, "hashes that are alike in 60 bits"
        self.left.append((2 * self.modulus, self.residue + self.modulus))
        self.modulus *= 2
        mask = unsigned(self.modulus - 1)
        kept = (self._records != _NONE) & ((self._hashes[:, 1] & mask) == unsigned(self.residue))
        hashes, records = self._hashes[kept], self._records[kept]
        self._records.fill(_NONE)
        self.key_count = len(records)
        _insert_again(self._hashes, self._records, hashes, records)


@kernel
def _insert(
    table: Uint64s,
    table_records: Int64s,
    hashes: Uint64s,
    has_key: Uint8s,
    first: int,
    superseded: Uint8s,
    start: int,
    key_count: int,
    keys_max: int,
    modulus: int,
    residue: int,
) -> tuple[int, int]:
    """From record `start` on until the table is full: (record at which it stopped, keys)."""
    mask = unsigned(len(table_records) - 1)
    residue_mask = unsigned(modulus - 1)
    wanted = unsigned(residue)
    for record in range(start, len(hashes)):
        high, low = hashes[record, 0], hashes[record, 1]
        if not has_key[record] or (low & residue_mask) != wanted:
            continue
        slot = high & mask
        while True:
            before = table_records[slot]
            if before < 0:
                if key_count >= keys_max:
                    return record, key_count
                table[slot, 0] = high
                table[slot, 1] = low
                table_records[slot] = first + record
                key_count += 1
                break
            if table[slot, 0] == high and table[slot, 1] == low:
                superseded[before >> 3] |= byte(1 << (before & 7))
                table_records[slot] = first + record
                break
            slot = (slot + unsigned(1)) & mask
    return len(hashes), key_count


@kernel
def _insert_again(table: Uint64s, table_records: Int64s, hashes: Uint64s, records: Int64s) -> None:
    """Into an empty table, keys that all differ."""
    mask = unsigned(len(table_records) - 1)
    for key in range(len(records)):
        slot = hashes[key, 0] & mask
        while table_records[slot] >= 0:
            slot = (slot + unsigned(1)) & mask
        table[slot, 0] = hashes[key, 0]
        table[slot, 1] = hashes[key, 1]
        table_records[slot] = records[key]


@kernel
def _mark_superseded(
    table: Uint64s,
    table_records: Int64s,
    hashes: Uint64s,
    has_key: Uint8s,
    keep: Uint8s,
    modulus: int,
    residue: int,
) -> None:
    mask = unsigned(len(table_records) - 1)
    residue_mask = unsigned(modulus - 1)
    wanted = unsigned(residue)
    for record in range(len(hashes)):
        high, low = hashes[record, 0], hashes[record, 1]
        if not has_key[record] or (low & residue_mask) != wanted:
            continue
        slot = high & mask
        while table_records[slot] >= 0:
            if table[slot, 0] == high and table[slot, 1] == low:
                keep[record] = 0
                break
            slot = (slot + unsigned(1)) & mask
