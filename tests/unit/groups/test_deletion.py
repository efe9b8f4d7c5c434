"""Groups are deleted in turns of the loop, and no entry of the journal deletes many rows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.groups.deletion import ROWS_MAX
from penstock.groups.errors import GroupError
from penstock.model.errors import RetryableError
from penstock.state.commands import AnyCommand, DeleteGroups, DeleteOffsets
from support.loop_probe import Probe
from support.state_rows import group_offsets
from support.waiting import turns
from unit.groups.calls import commit, join, write
from unit.groups.fakes import World, world

MANY = 2 * ROWS_MAX + 7


async def with_offsets(one: World, group_id: str, count: int) -> None:
    """A simple consumer's group, which is stored and not in memory."""
    one.topic("flights", MANY)
    writes = [write(one, 1, partition) for partition in range(count)]
    assert list((await commit(one, writes, group_id)).codes) == [0] * count
    one.groups._memory.forget(group_id)


def rows_of(commands: Sequence[AnyCommand], offsets: dict[str, int]) -> list[int]:
    """How many rows each command deletes of groups that had so many offsets."""
    left, rows = dict(offsets), []
    for command in commands:
        if isinstance(command, DeleteOffsets):
            rows.append(len(command.items))
            left[command.group_id] -= len(command.items)
        elif isinstance(command, DeleteGroups):
            rows.append(sum(1 + left.pop(group_id) for group_id in command.group_ids))
    assert not left
    return rows


@pytest.mark.slow
async def test_an_entry_deletes_so_many_rows_whatever_the_groups_hold(tmp_path: Path) -> None:
    one = world(tmp_path)
    offsets = {"long": MANY, "full": ROWS_MAX} | {f"g{number}": 150 for number in range(12)}
    for group_id, count in offsets.items():
        await with_offsets(one, group_id, count)
    one.committer.commands.clear()
    turns: set[int] = set()
    reads: list[int] = []
    read = one.queries.group_offsets_page

    def noted(group_id: str, after: tuple[bytes, int], *, limit: int) -> object:
        rows = read(group_id, after, limit=limit)
        turns.add(probe.turns)
        reads.append(len(rows))
        return rows

    one.queries.group_offsets_page = noted  # type: ignore[method-assign,assignment]
    with Probe() as probe:
        errors = await one.groups.delete_groups(["none", *offsets])
    assert errors == [GroupError.GROUP_ID_NOT_FOUND] + [GroupError.NONE] * len(offsets)
    rows = rows_of(one.committer.commands, offsets)
    assert max(rows) < 2 * ROWS_MAX
    assert max(reads) <= ROWS_MAX
    # Each turn has read as many rows as it has room for, or the next group's.
    assert len(turns) >= sum(reads) // (2 * ROWS_MAX)
    assert not list(one.groups.overviews())
    assert group_offsets(one.queries, "long") == {}
    await one.close()


async def test_a_group_that_is_being_emptied_takes_no_member_and_no_commit(tmp_path: Path) -> None:
    one = world(tmp_path)
    await with_offsets(one, "g", MANY)
    one.committer.gate = asyncio.Event()
    deletion = asyncio.create_task(one.groups.delete_groups(["g"]))
    await turns()
    assert (await join(one)).error is GroupError.COORDINATOR_NOT_AVAILABLE
    refused = await commit(one, [write(one, 2)])
    assert refused.error is GroupError.COORDINATOR_NOT_AVAILABLE
    one.committer.gate.set()
    assert await deletion == [GroupError.NONE]
    assert (await join(one)).error is GroupError.NONE
    await one.close()


async def test_a_deletion_goes_on_without_its_client(tmp_path: Path) -> None:
    one = world(tmp_path)
    for group_id in ("a", "b"):
        await with_offsets(one, group_id, MANY)
    one.committer.gate = asyncio.Event()
    deletion = asyncio.create_task(one.groups.delete_groups(["a", "b"]))
    await turns()
    deletion.cancel()
    await asyncio.gather(deletion, return_exceptions=True)
    one.committer.gate.set()
    await asyncio.gather(*one.groups._journal.tasks)
    assert not list(one.groups.overviews())
    assert group_offsets(one.queries, "b") == {}
    await one.close()


async def test_groups_that_could_not_be_emptied_are_served_again(tmp_path: Path) -> None:
    one = world(tmp_path)
    await with_offsets(one, "g", MANY)
    one.committer.failure = RetryableError("append", "journal", "away")
    errors = await one.groups.delete_groups(["g", "none"])
    assert errors == [GroupError.COORDINATOR_NOT_AVAILABLE, GroupError.GROUP_ID_NOT_FOUND]
    one.committer.failure = None
    assert len(await one.groups.fetch_offsets("g")) == MANY
    assert await one.groups.delete_groups(["g"]) == [GroupError.NONE]
    await one.close()


async def test_a_group_that_is_let_go_of_while_it_is_emptied_is_deleted_no_further(
    tmp_path: Path,
) -> None:
    """An agent that was cut off lets go of its groups, and serves them again under the same epoch
    of their shards: what is committed then is no part of what was to be deleted."""
    one = world(tmp_path)
    await with_offsets(one, "g", MANY)
    one.committer.commands.clear()
    one.committer.gate = asyncio.Event()
    deletion = asyncio.create_task(one.groups.delete_groups(["g"]))
    await turns()
    one.groups.release(lambda _: True)
    committing = asyncio.create_task(commit(one, [write(one, 7, MANY - 1)]))
    await turns()
    one.committer.gate.set()
    assert await deletion == [GroupError.NOT_COORDINATOR]
    assert list((await committing).codes) == [0]
    deleted = [made for made in one.committer.commands if isinstance(made, DeleteOffsets)]
    assert len(deleted) == 1, "the one that was on its way"
    assert not [made for made in one.committer.commands if isinstance(made, DeleteGroups)]
    (stored,) = list(group_offsets(one.queries, "g").values())[-1:]
    assert stored.offset == 7
    await one.close()


async def test_a_group_that_is_let_go_of_while_others_are_emptied_is_not_deleted(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    await with_offsets(one, "short", 1)
    await with_offsets(one, "long", MANY)
    one.committer.gate = asyncio.Event()
    deletion = asyncio.create_task(one.groups.delete_groups(["short", "long"]))
    await turns()
    one.groups.release(lambda group_id: group_id == "short")
    committing = asyncio.create_task(commit(one, [write(one, 7)], "short"))
    await turns()
    one.committer.gate.set()
    assert await deletion == [GroupError.NOT_COORDINATOR, GroupError.NONE]
    assert list((await committing).codes) == [0]
    assert [stored.offset for stored in group_offsets(one.queries, "short").values()] == [7]
    assert group_offsets(one.queries, "long") == {}
    await one.close()
