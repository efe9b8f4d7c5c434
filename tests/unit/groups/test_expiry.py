"""Groups and offsets expire in turns of the loop, and no entry of the journal deletes many rows."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups import deletion, expiry
from penstock.groups.deletion import ROWS_MAX
from penstock.groups.messages import Protocol
from penstock.groups.settings import GroupSettings
from penstock.state.commands import DeleteOffsets
from support.loop_probe import Probe
from support.state_rows import group_offsets
from support.waiting import turns
from unit.groups.calls import commit, stable, write
from unit.groups.fakes import run, subscription, world
from unit.groups.test_deletion import MANY, rows_of, with_offsets

DAY_MS = 24 * 3600 * 1000
SMALL_ROWS = 4


async def test_a_group_of_many_offsets_expires_some_at_a_time(tmp_path: Path) -> None:
    one = world(tmp_path)
    offsets = {"long": MANY} | {f"g{number}": 200 for number in range(6)}
    for group_id, count in offsets.items():
        await with_offsets(one, group_id, count)
    one.clock.skew_ms += 8 * DAY_MS
    one.committer.commands.clear()
    with Probe() as probe:
        assert await one.groups.expire() == 6 + MANY
    assert probe.turns > sum(offsets.values()) // (2 * ROWS_MAX)
    assert [group.group_id for group in one.groups.overviews()] == ["long"]
    # It has no offsets left, and goes in the next round.
    assert await one.groups.expire() == 1
    assert not list(one.groups.overviews())
    assert max(rows_of(one.committer.commands, offsets)) < 2 * ROWS_MAX
    await one.close()


async def test_a_damaged_group_keeps_no_other_from_expiring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world(tmp_path)
    for group_id in ("a", "b", "c", "d"):
        await with_offsets(one, group_id, 2)
    await turns()
    page = one.queries.groups_page

    def damaged(after: str, *, limit: int) -> list[Any]:
        rows = page(after, limit=limit)
        return [replace(row, state=b"\x01\xff") if row.group_id == "b" else row for row in rows]

    monkeypatch.setattr(one.queries, "groups_page", damaged)
    one.clock.skew_ms += 8 * DAY_MS
    assert await one.groups.expire() == 3
    assert [row.group_id for row in page("", limit=10)] == ["b"]
    await one.close()


@pytest.mark.slow
async def test_an_offset_that_is_committed_between_two_looks_stays(tmp_path: Path) -> None:
    one = world(tmp_path)
    await with_offsets(one, "g", MANY)
    topic_id = one.topic("flights").topic_id
    one.clock.skew_ms += 8 * DAY_MS
    one.committer.gate = asyncio.Event()
    round_ = asyncio.create_task(one.groups.expire())
    await turns()
    # The first look's deletion waits for the journal, and the commits behind it.
    renewed = asyncio.create_task(
        commit(one, [write(one, 7, partition) for partition in (0, MANY - 1)])
    )
    await turns()
    one.committer.gate.set()
    await round_
    assert list((await renewed).codes) == [0, 0]
    offsets = await one.groups.fetch_offsets("g")
    assert {key: found.offset for key, found in offsets.items()} == {
        (topic_id, 0): 7,
        (topic_id, MANY - 1): 7,
    }
    assert await one.groups.expire() == 0
    await one.close()


async def test_what_members_read_stays_on_every_page(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.topic("planes", MANY)
    one.topic("flights", MANY)
    joined = await stable(one, protocols=(Protocol("range", subscription("flights")),))
    for topic in ("planes", "flights"):
        writes = [write(one, 1, partition, topic) for partition in range(ROWS_MAX + 1)]
        await commit(one, writes, joined=joined)
    one.clock.skew_ms += 8 * DAY_MS
    assert await one.groups.expire() == ROWS_MAX + 1
    left = {topic_id for topic_id, _ in await one.groups.fetch_offsets("g")}
    assert left == {one.topic("flights").topic_id}
    assert await one.groups.expire() == 0
    await one.close()


GROUPS = st.lists(
    st.lists(st.booleans(), min_size=1, max_size=3 * SMALL_ROWS), min_size=1, max_size=6
)
"""Of each group, of each of its offsets whether it is old."""


@pytest.mark.slow
@given(groups=GROUPS, groups_max=st.integers(1, 4))
def test_in_the_end_all_is_gone_that_is_old_and_nothing_else(
    groups: list[list[bool]], groups_max: int
) -> None:
    async def work(folder: Path) -> None:
        settings = GroupSettings(initial_rebalance_delay_ms=0, expire_groups_max=groups_max)
        one = world(folder, settings)
        one.topic("flights", 3 * SMALL_ROWS)
        topic_id = one.topic("flights").topic_id
        for is_old in (True, False):
            for number, ages in enumerate(groups):
                writes = [
                    write(one, 1, partition) for partition, old in enumerate(ages) if old is is_old
                ]
                if writes:
                    await commit(one, writes, f"g{number}")
            if is_old:
                one.clock.skew_ms += 8 * DAY_MS
        for _ in range(2 * (len(groups) // groups_max + 2)):
            await one.groups.expire()
        for number, ages in enumerate(groups):
            young = {(topic_id, partition) for partition, old in enumerate(ages) if not old}
            assert set(group_offsets(one.queries, f"g{number}")) == young
            assert (one.queries.group(f"g{number}") is None) is not bool(young)
        for command in one.committer.commands:
            if isinstance(command, DeleteOffsets):
                assert len(command.items) <= SMALL_ROWS
        await one.close()

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(deletion, "ROWS_MAX", SMALL_ROWS)
        patch.setattr(expiry, "ROWS_MAX", SMALL_ROWS)
        run(work(Path(folder)))
