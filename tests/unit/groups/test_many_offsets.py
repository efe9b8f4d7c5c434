"""Groups with more offsets than one turn of the loop has room for: committed, read and deleted in
bounded steps, without what others do meanwhile being lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.groups.committing import PAGE_OFFSETS, WRITES_AT_ONCE
from penstock.groups.errors import GroupError
from penstock.state.answers import AnyAnswer
from penstock.state.command import OffsetWrite
from penstock.state.commands import AnyCommand, CommitOffsets, DeleteOffsets
from penstock.system.turns import TURN_ROWS
from support.loop_probe import Probe
from support.simulated.virtual_loop import VirtualLoop
from support.state_rows import group_offsets
from unit.groups.calls import commit, stable, write
from unit.groups.fakes import World, world

MANY = 2 * WRITES_AT_ONCE + 500


def many(one: World, offset: int) -> list[OffsetWrite]:
    return [write(one, offset, partition) for partition in range(MANY)]


@pytest.fixture
async def one(virtual_loop: VirtualLoop, tmp_path: Path) -> AsyncIterator[World]:
    """A group "g" with many offsets, none of which is in memory."""
    one = world(tmp_path)
    one.topic("flights", MANY)
    result = await commit(one, many(one, 1))
    assert list(result.codes) == [0] * MANY
    one.groups._memory.forget("g")
    yield one
    await one.close()


class Noted:
    """What is committed, and a thing to do before one of the commands."""

    def __init__(self, one: World) -> None:
        self.commands: list[AnyCommand] = []
        self.before: dict[int, Callable[[], None]] = {}
        self._commit = one.committer.commit
        one.committer.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        self.before.get(len(self.commands), lambda: None)()
        self.commands += commands
        return await self._commit(commands)


@pytest.mark.slow
async def test_offsets_are_read_some_a_turn(one: World) -> None:
    pages: list[int] = []
    read = one.queries.group_offsets_page

    def noted(group_id: str, after: tuple[bytes, int], *, limit: int) -> Any:
        rows = read(group_id, after, limit=limit)
        pages.append(probe.turns)
        assert len(rows) <= PAGE_OFFSETS <= TURN_ROWS
        return rows

    one.queries.group_offsets_page = noted  # type: ignore[method-assign]
    with Probe() as probe:
        offsets = await one.groups.fetch_offsets("g")
    assert len(offsets) == MANY
    # Now in memory: read no more.
    assert await one.groups.fetch_offsets("g") == offsets
    assert len(pages) == MANY // PAGE_OFFSETS + 1
    assert len(set(pages)) == len(pages)


@pytest.mark.slow
async def test_what_is_committed_and_deleted_while_they_are_read_is_not_lost(one: World) -> None:
    topic_id = one.topic("flights").topic_id
    reading = asyncio.ensure_future(one.groups.fetch_offsets("g"))
    await asyncio.sleep(0)
    assert not reading.done()
    await commit(one, [write(one, 77, partition) for partition in (0, MANY - 1)])
    await one.groups.delete_offsets("g", [("flights", (topic_id, 1))])
    assert not reading.done()
    found = await reading
    for offsets in (found, await one.groups.fetch_offsets("g")):
        assert offsets[topic_id, 0].offset == offsets[topic_id, MANY - 1].offset == 77
        assert offsets[topic_id, 2].offset == 1
        assert (topic_id, 1) not in offsets
        assert len(offsets) == MANY - 1
    assert one.groups._memory.groups["g"].offsets.known() is not None


@pytest.mark.slow
async def test_many_offsets_are_committed_and_deleted_in_commands_of_so_many(one: World) -> None:
    topic_id = one.topic("flights").topic_id
    noted = Noted(one)
    assert list((await commit(one, many(one, 2))).codes) == [0] * MANY
    sizes = [len(c.offsets) for c in noted.commands if isinstance(c, CommitOffsets)]
    assert sizes == [WRITES_AT_ONCE, WRITES_AT_ONCE, 500]
    items = [("flights", (topic_id, partition)) for partition in range(MANY)]
    error, errors = await one.groups.delete_offsets("g", items)
    assert (error, errors) == (GroupError.NONE, [GroupError.NONE] * MANY)
    sizes = [len(c.items) for c in noted.commands if isinstance(c, DeleteOffsets)]
    assert sizes == [WRITES_AT_ONCE, WRITES_AT_ONCE, 500]
    assert await one.groups.fetch_offsets("g") == {}


@pytest.mark.parametrize("is_member_gone", [False, True], ids=["group gone", "member gone"])
async def test_nothing_of_a_generation_that_is_over_is_written(
    tmp_path: Path, is_member_gone: bool
) -> None:
    """A commit of many is several commands, and between two of them others may take over."""
    one = world(tmp_path)
    topic_id = one.topic("flights", MANY).topic_id
    joined = await stable(one)
    noted = Noted(one)

    def over() -> None:
        machine = one.groups._memory.groups["g"].machine
        if is_member_gone:
            machine.generation += 1
        else:
            one.groups._memory.forget("g")

    noted.before[0] = over
    result = await commit(one, many(one, 1), joined=joined)
    expected = GroupError.ILLEGAL_GENERATION if is_member_gone else None
    assert result.error is (expected or GroupError.COORDINATOR_NOT_AVAILABLE)
    sizes = [len(c.offsets) for c in noted.commands if isinstance(c, CommitOffsets)]
    assert sizes == [WRITES_AT_ONCE]
    found = group_offsets(one.queries, "g")
    assert (topic_id, WRITES_AT_ONCE - 1) in found
    assert (topic_id, WRITES_AT_ONCE) not in found
    one.groups._memory.forget("g") if is_member_gone else None
    await one.close()
