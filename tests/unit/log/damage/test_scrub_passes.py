"""Where a pass of the scrubber begins, and runs that move while it reads."""

from __future__ import annotations

import pytest

from penstock.model.errors import RetryableError
from penstock.model.ids import PartitionKey, partition_of
from penstock.state.rows import StoredRun
from support.log_rig import NOW, Rig
from support.rot import runs_of
from support.simulated.clock import ManualClock
from unit.log.damage.test_scrub import FAST, scrub_all

STILL = 1 << 40
"""Of the uploader: it moves nothing by itself."""


@pytest.mark.parametrize(("off_ms", "order"), [(0, [0, 1, 2]), (1, [1, 2, 0]), (2, [2, 0, 1])])
@pytest.mark.options(clock=ManualClock(now_ms=NOW), scrub_bytes_per_s=FAST, segment_age_ms=STILL)
async def test_a_pass_begins_at_a_partition_that_the_time_of_day_says(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, off_ms: int, order: list[int]
) -> None:
    """A server that is restarted each day would else never come to the last ones."""
    for key in await rig.topic("t", 3):
        await rig.append(key, b"v")
    await rig.log.let_queries_find()
    examined: list[int] = []

    async def examine(run: StoredRun) -> None:
        examined.append(partition_of(run.partition_key))

    monkeypatch.setattr(rig.log.reader.examiner, "examine", examine)
    rig.clock.set_wall(NOW - NOW % 3 + 3_000_000 + off_ms)
    await rig.log.scrubber.run_once()
    await scrub_all_at(rig)
    assert examined == order


async def scrub_all_at(rig: Rig) -> None:
    """One whole pass that begins at the present time of day."""
    wall_ms = rig.clock.now_ms()
    while not rig.log.scrubber.pass_count:
        rig.clock.advance(1)
        rig.clock.set_wall(wall_ms)
        await rig.log.scrubber.run_once()


@pytest.mark.options(scrub_bytes_per_s=FAST, segment_age_ms=STILL)
async def test_a_run_that_moves_while_it_is_read_stops_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its WAL file was used again: that is no store that is away, and no damage."""
    keys = await rig.topic("t", 3)
    for key in keys:
        await rig.append(key, b"v")
    await rig.log.let_queries_find()
    examiner = rig.log.reader.examiner
    examine = examiner.examine
    moved: list[PartitionKey] = []

    async def examine_while_moved(run: StoredRun) -> None:
        if run.generation and not moved:
            moved.append(run.partition_key)
            await rig.drain()
            await rig.log.let_queries_find()
            raise RetryableError("read run", "WAL", "the file was used again")
        await examine(run)

    monkeypatch.setattr(examiner, "examine", examine_while_moved)
    await scrub_all(rig)
    assert len(moved) == 1
    assert not any(run.generation for key in keys for run in runs_of(rig, key))
    assert rig.log.scrubber.run_count == 2
    assert rig.log.scrubber.damaged_count == 0
    assert not rig.log.damages.known()
    await scrub_all(rig)
    assert rig.log.scrubber.run_count == 2 + 3, "the next pass finds it where it lies now"


@pytest.mark.options(scrub_bytes_per_s=1000, segment_age_ms=STILL)
async def test_a_log_without_a_record_saves_up_no_reading(rig: Rig) -> None:
    scrubber = rig.log.scrubber
    for _ in range(100):
        await scrubber.run_once()
        rig.clock.advance(1)
    (key,) = await rig.topic("t")
    for _ in range(30):
        await rig.append(key, bytes(1_000))
    await rig.log.let_queries_find()
    longest = max(run.length for run in runs_of(rig, key))
    await scrubber.run_once()
    assert 0 < scrubber.read_bytes <= 2 * 1_000 + longest


@pytest.mark.options(scrub_bytes_per_s=FAST, segment_age_ms=STILL)
async def test_objects_that_are_not_this_agents_to_read_are_passed_over(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await rig.append(key, b"moved")
    await rig.drain()
    await rig.append(key, b"in the WAL")
    await rig.log.let_queries_find()
    rig.log.scrubber._reads_objects = lambda: False
    await scrub_all(rig)
    assert rig.log.scrubber.run_count == 1
    rig.log.scrubber._reads_objects = lambda: True
    await scrub_all(rig)
    assert rig.log.scrubber.run_count == 1 + 2
