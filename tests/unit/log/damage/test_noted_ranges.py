"""Lost ranges are counted without a bound and listed up to one, from memory."""

from __future__ import annotations

import pytest

from penstock.log.damage.noted_ranges import LISTED_MAX
from penstock.model.ids import PartitionKey
from penstock.state.answers import LossAccepted
from penstock.state.commands import AcceptLoss
from support.log_rig import Rig
from support.waiting import until
from unit.log.test_findings import runs_of


async def lose_every_other(rig: Rig, ranges: int) -> PartitionKey:
    """A partition with so many lost ranges of one offset each: 0, 2, 4, ..."""
    (key,) = await rig.topic("t")
    await rig.append(key, *[b"v"] * (2 * ranges - 1))
    await rig.drain()
    (run,) = runs_of(rig, key)
    kept = [
        number
        for offset in range(1, 2 * ranges - 1, 2)
        for number in (offset, offset + 1, run.position + offset, 1, 0, 1, -1)
    ]
    command = AcceptLoss(
        partition_key=key,
        base_offset=0,
        end_offset=run.end_offset,
        position=run.position,
        length=run.length,
        object_key=run.object_key,
        kept=kept,
    )
    (answer,) = await rig.log.commit([command])
    assert isinstance(answer, LossAccepted)
    return key


@pytest.mark.options(segment_age_ms=1 << 40)
async def test_more_ranges_than_are_listed_are_counted_and_read_by_pages(rig: Rig) -> None:
    lost = rig.log.lost_ranges
    key = await lose_every_other(rig, LISTED_MAX + 1)
    await until(lambda: lost.count == LISTED_MAX + 1)
    status = lost.status()
    assert status["known"] == LISTED_MAX + 1
    assert [row["start"] for row in status["ranges"]] == list(range(0, 2 * LISTED_MAX, 2))
    first = await lost.page((-1, -1))
    assert [row[:2] for row in first] == [(key, 2 * n) for n in range(LISTED_MAX)]
    (last,) = await lost.page(first[-1][:2])
    assert last[:3] == (key, 2 * LISTED_MAX, 2 * LISTED_MAX + 1)
    assert await lost.page(last[:2]) == []
    # Of what a trim has passed nothing is counted, also where only a part is passed.
    await rig.log.delete_records([(key, 500)])
    await until(lambda: lost.count == LISTED_MAX + 1 - 250)
    assert lost.status()["ranges"][0]["start"] == 500
    assert lost.status()["ranges"][-1]["start"] == 2 * LISTED_MAX


async def test_many_changes_are_one_read_a_second(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read looks at all ranges: a repair that changes thousands must not read thousands of
    times."""
    lost = rig.log.lost_ranges
    done: list[str] = []
    find, is_first = lost._let_queries_find, True

    async def let_queries_find() -> None:
        nonlocal is_first
        done.append("read")
        if is_first:
            is_first = False
            for _ in range(100):
                lost.changed()  # while it is being read
        await find()

    async def wait(seconds: float) -> None:
        done.append(f"wait {seconds}")

    monkeypatch.setattr(lost, "_let_queries_find", let_queries_find)
    monkeypatch.setattr("penstock.log.damage.noted_ranges.wait", wait)
    for _ in range(100):
        lost.changed()
    assert lost._task is not None
    await lost._task
    assert done == ["read", "wait 1.0", "read"]
