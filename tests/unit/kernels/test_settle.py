"""Going through a run's batches gives what the slow twin gives, and refuses what is none."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.settle import NO_BATCH, settle
from penstock.records.batch import patch_run, stored_header
from penstock.records.sums import SUM_MASK, run_sum
from support.batches import make_batch


def batches(sizes: list[tuple[int, int]], *, base_offset: int) -> list[bytes]:
    """Batches of so many offsets with values of so many bytes, one behind the other."""
    found = []
    for count, size in sizes:
        one = make_batch(bytes(size), keys=[b"k"], deltas=[count - 1], offset=base_offset)
        found.append(bytes(one))
        base_offset += count
    return found


SEED = (1 << 64) - 5
"""So near to its end that offsets carry."""
SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 90)), max_size=8)


@given(SIZES, st.integers(0, 10**12), st.integers(0, 300), st.integers(0, 40), st.integers(0, 9))
def test_raw_batches_are_patched_as_by_the_twin(
    sizes: list[tuple[int, int]], expected: int, cut: int, passed: int, leader_epoch: int
) -> None:
    found = batches(sizes, base_offset=7)
    whole = b"".join(found)
    data = np.frombuffer(bytearray(b"before" + whole + b"behind"), dtype=np.uint8)
    end = max(6, 6 + len(whole) - cut)
    log_start = expected + passed
    behind, following, wanted, total = settle(
        data, 6, end, expected=expected, raw=1 + leader_epoch, log_start=log_start, seed=SEED
    )
    kept = 0
    while kept < len(found) and 6 + sum(map(len, found[: kept + 1])) <= end:
        kept += 1
    twin = bytearray(b"".join(found[:kept]))
    assert following == patch_run(memoryview(twin), expected, leader_epoch, subject="twin")
    assert behind == 6 + len(twin)
    assert total & SUM_MASK == run_sum(memoryview(twin), SEED)
    assert data.tobytes() == b"before" + bytes(twin) + whole[len(twin) :] + b"behind"
    offset, position = expected, 6
    for batch, (count, _) in zip(found[:kept], sizes, strict=False):
        offset += count
        if offset <= log_start:
            position += len(batch)
    assert wanted == position


@given(SIZES.filter(bool), st.integers(0, 20))
def test_final_offsets_stay_and_must_ascend(sizes: list[tuple[int, int]], gap: int) -> None:
    whole = b"".join(batches(sizes, base_offset=100 + gap))
    data = np.frombuffer(bytearray(whole), dtype=np.uint8)
    end_offset = 100 + gap + sum(count for count, _ in sizes)
    *found, total = settle(data, 0, len(whole), expected=100, raw=0, log_start=0, seed=SEED)
    assert found == [len(whole), end_offset, 0]
    assert total & SUM_MASK == run_sum(memoryview(whole), SEED)
    assert data.tobytes() == whole
    behind, *_ = settle(data, 0, len(whole), expected=101 + gap, raw=0, log_start=0, seed=SEED)
    assert behind == NO_BATCH


@given(st.binary(min_size=61, max_size=400), st.booleans())
def test_any_bytes_end_within_bounds(body: bytes, is_raw: bool) -> None:
    data = np.frombuffer(bytearray(body), dtype=np.uint8)
    behind, _, wanted, _ = settle(
        data, 0, len(body), expected=0, raw=int(is_raw), log_start=0, seed=SEED
    )
    assert behind == NO_BATCH or 0 <= wanted <= behind <= len(body)
    if behind == len(body):
        assert stored_header(body, wanted).length <= len(body)
