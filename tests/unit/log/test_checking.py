"""What was found right has the sum that the slow twin gives, whole or piece by piece."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.checking import (
    Checked,
    Pieces,
    Rules,
    check_and_label,
    check_batches,
    check_pieces,
)
from penstock.model.ids import PartitionKey
from penstock.records.batch import patch_base_offset
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.sums import run_sum
from penstock.state.rows import StoredRun
from support.batches import make_batch

SEED = (1 << 64) - 9


def _batches(sizes: list[tuple[int, int]]) -> list[bytes]:
    """Batches of one record of so many bytes, labelled with so great an epoch, from offset 5 on."""
    return [
        bytes(make_batch(bytes(size), offset=offset, epoch=epoch))
        for offset, (size, epoch) in enumerate(sizes, start=5)
    ]


SIZES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 2)), min_size=1, max_size=8)


@given(SIZES, st.data())
def test_the_sum_is_that_of_the_batches_before_the_first_fault(
    sizes: list[tuple[int, int]], data: st.DataObject
) -> None:
    batches = _batches(sizes)
    # Labels aren't known here, so that each may be another.
    rules = Rules(5 + len(batches), seed=SEED)
    whole = memoryview(b"".join(batches))
    checked = check_batches(whole, rules, 5)
    assert (checked.fault, checked.sum) == (None, run_sum(whole, SEED))
    assert check_batches(whole, rules._replace(seed=None), 5).sum == 0
    damaged = data.draw(st.integers(0, len(batches) - 1))
    body = bytearray(whole)
    body[sum(map(len, batches[:damaged])) + 62] ^= 1
    checked = check_batches(memoryview(body), rules, 5)
    assert checked.fault is not None
    assert checked.sum == run_sum(memoryview(b"".join(batches[:damaged])), SEED)


@given(SIZES, st.lists(st.integers(0, 900), max_size=5))
def test_pieces_have_the_sum_of_the_whole(sizes: list[tuple[int, int]], cuts: list[int]) -> None:
    whole = memoryview(b"".join(_batches(sizes)))
    pieces = Pieces(Rules(5 + len(sizes), seed=SEED), 5, 0)
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for start, end in pairwise(bounds):
        pieces.add(whole[start:end])
    assert pieces.finish() is None
    assert pieces.sum == run_sum(whole, SEED)


def _raw(values: list[bytes]) -> bytes:
    """A run as producers sent it: batches of one record each."""
    records = [
        Record(offset_delta=0, timestamp=5, key=None, value=value, headers=()) for value in values
    ]
    return b"".join(bytes(encode_batch([record])) for record in records)


def test_batches_before_a_fault_are_right_only_where_the_headers_are_the_runs() -> None:
    right = _raw([b"a", b"bb", b"ccc"])
    total = run_sum(memoryview(right), SEED, base_offset=7, leader_epoch=0)
    run = StoredRun(PartitionKey(1), 7, 10, 0, "o", 16, len(right), 5, 3, 500, raw=1, sum=total)
    assert check_and_label(memoryview(bytearray(right)), run, SEED) is None
    # A bit of the last record: its batch alone is damaged.
    flipped = bytearray(right)
    flipped[-2] ^= 1
    fault = check_and_label(memoryview(flipped), run, SEED)
    assert fault is not None
    assert (fault.position, fault.offset) == (len(_raw([b"a", b"bb"])), 9)
    # Another run's bytes of that length: a batch is whole and is nothing of this run.
    others = _raw([b"zz", b"yyyyyyyyy"])
    others += bytes(len(right) - len(others))
    fault = check_and_label(memoryview(bytearray(others)), run, SEED)
    assert fault is not None
    assert (fault.position, fault.offset, fault.end_offset) == (0, 7, 10)
    # Where no sum is known, nothing tells the two apart.
    fault = check_and_label(memoryview(bytearray(others)), run, None)
    assert fault is not None
    assert fault.position > 0


def test_each_rule_of_a_batch_is_a_fault_of_its_own() -> None:
    """What lies outside a batch's CRC: its offset, its label, and where its run ends."""
    first, second, third = _batches([(1, 0), (2, 1), (3, 1)])
    whole = memoryview(first + second + third)
    epochs = [(0, 0), (1, 6)]
    rules = Rules(8, epochs=epochs)
    assert check_batches(whole, rules, 5).fault is None
    # The label of an offset where another epoch has begun, or not yet.
    for starts in ([(0, 0), (1, 7)], [(0, 0)], [(0, 0), (1, 6), (2, 7)]):
        fault = check_batches(whole, Rules(8, epochs=starts), 5).fault
        assert fault is not None
        assert "leader epoch" in fault.detail
    # A gap that no compaction left, one that it may have left, and an offset twice.
    gapped = memoryview(first + third)
    fault = check_batches(gapped, rules, 5).fault
    assert fault is not None
    assert (fault.position, fault.offset) == (len(first), 6)
    assert check_batches(gapped, Rules(8, gap_end=8, epochs=epochs), 5).fault is None
    assert check_batches(gapped, Rules(8, gap_end=7, epochs=epochs), 5).fault is not None
    assert check_batches(memoryview(first + first), Rules(8, gap_end=8), 5).fault is not None
    assert check_batches(whole, Rules(7, epochs=epochs), 5).fault is not None


def test_a_run_that_ends_before_its_last_offset_is_a_fault() -> None:
    whole = memoryview(b"".join(_batches([(1, 0), (2, 0)])))
    for end, is_right in ((7, True), (8, False)):
        run = StoredRun(PartitionKey(1), 5, end, 0, "o", 16, len(whole), 5, 2, 500)
        found = check_pieces([whole[:80], whole[80:]], Rules(end), 5, 16, run)
        assert (found.fault is None) is is_right
        assert found.position == 16 + len(whole)


def test_offsets_after_a_damaged_batch_are_served_only_where_its_header_leads_to_them() -> None:
    first, second, third = _batches([(9, 0), (9, 0), (9, 0)])
    damaged = bytearray(second)
    damaged[-1] ^= 1
    rules = Rules(8)
    fault = check_batches(memoryview(first + damaged + third), rules, 5).fault
    assert fault is not None
    assert (fault.offset, fault.end_offset) == (6, 7)
    # What follows is a batch, and of another offset than the damaged header leads to.
    other = bytearray(third)
    patch_base_offset(memoryview(other), 6, 0)
    fault = check_batches(memoryview(first + damaged + bytes(other)), rules, 5).fault
    assert fault is not None
    assert (fault.offset, fault.end_offset) == (6, 8)


def _compacted() -> tuple[list[bytes], Rules]:
    """Batches of offsets 5, 7, 8 and 12, and their rules."""
    all_batches = _batches([(9, 0)] * 8)
    return [all_batches[n] for n in (0, 2, 3, 7)], Rules(13, gap_end=13, seed=SEED)


def _with_offset(batch: bytes, offset: int) -> bytes:
    changed = bytearray(batch)
    patch_base_offset(memoryview(changed), offset, 0)
    return bytes(changed)


def _run_of(batches: list[bytes]) -> StoredRun:
    data = memoryview(b"".join(batches))
    total = run_sum(data, SEED)
    return StoredRun(PartitionKey(1), 5, 13, 0, "o", 16, len(data), 5, len(batches), 500, sum=total)


@given(st.lists(st.integers(0, 400), max_size=6))
def test_a_base_offset_that_was_made_larger_is_not_taken_for_a_gap(cuts: list[int]) -> None:
    """It lies outside the CRC, and a gap of compaction looks the same up to the next batch."""
    right, rules = _compacted()
    run = _run_of(right)

    def check(parts: list[bytes]) -> Checked:
        whole = memoryview(b"".join(parts))
        bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
        pieces = [whole[start:end] for start, end in pairwise(bounds)]
        return check_pieces(pieces, rules, 5, 16, run)

    found = check(right)
    assert (found.fault, found.sum, found.batch_count) == (None, run.sum, 4)
    for offset in (9, 11):
        found = check([right[0], _with_offset(right[1], offset), *right[2:]])
        assert found.fault is not None
        size = len(right[0])
        assert (found.fault.position, found.fault.offset) == (16 + size, 6)
        assert (found.position, found.end_offset, found.batch_count) == (16 + size, 6, 1)
        assert found.fault.end_offset == 13
        assert found.sum == run_sum(memoryview(right[0]), SEED)
    # The second of two after a gap is not suspected for the first.
    found = check([*right[:3], _with_offset(right[3], 8)])
    assert found.fault is not None
    assert (found.fault.offset, found.batch_count) == (9, 3)


@given(st.lists(st.integers(0, 400), max_size=6))
def test_a_last_batch_after_a_gap_that_ends_too_early_is_not_right(cuts: list[int]) -> None:
    right, rules = _compacted()
    run = _run_of(right)
    whole = memoryview(b"".join([*right[:3], _with_offset(right[3], 11)]))
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(bounds)]
    found = check_pieces(pieces, rules, 5, 16, run)
    assert found.fault is not None
    assert (found.fault.offset, found.end_offset, found.batch_count) == (9, 9, 3)
    assert found.sum == run_sum(memoryview(b"".join(right[:3])), SEED)
