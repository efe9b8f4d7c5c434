"""What was read of a group under one epoch of its shard is never written under a later one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.errors import GroupError
from penstock.groups.messages import SyncRequest
from penstock.groups.shards import ShardKeeper
from penstock.state.answers import AnyAnswer, Done, OffsetsCommitted
from penstock.state.changes import AgentChanged, ShardMoved
from penstock.state.cluster_tables import group_shard
from penstock.state.commands import AnyCommand, CommitOffsets, SaveGroup
from penstock.state.read.view import StateView
from penstock.state.rows import Shard
from support.waiting import turns
from unit.groups.calls import write
from unit.groups.fakes import World, join_request, world


class Owned:
    """All groups are this agent's, at an epoch that the test sets."""

    def __init__(self) -> None:
        self.current = 1

    def epoch(self, group_id: str) -> int | None:
        return self.current

    def error(self, group_id: str) -> GroupError:
        return GroupError.NONE

    def served_s(self) -> float:
        return float("inf")


class Recorder:
    """Takes all commands, and answers once the test lets them through."""

    def __init__(self) -> None:
        self.commands: list[SaveGroup | CommitOffsets] = []
        self.gate = asyncio.Event()

    async def commit(self, commands: Sequence[AnyCommand]) -> list[AnyAnswer]:
        answers: list[AnyAnswer] = []
        for command in commands:
            assert isinstance(command, SaveGroup | CommitOffsets)
            self.commands.append(command)
            is_offsets = isinstance(command, CommitOffsets)
            answers.append(OffsetsCommitted([0]) if is_offsets else Done())
        await self.gate.wait()
        return answers


def _coordinator(one: World, recorder: Recorder, owned: Owned) -> GroupCoordinator:
    return GroupCoordinator(
        committer=recorder,
        queries=one.queries,
        view=one.view,
        clock=one.clock,
        random=one.random,
        settings=one.settings,
        ownership=owned,
    )


async def test_a_save_under_way_carries_the_epoch_that_its_group_was_read_under(
    tmp_path: Path,
) -> None:
    one, recorder, owned = world(tmp_path), Recorder(), Owned()
    groups = _coordinator(one, recorder, owned)
    joined = await groups.join("g", join_request(new_member_id="m"))
    sync = asyncio.ensure_future(
        groups.sync(
            "g",
            SyncRequest(
                member_id=joined.member_id,
                instance_id=None,
                generation=joined.generation,
                protocol_type="consumer",
                protocol_name="range",
                assignments={joined.member_id: b"all"},
            ),
        )
    )
    # The machine has said to save, and the task that does so has not run.
    while not groups._journal.tasks:
        await asyncio.sleep(0)
    assert not recorder.commands
    # The shard went to another agent and came back: that one wrote meanwhile.
    owned.current = 3
    groups.release(lambda _: True)
    await turns()
    assert [command.shard_epoch for command in recorder.commands] == [1]
    recorder.gate.set()
    assert (await sync).error is GroupError.NOT_COORDINATOR
    # What is read from now on is another value, written under the new epoch.
    committed = await groups.commit_offsets(
        "g", [write(one, 1)], member_id="", instance_id=None, generation=-1
    )
    assert committed.error is GroupError.NONE
    assert [command.shard_epoch for command in recorder.commands] == [1, 3]
    await groups.close()
    await one.close()


class FakeGroups:
    """Notes what comes and goes of two groups."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []

    def release(self, is_gone: Callable[[str], bool]) -> None:
        self.told.append(("release", is_gone("g")))

    def take_up(self, is_new: Callable[[str], bool]) -> None:
        self.told.append(("take up", is_new("g")))


class FakeOrder:
    """A head that was read just now."""

    head_confirmed_s = 1e12


async def test_a_shard_that_went_and_came_back_at_once_is_read_again(tmp_path: Path) -> None:
    one = world(tmp_path)
    view = StateView.load(one.queries)
    (agent,) = view.agents()
    me = agent.agent_id
    keeper = ShardKeeper(
        me=me,
        order=FakeOrder(),  # type: ignore[arg-type]
        view=view,
        clock=one.clock,
        shows_answers=lambda: True,
    )
    groups = FakeGroups()
    keeper._groups = groups  # type: ignore[assignment]
    shard = Shard(group_shard("g"), 1, me, agent.epoch)
    view.apply([ShardMoved(shard=shard), AgentChanged(agent=agent)])
    keeper.follow()
    assert (groups.told, keeper.epoch("g")) == ([("take up", True)], 1)
    groups.told.clear()
    # Claimed by another and claimed back, in one batch of applied entries.
    for moved in (replace(shard, shard_epoch=2, agent=me + 1), replace(shard, shard_epoch=3)):
        view.apply([ShardMoved(shard=moved)])
    keeper.follow()
    assert groups.told == [("release", True), ("take up", True)]
    assert keeper.epoch("g") == 3
    await one.close()
