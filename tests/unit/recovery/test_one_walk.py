"""All that reads stored runs whole finds the same in the same bytes: `penstock.log.run_walk`."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.run_walk import DueRun
from penstock.model.errors import CorruptDataError
from penstock.model.ids import PartitionKey
from penstock.pipeline import verify_task
from penstock.records.batch import patch_base_offset
from penstock.records.sums import partition_seed, run_sum
from penstock.recovery.due_runs import check_object
from penstock.recovery.verify import VerifyReport, _Stretch, _Verifier
from penstock.segment import IndexedRun
from penstock.state.rows import StoredRun
from support.batches import make_batch
from support.examples import examples

TOPIC = bytes(range(16))
SEED = partition_seed(TOPIC, 3)
EPOCHS = ((0, 0), (2, 8))
FIRST = 5
AT = 16
KEY = "segments/00/1-1-1.seg"


def batch(offset: int, records: int, *, lacks: int = 0, producer_id: int = 7) -> bytes:
    """A batch of `records` offsets, labelled as its offset is; the first `lacks` records are gone
    as compaction takes them: the offsets stay."""
    deltas = range(min(lacks, records - 1), records)
    return bytes(
        make_batch(
            *[b"v" * 20] * len(deltas),
            deltas=deltas,
            offset=offset,
            epoch=2 if offset >= 8 else 0,
            producer=(producer_id, -1, -1),
        )
    )


def due_of(
    body: bytes, *, end: int, batches: int, clean_end: int, raw: int, summed: bool
) -> DueRun:
    total = None
    if summed:
        base = FIRST if raw else None
        total = run_sum(memoryview(body), SEED, base_offset=base, leader_epoch=raw - 1)
    run = StoredRun(
        PartitionKey(1), FIRST, end, 0, KEY, AT, len(body), 9, batches, 10_000,
        raw=raw, leader_epoch=max(0, raw - 1), sum=total,
    )  # fmt: skip
    return DueRun(run, clean_end, EPOCHS, SEED, "flights-3")


def by_verify(due: DueRun, body: bytes) -> list[str]:
    """`penstock verify` of a directory, or of a bucket."""

    class Store:
        async def get_range(self, _key: str, start: int, end: int) -> bytes:
            return body[start - AT : end - AT]

    queries: Any = SimpleNamespace(clean_rows=lambda _keys: {})
    store: Any = Store()
    verifier = _Verifier(queries, store, None, None, None, lambda _read, _total: None)
    verifier.report = VerifyReport()
    stretch = _Stretch(
        PartitionKey(1), "flights-3", FIRST, due.run.end_offset, due.gap_end, EPOCHS, SEED
    )
    assert asyncio.run(verifier._check_run(stretch, due.run, FIRST, 0))
    return [finding.detail for finding in verifier.report.findings]


def by_verify_task(due: DueRun, body: bytes) -> list[str]:
    """`penstock verify --url`, in an executor."""
    objects: Any = SimpleNamespace(
        get_range=lambda _key, start, end, origin: body[start - AT : end - AT]
    )
    item = verify_task.ObjectItem(
        api=None,  # type: ignore[arg-type]
        key=KEY, size_bytes=due.run.object_bytes, raw=bool(due.run.raw), origin="", runs=[],
    )  # fmt: skip
    named = verify_task.NamedRun(TOPIC.hex(), 3, due)
    run = due.run
    indexed = IndexedRun(
        topic_id=TOPIC, partition=3, base_offset=FIRST, end_offset=run.end_offset, position=AT,
        length=run.length, batch_count=run.batch_count, record_count=1, max_timestamp=9, marks=(),
    )  # fmt: skip
    checked = verify_task.Checked()
    verify_task._check_run(objects, item, named, (indexed,), checked)
    return [detail for _, _, detail in checked.findings]


def by_copies(due: DueRun, body: bytes) -> list[str]:
    """`penstock backup` and `penstock restore`, which copy objects."""
    try:
        check_object(KEY, [bytes(AT) + body[:40], body[40:]], [due], "restore")
    except CorruptDataError as error:
        return [f"{error.detail.partition(': ')[2]}, {error.subject.removeprefix(KEY + ' ')}"]
    return []


def found_by_all(due: DueRun, body: bytes) -> list[str]:
    found = by_verify(due, body)
    assert by_verify_task(due, body) == found
    assert by_copies(due, body) == found
    return found


@st.composite
def runs(draw: st.DrawFn) -> tuple[DueRun, bytes, list[bytes]]:
    """A right run: of a plain log, of one that is clean by key, or as producers sent it."""
    kind = draw(st.sampled_from(["plain", "clean", "raw"]))
    batches, offset = [], FIRST
    for _ in range(draw(st.integers(1, 6))):
        if kind == "clean" and batches:
            offset += draw(st.integers(0, 2))
        records = draw(st.integers(1, 3))
        lacks = draw(st.integers(0, 2)) if kind == "clean" else 0
        made = batch(offset, records, lacks=lacks)
        if kind == "raw":
            raw = bytearray(made)
            patch_base_offset(memoryview(raw), 0, -1)
            made = bytes(raw)
        batches.append(made)
        offset += records
    body = b"".join(batches)
    due = due_of(
        body,
        end=offset,
        batches=len(batches),
        clean_end=offset if kind == "clean" else -1,
        raw=1 if kind == "raw" else 0,
        summed=draw(st.booleans()),
    )
    return due, body, batches


@settings(max_examples=examples(1.0))
@given(runs(), st.data())
def test_all_find_the_same_in_the_same_bytes(
    made: tuple[DueRun, bytes, list[bytes]], data: st.DataObject
) -> None:
    due, body, batches = made
    assert found_by_all(due, body) == []
    kinds = ["flip", "zero", "row", *(["drop", "swap"] if len(batches) > 1 else [])]
    damage = data.draw(st.sampled_from(kinds))
    damaged = bytearray(body)
    if damage == "flip":
        for _ in range(data.draw(st.integers(1, 2))):
            damaged[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "zero":
        start = data.draw(st.integers(0, len(body) - 1))
        damaged[start:] = bytes(len(body) - start)
    elif damage == "row":
        row = data.draw(
            st.sampled_from([("batch_count", 1), ("end_offset", 1), ("base_offset", -1)])
        )
        due = changed(due, **{row[0]: getattr(due.run, row[0]) + row[1]})
    else:
        left = list(batches)
        at = data.draw(st.integers(0, len(left) - 1))
        if damage == "drop":
            del left[at]
        else:
            left[at], left[0] = left[0], left[at]
        damaged = bytearray(b"".join(left))
        due = changed(due, length=len(damaged))
    found = found_by_all(due, bytes(damaged))
    assert len(found) <= 1
    if damaged != body and due.run.sum is not None and not due.run.raw:
        # A raw batch's offset and label are written over with the journal's: they prove nothing.
        assert found, "the sum proves every byte outside the CRC"


def changed(due: DueRun, **fields: Any) -> DueRun:
    """The same, with another row."""
    run = StoredRun(
        **{name: getattr(due.run, name) for name in StoredRun.__struct_fields__} | fields
    )
    return DueRun(run, due.gap_end, due.epochs, due.seed, due.partition)


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("lost", ["first", "last"])
def test_a_clean_run_begins_and_ends_with_a_batch(lost: str, *, summed: bool) -> None:
    """Compaction names the offsets of the first and of the last batch that it kept: a gap at either
    end is a lost batch, also where the journal has no sum and its count is of those left."""
    first, middle, last = batch(5, 2), batch(9, 1), batch(12, 3, lacks=2)
    whole = due_of(first + middle + last, end=15, batches=3, clean_end=15, raw=0, summed=summed)
    assert found_by_all(whole, first + middle + last) == []
    body = middle + last if lost == "first" else first + middle
    due = due_of(body, end=15, batches=2, clean_end=15, raw=0, summed=summed)
    (found,) = found_by_all(due, body)
    assert (
        "5 is due" in found
        if lost == "first"
        else "the batches end before offset 7, the run at 15" in found
    )


def test_a_batch_that_lacks_records_is_clean_or_an_imports() -> None:
    """A producer's batch has a record per offset: what lacks one was never sent so."""
    for clean_end, producer_id, is_right in ((-1, 7, False), (-1, -1, True), (8, 7, True)):
        body = batch(5, 3, lacks=1, producer_id=producer_id)
        due = due_of(body, end=8, batches=1, clean_end=clean_end, raw=0, summed=True)
        found = found_by_all(due, body)
        assert found == ([] if is_right else ["2 of 3 records, at byte 16"])
