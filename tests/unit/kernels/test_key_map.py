"""The map of newest records gives what a dict gives, however little memory it has."""

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.key_map import SLOT_BYTES, KeyMap

RECORDS = st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=150)


@given(
    RECORDS,
    RECORDS,
    st.sampled_from((1, 8 * SLOT_BYTES, 64 * SLOT_BYTES, 1 << 20)),
    st.integers(1, 40),
)
def test_however_little_memory_there_is_the_newest_of_each_key_is_found(
    older: list[tuple[int, bool]], records: list[tuple[int, bool]], bytes_max: int, chunk: int
) -> None:
    """A map that is too small takes several passes, each over other keys."""
    of_key = np.random.default_rng(5).integers(0, 2**63, (61, 2)).astype(np.uint64)

    def arrays(rows: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
        hashes = np.array([of_key[key] for key, _ in rows], dtype=np.uint64).reshape(-1, 2)
        return hashes, np.array([has for _, has in rows], dtype=np.uint8)

    hashes, has_key = arrays(records)
    old_hashes, old_has_key = arrays(older)
    newest = {key: at for at, (key, has) in enumerate(records) if has}
    superseded = np.zeros(len(records) // 8 + 1, dtype=np.uint8)
    keep = np.ones(len(older), dtype=np.uint8)
    left = [(1, 0)]
    passes = 0
    while left:
        modulus, residue = left.pop()
        found = KeyMap(bytes_max=bytes_max, keys_max=len(records), modulus=modulus, residue=residue)
        for part in parts(len(records), chunk):
            found.add(hashes[part], has_key[part], part.start, superseded)
        left += found.left
        for part in parts(len(older), chunk):
            found.mark_superseded(old_hashes[part], old_has_key[part], keep[part])
        passes += 1
    bits = np.unpackbits(superseded, bitorder="little")[: len(records)]
    assert bits.tolist() == [
        int(has and newest[key] != at) for at, (key, has) in enumerate(records)
    ]
    assert keep.tolist() == [int(not has or key not in newest) for key, has in older]
    if len(newest) > bytes_max // SLOT_BYTES > 8:
        assert passes > 1


def parts(count: int, chunk: int) -> Iterable[slice]:
    return (slice(start, start + chunk) for start in range(0, count, chunk))
