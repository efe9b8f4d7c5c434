"""What is kept of a damaged run: only batches that are known to be the run's."""

from msgspec.structs import replace

from penstock.log.damage.salvage import salvage
from penstock.model.ids import PartitionKey
from penstock.records.sums import run_sum
from penstock.state.rows import StoredRun
from support.batches import make_batch

SEED = (1 << 64) - 9
EPOCHS = ((0, 0),)


def batches(values: list[bytes], *, first: int = 5, epoch: int = 0) -> list[bytes]:
    """Of one record each."""
    return [bytes(make_batch(one, offset=at, epoch=epoch)) for at, one in enumerate(values, first)]


def run_of(parts: list[bytes], *, count: int | None = None) -> StoredRun:
    data = b"".join(parts)
    total = run_sum(memoryview(data), SEED)
    count = len(parts) if count is None else count
    return StoredRun(
        PartitionKey(1), 5, 5 + len(parts), 0, "o", 16, len(data), 5, count, 500, sum=total
    )


def flipped(batch: bytes, at: int = -1) -> bytes:
    data = bytearray(batch)
    data[at] ^= 1
    return bytes(data)


def offsets(
    parts: list[bytes], run: StoredRun, *, gap_end: int = 0, is_named: bool = True
) -> list[tuple[int, int]]:
    kept = salvage(
        memoryview(b"".join(parts)), run, SEED, EPOCHS, is_named=is_named, gap_end=gap_end
    )
    return [(one.base_offset, one.end_offset) for one in kept]


def test_where_the_headers_lead_through_the_run_one_batch_is_lost() -> None:
    right = batches([b"a", b"b", b"c"])
    run = run_of(right)
    assert offsets(right, run) == [(5, 8)]
    assert offsets([right[0], flipped(right[1]), right[2]], run) == [(5, 6), (7, 8)]


def test_without_sum_and_index_nothing_says_whose_the_batches_are() -> None:
    right = batches([b"a", b"b", b"c"])
    run = run_of(right)
    cut = right[:2]
    assert offsets(cut, run) == [(5, 7)]
    assert not offsets(cut, run, is_named=False)
    damaged = [right[0], flipped(right[1]), right[2]]
    assert offsets(damaged, run, is_named=False) == [(5, 6), (7, 8)], "the headers have the sum"


def test_where_the_headers_lead_elsewhere_all_from_the_damage_on_is_lost() -> None:
    """Whole batches that follow may be another run's."""
    right = batches([b"a", b"b", b"c", b"d"])
    run = run_of(right)
    damaged = [right[0], flipped(right[1]), right[2]]
    assert offsets(damaged, run) == [(5, 6)], "the run's end is missing"
    damaged = [right[0], flipped(right[1]), *right[2:]]
    assert offsets(damaged, run_of(right, count=5)) == [(5, 6)], "of another number of batches"


def test_of_batches_that_are_right_and_are_not_the_runs_nothing_is_kept() -> None:
    right = batches([b"a", b"b", b"c"])
    run = run_of(right)
    others = batches([b"a", b"x", b"c"])
    assert offsets(others, run) == []
    # Without a sum nothing shows that.
    assert offsets(others, replace(run, sum=None)) == [(5, 8)]


def test_a_batch_with_another_label_is_not_kept() -> None:
    right = batches([b"a", b"b", b"c"])
    labelled = batches([b"b"], first=6, epoch=3)
    assert offsets([right[0], *labelled, right[2]], run_of(right)) == [(5, 6), (7, 8)]


def test_a_batch_whose_base_offset_is_flipped_is_not_kept_at_that_offset() -> None:
    """A base offset lies outside the CRC; the next batch's offset is too small then."""
    right = batches([b"a", b"b", b"c", b"d"])
    run = run_of(right)
    damaged = [right[0], flipped(right[1], 7), *right[2:]]
    for gap_end in (0, 9):
        assert offsets(damaged, run, gap_end=gap_end) == [(5, 6)]


def gapped() -> tuple[list[bytes], StoredRun]:
    """Batches of offsets 5, 8 and 9: compaction has taken what was between."""
    right = [*batches([b"a"]), *batches([b"b", b"c"], first=8)]
    return right, replace(run_of(right), end_offset=10)


def test_batches_after_a_gap_are_kept_where_the_headers_have_the_sum() -> None:
    right, run = gapped()
    assert offsets(right, run, gap_end=10) == [(5, 10)]
    assert offsets(right, run, gap_end=8) == [(5, 6)], "there was no compaction"
    assert offsets([*right[:2], flipped(right[2])], run, gap_end=10) == [(5, 9)]
    # A bit of a header that is known to be flipped: of the CRC, of the label.
    for at in (17, 15):
        assert offsets([flipped(right[0], at), *right[1:]], run, gap_end=10) == [(8, 10)]
        assert offsets([*right[:2], flipped(right[2], at)], run, gap_end=10) == [(5, 9)]


def test_a_batch_after_a_gap_is_not_kept_where_nothing_proves_the_gap() -> None:
    right, run = gapped()
    # Two bits: a base offset that fits between its neighbours, and a record.
    moved = [right[0], flipped(right[1], 7), flipped(right[2])]
    assert moved[1][7] == 9
    run_of_two = replace(run, batch_count=3, end_offset=11)
    assert offsets([*moved[:2], *batches([b"x"], first=10)], run_of_two, gap_end=11) == []
    parts = [*moved[:2], flipped(batches([b"c"], first=10)[0])]
    assert offsets(parts, run_of_two, gap_end=11) == [(5, 6)]
    assert offsets(parts, replace(run_of_two, sum=None), gap_end=11) == [(5, 10)], "as readers do"
