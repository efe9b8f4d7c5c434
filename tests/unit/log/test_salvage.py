"""What is kept of a damaged run: only batches that are known to be the run's."""

from msgspec.structs import replace

from penstock.log.salvage import salvage
from penstock.metadata.rows import StoredRun
from penstock.model.ids import PartitionKey
from penstock.records.batch import patch_base_offset
from penstock.records.decode import Record
from penstock.records.encode import encode_batch
from penstock.records.sums import run_sum

SEED = (1 << 64) - 9
EPOCHS = ((0, 0),)


def batches(values: list[bytes], *, first: int = 5, epoch: int = 0) -> list[bytes]:
    """Of one record each."""
    found = []
    for offset, value in enumerate(values, start=first):
        record = Record(offset_delta=0, timestamp=5, key=None, value=value, headers=())
        batch = bytearray(encode_batch([record]))
        patch_base_offset(memoryview(batch), offset, epoch)
        found.append(bytes(batch))
    return found


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


def offsets(parts: list[bytes], run: StoredRun) -> list[tuple[int, int]]:
    kept = salvage(memoryview(b"".join(parts)), run, SEED, EPOCHS)
    return [(one.base_offset, one.end_offset) for one in kept]


def test_where_the_headers_lead_through_the_run_one_batch_is_lost() -> None:
    right = batches([b"a", b"b", b"c"])
    run = run_of(right)
    assert offsets(right, run) == [(5, 8)]
    assert offsets([right[0], flipped(right[1]), right[2]], run) == [(5, 6), (7, 8)]


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
