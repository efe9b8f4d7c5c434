"""A scan reads everything once, at its rate, and what it finds is known to repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.log.damage.scan import AWAY_S_MAX, STEP_S, scan
from penstock.log.damage.scrub import Scrubber
from penstock.model.errors import RetryableError
from support.log_contents import verify_path
from support.log_rig import Rig, run_rig
from unit.log.damage.test_scrub import fill
from unit.log.test_findings import flip, object_path, runs_of, wal_path

FAST = 1 << 40


async def scanned(
    rig: Rig, *, rate: int = FAST, objects: bool = True
) -> tuple[dict[str, Any], list[tuple[int, int]], float]:
    """What a scan came to, the progress that it gave, and how long it took by the rig's clock."""
    seen: list[tuple[int, int]] = []
    slept = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal slept
        slept += seconds
        rig.clock.advance(seconds)

    scrubber: Scrubber = rig.log.care._scrubber(rate, lambda: objects)
    sizes = rig.queries().partition_bytes(None)
    found = await scan(
        scrubber,
        clock=rig.clock,
        total_bytes=sum(sizes.values()),
        progress=lambda done, total: seen.append((done, total)),
        sleep=sleep,
    )
    return found, seen, slept


@pytest.mark.slow
def test_a_scan_finds_what_verify_finds(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        keys = await fill(rig)
        runs = [run for key in keys for run in runs_of(rig, key)]
        in_wal = next(run for run in runs if run.generation)
        raw = next(run for run in runs if run.raw)
        final = next(run for run in runs if run.object_key and not run.raw)
        flip(wal_path(rig, in_wal), in_wal.position + 65)
        flip(object_path(rig, raw), raw.position + 65)
        flip(object_path(rig, final), final.position + 65)
        assert await rig.log.damage_repair.look() == []
        found, seen, _ = await scanned(rig)
        assert found["damaged"] == 3
        assert found["runs"] == len(runs) - 3
        assert seen[-1] == (sum(run.length for run in runs),) * 2
        looked = await rig.log.damage_repair.look()
        assert {(report.partition_key, report.start) for report in looked} == {
            (run.partition_key, run.base_offset) for run in (in_wal, raw, final)
        }
        places.update(report.place for report in looked if not report.place.startswith("WAL"))

    places: set[str] = set()
    run_rig(tmp_path, test, segment_age_ms=1 << 40)
    damaged = [found.subject for found in verify_path(tmp_path).findings if found.is_damage]
    assert len(places) == 2
    for place in places:
        assert any(place in subject for subject in damaged), damaged
    assert any("wal/" in subject for subject in damaged), damaged


@pytest.mark.options(segment_age_ms=1 << 40)
async def test_without_objects_only_wals_are_read(rig: Rig) -> None:
    keys = await fill(rig)
    found, seen, _ = await scanned(rig, objects=False)
    in_wal = [run for key in keys for run in runs_of(rig, key) if run.generation]
    assert found == {
        "bytes": sum(run.length for run in in_wal),
        "runs": len(in_wal),
        "damaged": 0,
    }
    assert seen[-1][0] == seen[-1][1], "what others read counts as passed"


@pytest.mark.options(segment_age_ms=1 << 40)
async def test_the_rate_holds(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    for _ in range(40):
        await rig.append(key, b"x" * 1000)
    await rig.log.let_queries_find()
    _, _, seconds = await scanned(rig, rate=4000)
    assert 9 <= seconds <= 11 + STEP_S, "40 batches of some 1,070 bytes"


async def test_a_log_without_topics_ends_at_once(rig: Rig) -> None:
    assert (await scanned(rig))[0]["runs"] == 0


@pytest.mark.slow
@pytest.mark.options(segment_age_ms=1 << 40)
async def test_a_store_that_is_away_is_waited_for_and_then_said(rig: Rig) -> None:
    await fill(rig)
    failures = 0

    async def away(*_: object) -> None:
        nonlocal failures
        failures += 1
        raise RetryableError("get", "x", "away")

    rig.log.reader.examiner.examine = away  # type: ignore[method-assign]
    before_s = rig.clock.monotonic_s()
    with pytest.raises(RetryableError, match="away"):
        await scanned(rig)
    assert rig.clock.monotonic_s() - before_s > AWAY_S_MAX
    assert failures > 100
