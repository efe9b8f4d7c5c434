"""Committed offsets on the real order: refusals, clients that are gone, reads meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.groups.errors import GroupError
from penstock.model.errors import InDoubtError, RetryableError
from penstock.state.answers import AnyAnswer, Refusal
from penstock.state.command import OffsetWrite
from penstock.state.commands import AnyCommand, CommitOffsets, DeleteTopic
from support.waiting import turns
from unit.groups.calls import commit, write
from unit.groups.fakes import (
    world,
)


async def test_a_failed_commit_leaves_no_offset_in_memory(tmp_path: Path) -> None:
    one = world(tmp_path)
    key = (one.topic("flights").topic_id, 0)
    await commit(one, [write(one, 1)])
    assert (await one.groups.fetch_offsets("g"))[key].offset == 1
    one.committer.failure = RetryableError("append", "journal", "away")
    await commit(one, [write(one, 2)])
    assert (await one.groups.fetch_offsets("g"))[key].offset == 1
    one.committer.failure = None
    await commit(one, [write(one, 3)])
    assert (await one.groups.fetch_offsets("g"))[key].offset == 3
    await one.close()


@pytest.mark.parametrize("is_deletion", [False, True], ids=["commit", "deletion"])
async def test_offsets_are_read_again_after_a_write_in_doubt(
    tmp_path: Path, is_deletion: bool
) -> None:
    """The journal has it, and the answer was lost."""
    one = world(tmp_path)
    key = (one.topic("flights").topic_id, 0)
    await commit(one, [write(one, 1)])
    assert (await one.groups.fetch_offsets("g"))[key].offset == 1
    apply = one.committer.commit

    async def lose_answer(commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        await apply(commands)
        raise InDoubtError("commit", "agent 1", "no answer in 30 s")

    one.committer.commit = lose_answer  # type: ignore[method-assign]
    if is_deletion:
        error, _ = await one.groups.delete_offsets("g", [("flights", key)])
        assert error is GroupError.COORDINATOR_NOT_AVAILABLE
        assert (await one.groups.fetch_offsets("g")) == {}
    else:
        answer = await commit(one, [write(one, 2)])
        assert answer.error is GroupError.COORDINATOR_NOT_AVAILABLE
        assert (await one.groups.fetch_offsets("g"))[key].offset == 2
    await one.close()


async def test_what_is_read_while_a_write_is_in_doubt_is_not_kept(tmp_path: Path) -> None:
    """The write comes to the journal after its client was answered and the offsets were read."""
    one = world(tmp_path)
    key = (one.topic("flights").topic_id, 0)
    await commit(one, [write(one, 1)])
    one.committer.failure = InDoubtError("commit", "agent 1", "no answer in 30 s")
    await commit(one, [write(one, 2)])
    assert (await one.groups.fetch_offsets("g"))[key].offset == 1
    one.order.append([CommitOffsets(group_id="g", offsets=[write(one, 2)])])
    assert (await one.groups.fetch_offsets("g"))[key].offset == 2
    # What was submitted later is answered: nothing is in doubt any more, and memory serves.
    one.committer.failure = None
    await commit(one, [write(one, 3)])
    assert (await one.groups.fetch_offsets("g"))[key].offset == 3
    loaded = one.groups._memory.find("g")
    assert loaded is not None
    assert loaded.offsets.known() is not None
    await one.close()


async def test_offsets_are_refused_one_by_one(tmp_path: Path) -> None:
    one = world(tmp_path)
    good, bad = write(one, 5), write(one, 6, partition=99)
    unknown = OffsetWrite(topic_id=b"?" * 16, partition=0, offset=7)
    result = await commit(one, [good, bad, unknown])
    assert result.codes == [0, Refusal.UNKNOWN_PARTITION, Refusal.UNKNOWN_TOPIC]
    assert list(await one.groups.fetch_offsets("g")) == [(good.topic_id, 0)]
    await one.close()


async def test_a_commit_is_kept_although_its_client_has_gone(tmp_path: Path) -> None:
    one = world(tmp_path)
    await commit(one, [write(one, 1)])
    key = (one.topic("flights").topic_id, 0)
    assert (await one.groups.fetch_offsets("g"))[key].offset == 1
    one.committer.gate = asyncio.Event()
    client = asyncio.create_task(commit(one, [write(one, 2)]))
    await turns()
    client.cancel()
    await turns()
    one.committer.gate.set()
    await turns()
    assert (await one.groups.fetch_offsets("g"))[key].offset == 2
    await one.close()


async def test_a_read_while_commits_are_open_is_not_kept(tmp_path: Path) -> None:
    """Else the answers, which come later, would put older offsets over newer ones."""
    one = world(tmp_path)
    key = (one.topic("flights").topic_id, 0)
    commits = [asyncio.create_task(commit(one, [write(one, offset)])) for offset in (1, 2, 3)]
    seen = []
    while not all(task.done() for task in commits):
        found = (await one.groups.fetch_offsets("g")).get(key)
        seen.append(found.offset if found else 0)
        await asyncio.sleep(0)
    assert seen == sorted(seen)
    assert (await one.groups.fetch_offsets("g"))[key].offset == 3
    await one.close()


async def test_offsets_of_a_topic_go_with_it(tmp_path: Path) -> None:
    one = world(tmp_path)
    await commit(one, [write(one, 1)])
    await one.committer.commit([DeleteTopic(topic_id=one.topic("flights").topic_id)])
    later = one.topic("flights")
    assert (later.topic_id, 0) not in (await one.groups.fetch_offsets("g"))
    await one.close()


async def test_a_commit_under_way_goes_with_the_group_that_is_deleted(tmp_path: Path) -> None:
    one = world(tmp_path)
    await commit(one, [write(one, 1)])
    one.committer.gate = asyncio.Event()
    late = asyncio.create_task(commit(one, [write(one, 2)]))
    await turns()
    deletion = asyncio.create_task(one.groups.delete_groups(["g"]))
    await turns()
    one.committer.gate.set()
    assert (await late).codes == [0]
    assert await deletion == [GroupError.NONE]
    assert one.groups.describe("g") is None
    assert (await one.groups.fetch_offsets("g")) == {}
    assert one.queries.group("g") is None
    await one.close()


async def test_closing_answers_a_commit_that_the_journal_never_answers(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.committer.gate = asyncio.Event()
    waiting = asyncio.create_task(commit(one, [write(one, 1)]))
    await turns()
    await one.groups.close()
    assert (await waiting).error is GroupError.COORDINATOR_NOT_AVAILABLE
    assert not one.groups._journal.tasks
    await one.close()


async def test_a_group_that_is_let_go_of_with_a_commit_in_doubt_is_read_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator was cut off, and its epoch goes on: the commit may be applied yet."""
    one = world(tmp_path)
    key = (one.topic("flights", 4).topic_id, 0)
    await commit(one, [write(one, 90, 0)])
    carry_out, late = one.committer.commit, []

    async def in_doubt(commands: Any) -> Any:
        late.append(commands)
        raise InDoubtError("append", "agent 1", "its epoch was ended by others")

    monkeypatch.setattr(one.committer, "commit", in_doubt)
    await commit(one, [write(one, 100, 0)])
    one.groups.release(lambda _: True)
    assert (await one.groups.fetch_offsets("g"))[key].offset == 90
    await carry_out(late[0])
    assert (await one.groups.fetch_offsets("g"))[key].offset == 100
    await one.close()
