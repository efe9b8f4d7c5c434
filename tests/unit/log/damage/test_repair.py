"""What is damaged is given up batch by batch, and consumers step over the gap."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.damage.salvage import salvage
from penstock.model.ids import PartitionKey, partition_key
from penstock.records.batch import stored_header
from penstock.recovery.verify import VerifyReport
from penstock.state.answers import Refusal, Refused
from penstock.state.commands import AcceptLoss
from penstock.state.rows import StoredRun
from support.examples import examples
from support.log_contents import verify_path
from support.log_rig import Rig, run_rig
from unit.log.test_findings import (
    consume,
    flip,
    object_path,
    read_parts,
    read_views,
    runs_of,
    wal_path,
)

STILL = 1 << 40
"""Of the uploader: it moves nothing by itself."""


async def damaged_run(rig: Rig, where: str, *, batches: int = 10) -> tuple[PartitionKey, StoredRun]:
    """A run of so many batches, a bit of whose fifth is flipped."""
    (key,) = await rig.topic("t")
    for number in range(batches):
        await rig.append(key, b"value %d" % number)
    await rig.log.let_queries_find()
    if where == "object":
        await rig.drain()
    run = runs_of(rig, key)[0 if where == "object" else 5]
    path = wal_path(rig, run) if where == "wal" else object_path(rig, run)
    at = run.position + (run.length // batches * 5 if where == "object" else 0)
    flip(path, at + 65)
    rig.forget_memory()
    return key, run


async def until_known(rig: Rig, count: int) -> None:
    """The losses are read in the pool, after the entry."""
    async with asyncio.timeout(30):
        while rig.log.lost_ranges.count != count:
            await rig.log.reads.checks.in_pool(lambda: None)


def test_the_status_of_losses_asks_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on the event loop, where each scrape would wait for it; and a restart knows them."""

    async def test(rig: Rig) -> None:
        key, _ = await damaged_run(rig, "wal")
        await consume(rig, key, read_views)
        assert rig.log.lost_ranges.count == 0
        await rig.log.damage_repair.accept_loss()
        await until_known(rig, 1)

        def asked() -> None:
            raise AssertionError("the database was asked")

        monkeypatch.setattr(rig.log.lost_ranges, "_queries", asked)
        monkeypatch.setattr(rig.log, "_queries", asked)
        status = rig.log.lost_ranges.status()
        assert rig.log.lost_ranges.count == status["known"] == len(status["ranges"]) == 1
        assert rig.log.rebuilt_ranges.status() == {"known": 0, "ranges": []}
        monkeypatch.undo()

    run_rig(tmp_path, test, segment_age_ms=STILL)

    async def again(rig: Rig) -> None:
        assert [row["start"] for row in rig.log.lost_ranges.status()["ranges"]] == [5]
        (topic,) = rig.view.topics()
        await rig.log.delete_records([(partition_key(topic.topic_key, 0), 6)])
        assert rig.log.lost_ranges.count == 0, "trimmed, without another look"

    run_rig(tmp_path, again, segment_age_ms=STILL)


@pytest.mark.parametrize("where", ["object", "wal"])
@pytest.mark.parametrize("read", [read_parts, read_views])
def test_the_loss_of_one_batch_leaves_the_others(
    tmp_path: Path, where: str, read: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(rig: Rig) -> None:
        key, _ = await damaged_run(rig, where)
        found, error = await consume(rig, key, read)  # type: ignore[arg-type]
        assert len(found) == 5
        assert error is not None
        (report,) = await rig.log.damage_repair.look()
        assert (report.state, report.lost) == ("damaged", [(5, 6)])
        assert report.kept_batches == (9 if where == "object" else 0)
        assert [row[:2] for row in rig.queries().lost_ranges_of(key)] == [], "nothing is changed"
        (report,) = await rig.log.damage_repair.accept_loss()
        assert report.state == "lost"
        assert "the loss of t-0 offsets 5 to 5 in " in caplog.text
        assert not rig.log.damages.known()
        await rig.log.let_queries_find()
        rig.forget_memory()
        found, error = await consume(rig, key, read)  # type: ignore[arg-type]
        assert error is None
        assert [offset for offset, _ in found] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        await until_known(rig, 1)
        (lost,) = rig.log.lost_ranges.status()["ranges"]
        assert (lost["partition"], lost["start"], lost["end"]) == ("t-0", 5, 6)
        assert await rig.log.damage_repair.look() == []
        await rig.drain()
        rig.forget_memory()
        assert len((await consume(rig, key, read_views))[0]) == 9
        # Retention passes the gap, and the list forgets it.
        await rig.log.delete_records([(key, 6)])
        await rig.log.let_queries_find()
        assert rig.log.lost_ranges.status()["known"] == 0

    run_rig(tmp_path, test, segment_age_ms=STILL)
    assert not verify_path(tmp_path).findings


def test_a_missing_object_at_the_end_of_the_log_does_not_leave_a_consumer_waiting(
    tmp_path: Path,
) -> None:
    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        for number in range(4):
            await rig.append(key, b"%d" % number)
        await rig.drain()
        for number in range(4, 9):
            await rig.append(key, b"%d" % number)
        await rig.drain()
        rig.forget_memory()
        last = runs_of(rig, key)[-1]
        object_path(rig, last).unlink()
        await consume(rig, key, read_views)
        (report,) = await rig.log.damage_repair.accept_loss()
        assert (report.state, report.lost, report.kept_batches) == ("lost", [(4, 9)], 0)
        rig.forget_memory()
        for read in (read_views, read_parts):
            found, error = await consume(rig, key, read)
            assert error is None
            assert [offset for offset, _ in found] == [0, 1, 2, 3]
            over = await read(rig, key, 6, 1 << 20)
            assert over.end_offset == 9, "a batch without records leads to the high watermark"
        await rig.append(key, b"9")
        found, _ = await consume(rig, key, read_views)
        assert [offset for offset, _ in found] == [0, 1, 2, 3, 9]
        assert await rig.log.keeper.condemn_unreferenced() == 1, "its object is named no more"

    run_rig(tmp_path, test, segment_age_ms=STILL)
    report = verify_path(tmp_path)
    assert not report.findings
    assert report.lost_offsets > 0


@pytest.mark.options(segment_age_ms=STILL)
async def test_what_is_right_again_is_not_given_up(rig: Rig) -> None:
    key, run = await damaged_run(rig, "object")
    await consume(rig, key, read_views)
    flip(object_path(rig, run), run.position + run.length // 10 * 5 + 65)
    (report,) = await rig.log.damage_repair.accept_loss()
    assert (report.state, report.lost) == ("right", [])
    assert rig.log.lost_ranges.status()["known"] == 0
    assert not rig.log.damages.known()


@pytest.mark.options(segment_age_ms=STILL)
async def test_apply_refuses_what_does_not_lie_within_the_run(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    for number in range(4):
        await rig.append(key, b"%d" % number)
    await rig.drain()
    (run,) = runs_of(rig, key)
    one = run.length // 4
    before = rig.journal.digest()[1]

    def command(*kept: int, length: int = run.length) -> AcceptLoss:
        return AcceptLoss(
            partition_key=key,
            base_offset=0,
            end_offset=4,
            position=run.position,
            length=length,
            object_key=run.object_key,
            kept=list(kept),
        )

    at = run.position
    wrong = [
        (command(length=run.length - 1), Refusal.INPUT_CHANGED),
        (command(0, 4, at, run.length, 0, 4, -1), Refusal.INVALID_REPLACEMENT),
        (command(0, 5, at, one, 0, 1, -1), Refusal.INVALID_REPLACEMENT),
        (command(0, 1, at - 1, one, 0, 1, -1), Refusal.INVALID_REPLACEMENT),
        (command(0, 1, at, run.length + 1, 0, 1, -1), Refusal.INVALID_REPLACEMENT),
        (command(2, 3, at, one, 0, 1, -1, 0, 1, at + one, one, 0, 1, -1), None),
        (command(0, 1, at, one, 0, 1), Refusal.INVALID_REPLACEMENT),
        (command(0, 0, at, one, 0, 1, -1), Refusal.INVALID_REPLACEMENT),
    ]
    for bad, reason in wrong:
        (answer,) = await rig.log.commit([bad])
        assert isinstance(answer, Refused)
        assert answer.reason is (reason or Refusal.INVALID_REPLACEMENT)
    assert runs_of(rig, key) == [run]
    assert before


@settings(max_examples=examples(0.5))
@given(data=st.data())
def test_what_is_kept_is_what_was_stored_whatever_is_flipped(data: st.DataObject) -> None:
    """Of a run some bits of which are flipped only batches are kept that are as they were."""
    stored, run, seed, epochs = SAMPLES[data.draw(st.integers(0, len(SAMPLES) - 1))]
    rotten = bytearray(stored)
    flips = data.draw(
        st.lists(st.tuples(st.integers(0, len(rotten) - 1), st.integers(0, 7)), max_size=4)
    )
    for position, bit in flips:
        rotten[position] ^= 1 << bit
    rotten = rotten[: data.draw(st.sampled_from([len(rotten), len(rotten), len(rotten) - 1, 30]))]
    kept = salvage(memoryview(rotten), run, seed, epochs, is_named=True)
    whole = dict(batches_of(stored, run))
    for one in kept:
        at = one.position - run.position
        assert bytes(rotten[at : at + one.length]) == stored[at : at + one.length] or run.raw
        assert one.batch_count == sum(
            one.base_offset <= offset < one.end_offset for offset in whole
        )
        assert one.base_offset in whole
    assert [one.base_offset for one in kept] == sorted(one.base_offset for one in kept)
    if bytes(rotten) == stored:
        assert sum(one.batch_count for one in kept) == run.batch_count
    if len(flips) == 1 and len(rotten) == len(stored) and not run.raw:
        at = flips[0][0]
        # A flip within a batch's records costs that batch alone.
        for offset, (begin, size) in whole.items():
            if begin + 61 <= at < begin + size:
                lost = run.batch_count - sum(one.batch_count for one in kept)
                assert lost == 1, offset


def batches_of(stored: bytes, run: StoredRun) -> list[tuple[int, tuple[int, int]]]:
    found, at, offset = [], 0, run.base_offset
    while at < len(stored):
        header = stored_header(stored, at)
        count = header.end_offset - header.base_offset
        found.append((offset, (at, header.length)))
        at, offset = at + header.length, offset + count
    return found


def samples() -> list[tuple[bytes, StoredRun, int | None, tuple[tuple[int, int], ...]]]:
    """A run in a segment, and one in a raw object."""
    found = []

    async def make(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        (raw,) = await rig.topic("raw", penstock_durability="object")
        for number in range(6):
            await rig.append(key, *[b"v%d" % n for n in range(number + 1)])
        await rig.append(raw, b"a", b"b")
        await rig.drain()
        for one in (key, raw):
            (run,) = runs_of(rig, one)
            data = object_path(rig, run).read_bytes()
            found.append(
                (
                    data[run.position : run.position + run.length],
                    run,
                    rig.view.seed(one),
                    tuple(rig.view.epoch_starts(one)),
                )
            )

    with tempfile.TemporaryDirectory() as folder:
        run_rig(Path(folder), make, segment_age_ms=STILL)
    return found


SAMPLES = samples()


@pytest.mark.options(segment_age_ms=STILL)
async def test_reports_are_of_runs_not_of_findings(rig: Rig) -> None:
    key, run = await damaged_run(rig, "object")
    flip(object_path(rig, run), run.position + run.length // 10 * 8 + 65)
    await consume(rig, key, read_views)
    with pytest.raises(Exception, match="offsets"):
        await read_views(rig, key, 8)
    assert len(rig.log.damages.known()) == 2
    (report,) = await rig.log.damage_repair.accept_loss()
    assert report.lost == [(5, 6), (8, 9)]
    assert not rig.log.damages.known()
    found, error = await consume(rig, key, read_views)
    assert error is None
    assert list(itertools.chain([o for o, _ in found])) == [0, 1, 2, 3, 4, 6, 7, 9]
    assert isinstance(VerifyReport().findings, list)
