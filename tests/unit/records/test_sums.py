"""Sums of runs: any cut of the batches adds up, and another batch, place or partition shows."""

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.model.errors import CorruptDataError
from penstock.records.batch import patch_run
from penstock.records.sums import (
    SUM_MASK,
    batch_sum,
    join_sums,
    partition_seed,
    run_sum,
    topic_seed,
)
from support.batches import make_batch

TOPIC = bytes(range(16))
SEED = partition_seed(TOPIC, 3)
EPOCH = 2
EXPECTED_TOPIC_SEED = 0xB047F992E27186CC
EXPECTED_SEED = 0x8AEE66BF6050FB0B
EXPECTED_SUM = 0x160F0D1C76F9DCCF


@dataclass(frozen=True)
class _Place:
    seed: int
    base_offset: int
    epoch: int
    crc: int
    length: int

    @property
    def sum(self) -> int:
        return batch_sum(self.seed, self.base_offset, self.epoch, self.crc, self.length)


def _batch(values: list[bytes]) -> bytes:
    return bytes(make_batch(*values))


batches_strategy = st.lists(
    st.lists(st.binary(max_size=20), min_size=1, max_size=4).map(_batch), min_size=1, max_size=8
)


def _final(batches: list[bytes], base_offset: int = 100) -> list[bytes]:
    """The batches with final base offsets and labels."""
    whole = bytearray(b"".join(batches))
    patch_run(memoryview(whole), base_offset, EPOCH, subject="test")
    ends = list(itertools.accumulate(len(batch) for batch in batches))
    return [bytes(whole[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


@given(batches_strategy, st.data())
def test_sums_of_parts_add_up_to_that_of_the_whole(batches: list[bytes], data: st.DataObject):  # type: ignore[no-untyped-def]
    stored = _final(batches)
    whole = run_sum(memoryview(b"".join(stored)), SEED)
    cut = data.draw(st.integers(0, len(stored)))
    first, second = b"".join(stored[:cut]), b"".join(stored[cut:])
    assert join_sums(run_sum(memoryview(first), SEED), run_sum(memoryview(second), SEED)) == whole
    assert 0 <= whole <= SUM_MASK


@given(batches_strategy)
def test_the_sum_is_the_same_before_and_after_offsets_are_final(batches: list[bytes]) -> None:
    raw = run_sum(memoryview(b"".join(batches)), SEED, base_offset=100, leader_epoch=EPOCH)
    assert raw == run_sum(memoryview(b"".join(_final(batches))), SEED)


@given(batches_strategy)
def test_a_run_is_the_sum_of_the_slow_twin(batches: list[bytes]) -> None:
    total = 0
    for stored in _final(batches):
        offset, crc = int.from_bytes(stored[:8], "big"), int.from_bytes(stored[17:21], "big")
        total += batch_sum(SEED, offset, EPOCH, crc, len(stored))
    assert run_sum(memoryview(b"".join(_final(batches))), SEED) == total & SUM_MASK


def test_an_empty_run_is_zero_and_what_is_unknown_stays_so() -> None:
    assert run_sum(memoryview(b""), SEED) == 0
    assert join_sums(None, 1) is None
    assert join_sums(1, None) is None
    assert join_sums(SUM_MASK, 2) == 1


places = st.builds(
    _Place,
    st.integers(0, 2**20 - 1).map(lambda partition: partition_seed(TOPIC, partition)),
    st.integers(0, 2**48),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(61, 2**31 - 1),
)


@given(places, places)
def test_another_value_of_any_field_is_another_sum(place: _Place, other: _Place) -> None:
    for field in ("seed", "base_offset", "epoch", "crc", "length"):
        if getattr(place, field) != getattr(other, field):
            assert replace(place, **{field: getattr(other, field)}).sum != place.sum


@given(places, st.integers(0, 7), st.integers(0, 62))
def test_one_flipped_bit_is_another_sum(place: _Place, step: int, bit: int) -> None:
    """Any bit of a header that the sum holds, at each of the fields' ends."""
    assert replace(place, crc=place.crc ^ 1 << bit % 32).sum != place.sum
    assert replace(place, length=place.length ^ 1 << bit % 31).sum != place.sum
    assert replace(place, base_offset=place.base_offset ^ 1 << bit).sum != place.sum
    assert replace(place, epoch=place.epoch ^ 1 << bit % 31).sum != place.sum


@given(places, places)
def test_swapped_batches_are_another_sum(first: _Place, second: _Place) -> None:
    """Two batches in one another's places, of one partition or of two."""
    assume((first.crc, first.length) != (second.crc, second.length))
    assume((first.seed, first.base_offset) != (second.seed, second.base_offset))
    assume(first.epoch == second.epoch or first.seed != second.seed)
    swapped = (
        replace(first, crc=second.crc, length=second.length),
        replace(second, crc=first.crc, length=first.length),
    )
    assert (swapped[0].sum + swapped[1].sum) & SUM_MASK != (first.sum + second.sum) & SUM_MASK


@pytest.mark.slow
def test_small_neighbours_have_sums_of_their_own() -> None:
    """What is likely to be mixed up differs by little: partitions, offsets and epochs beside one
    another, lengths and CRCs that differ in one bit."""
    sums = [
        batch_sum(partition_seed(topic, partition), offset, epoch, crc, length)
        for topic in (TOPIC, bytes(16), bytes(15) + b"\x01", b"\x01" + bytes(15))
        for partition in range(6)
        for offset in range(20)
        for epoch in range(3)
        for crc in (0, 1, 2, 1 << 31)
        for length in (61, 62, 70)
    ]
    assert len(set(sums)) == len(sums)
    # Every bit is set in about half of them.
    for bit in range(63):
        assert 0.45 < sum(number >> bit & 1 for number in sums) / len(sums) < 0.55


def test_seeds_are_what_the_journal_was_written_with() -> None:
    """These numbers are in states and journals: the functions may never give others."""
    assert topic_seed(TOPIC) == EXPECTED_TOPIC_SEED
    assert SEED == EXPECTED_SEED
    assert batch_sum(SEED, 5, 1, 0xDEADBEEF, 99) == EXPECTED_SUM


@pytest.mark.parametrize("base_offset", [None, 7])
def test_what_is_no_whole_batch_is_named(base_offset: int | None) -> None:
    batch = _batch([b"v"])
    for damaged in (batch[:-1], batch + b"x", batch + batch[:60], bytes(80)):
        with pytest.raises(CorruptDataError, match=r"read run seg-1: .* at byte \d+ of the run"):
            run_sum(memoryview(damaged), SEED, base_offset=base_offset, subject="seg-1")
