"""The scrubber finds rot that no reader has met, at its rate, and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log.findings import DamageKind
from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey
from penstock.state import leftovers
from penstock.state.commands import TrimLog
from support.log_rig import Rig, run_rig
from unit.log.test_findings import flip, object_path, runs_of, wal_path

FAST = 1 << 30


async def scrub_all(rig: Rig) -> None:
    """One whole pass."""
    scrubber = rig.log.scrubber
    before = scrubber.pass_count
    while scrubber.pass_count == before:
        rig.clock.advance(1)
        await scrubber.run_once()


async def fill(rig: Rig, *, partitions: int = 3, batches: int = 6) -> list[PartitionKey]:
    """Runs in two objects, in a raw one, and in the WAL."""
    keys = await rig.topic("t", partitions)
    (raw,) = await rig.topic("raw", penstock_durability="object")
    for _ in range(2):
        for number in range(batches):
            for key in keys:
                await rig.append(key, b"%d" % number * 50)
        await rig.append(raw, b"raw")
        await rig.drain()
    for key in keys:
        await rig.append(key, b"late")
    await rig.log.let_queries_find()
    return [*keys, raw]


@pytest.mark.options(scrub_bytes_per_s=FAST, segment_age_ms=1 << 40)
async def test_a_pass_reads_every_byte_that_runs_name(rig: Rig) -> None:
    keys = await fill(rig)
    runs = [run for key in keys for run in runs_of(rig, key)]
    await scrub_all(rig)
    scrubber = rig.log.scrubber
    assert (scrubber.read_bytes, scrubber.run_count) == (
        sum(run.length for run in runs),
        len(runs),
    )
    assert scrubber.status()["damaged"] == 0
    await scrub_all(rig)
    assert scrubber.run_count == 2 * len(runs), "and begins again"


@pytest.mark.parametrize("where", ["object", "raw", "wal", "missing"])
@pytest.mark.options(scrub_bytes_per_s=FAST, segment_age_ms=1 << 40)
async def test_damage_is_noted_before_a_reader_meets_it_and_the_rest_is_read(
    rig: Rig, where: str
) -> None:
    keys = await fill(rig)
    key = keys[-1] if where == "raw" else keys[0]
    runs = runs_of(rig, key)
    run = runs[-1] if where == "wal" else runs[0]
    assert bool(run.generation) == (where == "wal")
    assert bool(run.raw) == (where == "raw")
    if where == "missing":
        object_path(rig, run).unlink()
    else:
        path = wal_path(rig, run) if where == "wal" else object_path(rig, run)
        flip(path, run.position + run.length - 3)
    rig.forget_memory()
    await scrub_all(rig)
    known = rig.log.damages.known()
    lost = [one for one in known if one.partition_key == key]
    kinds = {
        "wal": DamageKind.DAMAGED_WAL,
        "missing": DamageKind.MISSING_OBJECT,
    }
    assert lost[0].kind is kinds.get(where, DamageKind.DAMAGED_OBJECT)
    assert run.base_offset <= lost[0].start < lost[0].end <= run.end_offset
    assert rig.log.scrubber.status()["damaged"] == len(known)
    others = sum(len(runs_of(rig, one)) for one in keys) - len(known)
    assert rig.log.scrubber.run_count == others
    if where != "missing":
        assert len(known) == 1
        # Brought back by hand: the next pass says so.
        flip(path, run.position + run.length - 3)
        rig.forget_memory()
        await scrub_all(rig)
        assert not rig.log.damages.known()


@pytest.mark.slow
@pytest.mark.options(scrub_bytes_per_s=1000, segment_age_ms=1 << 40)
async def test_the_rate_bounds_what_is_read_and_a_pause_is_not_caught_up(rig: Rig) -> None:
    keys = await fill(rig, batches=200)
    scrubber = rig.log.scrubber
    # A run that has begun is read to its end.
    longest = max(run.length for key in keys for run in runs_of(rig, key))
    assert longest < sum(run.length for key in keys for run in runs_of(rig, key)) / 5
    await scrubber.run_once()
    assert scrubber.read_bytes == 0
    for seconds in range(1, 20):
        rig.clock.advance(1)
        await scrubber.run_once()
        assert scrubber.read_bytes <= 1_000 * seconds + longest
    rig.clock.advance(3_600)
    before = scrubber.read_bytes
    await scrubber.run_once()
    assert scrubber.read_bytes - before <= 2_000 + longest


@pytest.mark.options(scrub_bytes_per_s=FAST, segment_age_ms=1 << 40)
async def test_a_store_that_is_away_stops_the_round_and_not_the_pass(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(rig)
    scrubber = rig.log.scrubber
    examiner = rig.log.reader.examiner

    async def away(*_: object) -> None:
        raise RetryableError("read", "k", "the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(examiner, "_final", away)
        patch.setattr(examiner, "_raw", away)
        await scrubber.run_once()
        for _ in range(3):
            rig.clock.advance(1)
            with pytest.raises(RetryableError):
                await scrubber.run_once()
    assert not rig.log.damages.known()
    await scrub_all(rig)
    assert scrubber.run_count == sum(
        len(runs_of(rig, key))
        for topic in rig.view.topics()
        for key in [PartitionKey(topic.topic_key << 20 | n) for n in range(topic.partitions)]
    )


@pytest.mark.options(scrub_bytes_per_s=0)
async def test_nothing_is_read_where_it_is_off(rig: Rig) -> None:
    await fill(rig)
    for _ in range(5):
        rig.clock.advance(1)
        await rig.log.scrubber.run_once()
    assert rig.log.scrubber.status()["runs"] == 0


def test_what_lies_below_a_log_start_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows go by later entries, and its object may be gone before: that is no damage."""
    monkeypatch.setattr(leftovers, "ROWS_PER_COMMAND", 1)

    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        for _ in range(4):
            await rig.append(key, b"value")
            await rig.drain()
        await rig.log.let_queries_find()
        *below, last = runs_of(rig, key)
        assert len(below) == 3
        await rig.log.commit([TrimLog(items=[key, last.base_offset])])
        await rig.log.let_queries_find()
        left = runs_of(rig, key)
        assert 1 < len(left) < 4, "rows of runs below the log start are left"
        object_path(rig, left[0]).unlink()
        rig.forget_memory()
        await scrub_all(rig)
        assert rig.log.scrubber.status()["damaged"] == 0
        assert rig.log.scrubber.run_count == 1

    run_rig(tmp_path, test, scrub_bytes_per_s=FAST, segment_age_ms=1 << 40)
