"""Consumer groups through the coordinator, on the real order: journaled, read again, both kinds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from penstock.groups.consumer.messages import Heartbeat, HeartbeatReply
from penstock.groups.consumer.partitions import NONE, count
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.settings import GroupSettings
from penstock.model.errors import RetryableError
from penstock.state.commands import AlterGroupConfigs, SaveMembers, SetFeatureLevel
from penstock.state.rows import GroupKind
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.waiting import turns
from unit.groups.calls import join, stable, write
from unit.groups.fakes import World, pass_ms, world


async def beat(
    one: World, member_id: str, epoch: int, group_id: str = "g", **fields: Any
) -> HeartbeatReply:
    return await one.groups.consumer_heartbeat(
        group_id, Heartbeat(member_id=member_id, epoch=epoch, **fields)
    )


async def enter(
    one: World, member_id: str, *topics: str, group_id: str = "g", **fields: Any
) -> HeartbeatReply:
    given = {"rebalance_timeout_ms": 60_000, "topics": topics or ("flights",), "owned": NONE}
    return await beat(one, member_id, 0, group_id, **{**given, **fields})


async def commit(one: World, member_id: str, epoch: int) -> GroupError:
    result = await one.groups.commit_offsets(
        "g", [write(one, 5)], member_id=member_id, instance_id=None, generation=epoch
    )
    return result.error


async def test_members_go_on_after_a_crash_and_those_that_are_gone_are_missed(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    one.topic("flights", 4)
    first = await enter(one, "one")
    assert count(first.assigned or NONE) == 4
    await enter(one, "two")
    two = one.crash()
    again = await beat(two, "one", 1)
    assert (again.error, again.epoch) == (GroupError.NONE, 1)
    assert count(again.assigned or NONE) == 2
    # Nothing is heard of the second one: its session began with the coordinator.
    epoch, has, passed_s = again.epoch, again.assigned, 0
    while count(has or NONE) < 4:
        await pass_ms(1_000)
        passed_s += 1
        answer = await beat(two, "one", epoch, owned=has)
        assert answer.error is GroupError.NONE
        epoch, has = answer.epoch, has if answer.assigned is None else answer.assigned
    assert 44 <= passed_s <= 46
    await two.close()


async def test_an_answer_waits_for_the_journal_and_its_refusal_takes_all_back(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    one.topic("flights", 4)
    await enter(one, "one")
    one.committer.gate = asyncio.Event()
    joining = asyncio.create_task(enter(one, "two"))
    await turns()
    assert not joining.done()
    one.committer.failure = RetryableError("append", "journal", "away")
    one.committer.gate.set()
    assert (await joining).error is GroupError.COORDINATOR_NOT_AVAILABLE
    one.committer.gate = one.committer.failure = None
    await pass_ms(500)
    assert [member_id for member_id, _ in one.queries.group_members("g")] == ["one"]
    # The group is in memory again, by itself: its member's session runs.
    assert (await beat(one, "one", 1)).error is GroupError.NONE
    await pass_ms(60_000)
    assert (await beat(one, "one", 1)).error is GroupError.UNKNOWN_MEMBER_ID
    await one.close()


async def test_a_heartbeat_that_changes_nothing_is_not_journaled(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.topic("flights", 4)
    await enter(one, "one")
    before = len(one.committer.commands)
    for _ in range(5):
        await beat(one, "one", 1)
    assert len(one.committer.commands) == before
    await one.close()


async def test_a_join_writes_the_members_that_it_moves_and_no_others(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.topic("flights", 60)
    for number in range(30):
        await enter(one, f"m{number:02}")
    one.committer.commands.clear()
    await enter(one, "new")
    rows = [
        member_id
        for command in one.committer.commands
        if isinstance(command, SaveMembers)
        for member_id, _ in command.rows
    ]
    assert "new" in rows
    assert len(rows) <= 4, "the new one and those that give something up"
    await one.close()


async def test_a_group_without_members_takes_the_other_protocol(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.topic("flights", 4)
    await enter(one, "one")
    assert await commit(one, "one", 1) is GroupError.NONE
    assert (await join(one)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    await beat(one, "one", -1)
    assert one.groups.describe("g") is None, "a consumer group, though it is empty"
    joined = await stable(one)
    assert joined.generation > 1, "it goes on from the group's epoch"
    assert [(found.kind, found.state) for found in one.groups.overviews()] == [
        (GroupKind.CLASSIC, GroupState.STABLE)
    ]
    refused = await enter(one, "one")
    assert refused.error is GroupError.GROUP_ID_NOT_FOUND
    assert len(await one.groups.fetch_offsets("g")) == 1
    await one.close()


async def test_commits_and_fetches_of_another_epoch_are_stale(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.topic("flights", 4)
    await enter(one, "one")
    assert await commit(one, "one", 1) is GroupError.NONE
    assert await commit(one, "one", 2) is GroupError.STALE_MEMBER_EPOCH
    assert await commit(one, "two", 1) is GroupError.UNKNOWN_MEMBER_ID
    assert one.groups.may_fetch("g", "one", 1) is GroupError.NONE
    assert one.groups.may_fetch("g", "one", 2) is GroupError.STALE_MEMBER_EPOCH
    assert one.groups.may_fetch("g", "two", 1) is GroupError.UNKNOWN_MEMBER_ID
    assert one.groups.may_fetch("g", None, -1) is GroupError.NONE
    await one.close()


async def test_an_empty_group_expires_and_is_deleted_with_its_members(tmp_path: Path) -> None:
    one = world(tmp_path, GroupSettings(offsets_retention_ms=1_000))
    one.topic("flights", 4)
    await enter(one, "one")
    await commit(one, "one", 1)
    await pass_ms(5_000)
    await one.groups.expire()
    assert len(await one.groups.fetch_offsets("g")) == 1, "a member reads the topic"
    assert await one.groups.delete_groups(["g"]) == [GroupError.NON_EMPTY_GROUP]
    await beat(one, "one", -1)
    await pass_ms(5_000)
    await one.groups.expire()
    assert one.queries.group("g") is None
    assert not one.queries.group_members("g")
    await one.close()


async def test_a_group_that_was_never_there_is_not_found(tmp_path: Path) -> None:
    one = world(tmp_path)
    found = await beat(one, "one", 3)
    assert found.error is GroupError.GROUP_ID_NOT_FOUND
    assert found.message == "Group g is not found."
    assert not list(one.groups.overviews())
    await one.close()


async def test_configs_of_a_group_are_journaled_and_hold_at_once(tmp_path: Path) -> None:
    one = world(tmp_path)
    assert one.groups.heartbeat_interval_ms("g") == 5_000
    own = {"consumer.heartbeat.interval.ms": "7000"}
    await one.committer.commit(
        [SetFeatureLevel(level=FEATURE_LEVEL_MAX), AlterGroupConfigs(group_id="g", set=own)]
    )
    assert one.groups.heartbeat_interval_ms("g") == 7_000
    assert one.groups.heartbeat_interval_ms("h") == 5_000
    two = one.crash()
    assert two.groups.configs("g") == own
    await two.close()
