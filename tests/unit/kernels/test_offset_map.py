"""The map of newest offsets gives what a dict gives, however little memory it has."""

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.offset_map import SLOT_BYTES, OffsetMap


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=150),
    st.sampled_from((1, 8 * SLOT_BYTES, 64 * SLOT_BYTES, 1 << 20)),
    st.integers(1, 40),
)
def test_however_little_memory_there_is_the_newest_of_each_key_is_found(
    records: list[tuple[int, bool]], bytes_max: int, chunk: int
) -> None:
    """A map that is too small takes several passes, each over other keys."""
    of_key = np.random.default_rng(5).integers(0, 2**63, (61, 2)).astype(np.uint64)
    hashes = np.array([of_key[key] for key, _ in records], dtype=np.uint64).reshape(-1, 2)
    has_key = np.array([has for _, has in records], dtype=np.uint8)
    offsets = np.arange(1000, 1000 + len(records), dtype=np.int64)
    newest = {key: at for at, (key, has) in zip(offsets.tolist(), records, strict=True) if has}
    keep = np.ones(len(records), dtype=np.uint8)
    left = [(1, 0)]
    passes = 0
    while left:
        modulus, residue = left.pop()
        found = OffsetMap(
            bytes_max=bytes_max, records_max=len(records), modulus=modulus, residue=residue
        )
        for part in parts(len(records), chunk):
            found.add(hashes[part], offsets[part], has_key[part])
        left += found.left
        for part in parts(len(records), chunk):
            found.mark_superseded(hashes[part], offsets[part], has_key[part], keep[part])
        passes += 1
    assert keep.tolist() == [
        int(not has or newest[key] == offset)
        for offset, (key, has) in zip(offsets.tolist(), records, strict=True)
    ]
    if len(newest) > bytes_max // SLOT_BYTES > 8:
        assert passes > 1


def parts(count: int, chunk: int) -> Iterable[slice]:
    return (slice(start, start + chunk) for start in range(0, count, chunk))
