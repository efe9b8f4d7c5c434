"""Groups whose members change their protocol one by one, through the coordinator."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.groups import member_saves
from penstock.groups.consumer.messages import HeartbeatReply
from penstock.groups.consumer.partitions import NONE, Partitions
from penstock.groups.errors import GroupError
from penstock.groups.messages import JoinReply, Leaver, Protocol, SyncReply, SyncRequest
from penstock.groups.settings import GroupSettings, MigrationPolicy
from penstock.groups.subscription import read_assignment, read_subscription, write_assignment
from penstock.model.errors import RetryableError
from penstock.state.commands import SaveMembers, SetFeatureLevel
from penstock.state.rows import GroupKind
from penstock.state.schema import FEATURE_LEVEL_MAX
from support.waiting import turns
from unit.groups.calls import join as join_as
from unit.groups.calls import write
from unit.groups.fakes import QUICK, World, pass_ms, world
from unit.groups.migrating_clients import TOPIC, subscription
from unit.groups.test_consumer_groups import beat, enter


async def join(
    one: World, member_id: str = "", owned: Sequence[int] = (), name: str = "range", **fields: Any
) -> JoinReply:
    """Join as a classic consumer, with an id that the coordinator gives."""
    protocols = (Protocol(name, subscription(owned)),)
    return await join_as(one, member_id=member_id, protocols=protocols, **fields)


async def sync(
    one: World, joined: JoinReply, given: dict[str, list[int]] | None = None
) -> SyncReply:
    assignments = {
        member_id: write_assignment({TOPIC: numbers})
        for member_id, numbers in (given or {}).items()
    }
    request = SyncRequest(
        member_id=joined.member_id,
        instance_id=None,
        generation=joined.generation,
        protocol_type="consumer",
        protocol_name=joined.protocol_name,
        assignments=assignments,
    )
    return await one.groups.sync("g", request)


def has(reply: SyncReply | HeartbeatReply) -> list[int]:
    if isinstance(reply, HeartbeatReply):
        return sorted(number for numbers in (reply.assigned or NONE).values() for number in numbers)
    assert reply.error is GroupError.NONE
    assignment = read_assignment(reply.assignment)
    assert assignment is not None
    return sorted(assignment.partitions.get(TOPIC, ()))


def kind(one: World) -> GroupKind:
    (overview,) = one.groups.overviews()
    return overview.kind


def owns(one: World, *numbers: int) -> Partitions:
    return {one.topic(TOPIC).topic_id: frozenset(numbers)}


def lives(one: World, joined: JoinReply, generation: int | None = None) -> GroupError:
    return one.groups.heartbeat(
        "g", joined.member_id, None, joined.generation if generation is None else generation
    )


async def opened(path: Path, settings: GroupSettings = QUICK) -> World:
    one = world(path, settings)
    one.topic(TOPIC, 4)
    await one.committer.commit([SetFeatureLevel(level=FEATURE_LEVEL_MAX)])
    return one


async def alone(one: World, **fields: Any) -> JoinReply:
    """A classic group of one member that has everything, and a committed offset."""
    joined = await join(one, **fields)
    assert has(await sync(one, joined, {joined.member_id: [0, 1, 2, 3]})) == [0, 1, 2, 3]
    result = await one.groups.commit_offsets(
        "g",
        [write(one, 5)],
        member_id=joined.member_id,
        instance_id=fields.get("instance_id"),
        generation=joined.generation,
    )
    assert result.error is GroupError.NONE
    return joined


async def test_a_group_is_upgraded_and_downgraded_with_its_offsets(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    old = await alone(one)
    new = await enter(one, "new")
    assert (kind(one), has(new)) == (GroupKind.CONSUMER, []), "the classic member has all still"
    assert lives(one, old) is GroupError.REBALANCE_IN_PROGRESS
    # It gives all up before it joins, as eager members do.
    again = await join(one, old.member_id)
    assert (again.member_id, again.generation) == (old.member_id, new.epoch)
    assert (again.leader, again.members) == ("", ()), "the server assigns"
    kept = has(await sync(one, again))
    assert len(kept) == 2
    given = has(await beat(one, "new", new.epoch))
    assert sorted(kept + given) == [0, 1, 2, 3]
    assert lives(one, again) is GroupError.NONE
    described = one.groups.describe_consumers("g")
    assert described is not None
    assert [member.classic is None for member in described.members.values()] == [False, True]
    # And back: the classic member is to lead a group of its own.
    assert (await beat(one, "new", -1)).error is GroupError.NONE
    assert kind(one) is GroupKind.CLASSIC
    assert lives(one, again) is GroupError.REBALANCE_IN_PROGRESS
    alone_again = await join(one, old.member_id)
    assert alone_again.leader == old.member_id
    assert alone_again.generation > again.generation
    assert has(await sync(one, alone_again, {old.member_id: [0, 1, 2, 3]})) == [0, 1, 2, 3]
    assert [kept.offset for kept in (await one.groups.fetch_offsets("g")).values()] == [5]
    assert not one.queries.group_members("g")
    await one.close()


async def test_both_kinds_of_members_go_on_after_a_crash(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    old = await alone(one)
    new = await enter(one, "new")
    two = one.crash()
    assert kind(two) is GroupKind.CONSUMER
    assert lives(two, old) is GroupError.REBALANCE_IN_PROGRESS
    assert has(await beat(two, "new", new.epoch)) == [], "the other may read all still"
    again = await join(two, old.member_id)
    assert len(has(await sync(two, again))) == 2
    await two.close()


async def test_a_crash_after_a_downgrade_forgets_no_rebalance(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    old = await alone(one)
    new = await enter(one, "new")
    again = await join(one, old.member_id)
    await sync(one, again)
    await beat(one, "new", new.epoch)
    await beat(one, "new", -1)
    two = one.crash()
    assert kind(two) is GroupKind.CLASSIC
    assert lives(two, again) is GroupError.REBALANCE_IN_PROGRESS, "half has no reader"
    await two.close()


async def test_a_cooperative_member_keeps_what_it_has_until_it_gives_it_up(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    old = await alone(one, name="cooperative-sticky")
    new = await enter(one, "new")
    told = await join(one, old.member_id, [0, 1, 2, 3], "cooperative-sticky")
    assert told.generation == old.generation, "it has something to give up in its epoch"
    kept = has(await sync(one, told))
    assert len(kept) == 2
    assert has(await beat(one, "new", new.epoch)) == []
    done = await join(one, old.member_id, kept, "cooperative-sticky")
    assert (done.generation, has(await sync(one, done))) == (new.epoch, kept)
    assert len(has(await beat(one, "new", new.epoch))) == 2
    await one.close()


async def test_a_silent_classic_member_loses_its_partitions(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    await alone(one)
    new = await enter(one, "new")
    await pass_ms(9_000)
    assert has(await beat(one, "new", new.epoch)) == []
    await pass_ms(2_000)
    # Its session is its own, of ten seconds.
    assert has(await beat(one, "new", new.epoch, owned=NONE)) == [0, 1, 2, 3]
    await one.close()


async def test_members_that_share_no_assignor_are_refused(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    await alone(one)
    await enter(one, "new")
    assert (await join(one, name="sticky")).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert (await join_as(one, protocol_type="connect")).error is (
        GroupError.INCONSISTENT_GROUP_PROTOCOL
    )
    told = await join(one, id_required=True)
    assert told.error is GroupError.MEMBER_ID_REQUIRED
    assert (await join(one, told.member_id)).error is GroupError.NONE
    await one.close()


async def test_generations_and_members_that_are_others_are_refused(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    old = await alone(one)
    new = await enter(one, "new")
    assert lives(one, old, 9) is GroupError.ILLEGAL_GENERATION
    assert one.groups.heartbeat("g", "new", None, new.epoch) is GroupError.UNKNOWN_MEMBER_ID
    assert (await sync(one, old)).error is GroupError.REBALANCE_IN_PROGRESS
    again = await join(one, old.member_id)
    unlike = JoinReply(
        member_id=again.member_id, generation=again.generation, protocol_name="roundrobin"
    )
    assert (await sync(one, unlike)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    result = await one.groups.commit_offsets(
        "g", [write(one, 6)], member_id=old.member_id, instance_id=None, generation=9
    )
    assert result.error is GroupError.ILLEGAL_GENERATION
    _, results = one.groups.leave("g", [Leaver("x", None), Leaver(old.member_id, None)])
    assert [found.error for found in results] == [GroupError.UNKNOWN_MEMBER_ID, GroupError.NONE]
    await one.close()


async def test_a_static_member_changes_its_protocol_in_its_place(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    old = await alone(one, instance_id="i")
    new = await enter(one, "new", instance_id="i")
    assert (new.error, has(new)) == (GroupError.NONE, [0, 1, 2, 3]), "at once, and all of it"
    fenced = one.groups.heartbeat("g", old.member_id, "i", old.generation)
    assert fenced is GroupError.FENCED_INSTANCE_ID
    stale = await join(one, old.member_id, instance_id="i")
    assert stale.error is GroupError.FENCED_INSTANCE_ID
    # The last member of the one protocol comes back as the first of the other: nobody rebalances.
    back = await join(one, instance_id="i")
    assert kind(one) is GroupKind.CLASSIC
    assert has(await sync(one, back)) == [0, 1, 2, 3]
    assert lives(one, back) is GroupError.NONE
    await one.close()


@pytest.mark.parametrize("policy", list(MigrationPolicy))
async def test_a_policy_says_which_ways_are_open(tmp_path: Path, policy: MigrationPolicy) -> None:
    one = await opened(
        tmp_path, GroupSettings(initial_rebalance_delay_ms=0, migration_policy=policy)
    )
    old = await alone(one)
    new = await enter(one, "new")
    assert (new.error is GroupError.NONE) == policy.upgrades
    assert kind(one) is (GroupKind.CONSUMER if policy.upgrades else GroupKind.CLASSIC)
    if not policy.upgrades:
        assert new.error is GroupError.GROUP_ID_NOT_FOUND
        assert "online upgrade is disabled" in (new.message or "")
        assert lives(one, old) is GroupError.NONE
        # A group of the other protocol takes classic members unless all is closed.
        one.groups.leave("g", [Leaver(old.member_id, None)])
        assert (await enter(one, "new")).error is GroupError.NONE
        is_shut = policy is MigrationPolicy.DISABLED
        refusal = GroupError.INCONSISTENT_GROUP_PROTOCOL if is_shut else GroupError.NONE
        assert (await join(one)).error is refusal
    await beat(one, "new", -1)
    assert kind(one) is (GroupKind.CLASSIC if policy.downgrades else GroupKind.CONSUMER)
    await one.close()


async def test_an_assignor_with_more_to_say_than_topics_is_not_upgraded(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    joined = await join(one)
    said = write_assignment({TOPIC: [0]})[:-4] + struct.pack(">i", 2) + b"me"
    request = SyncRequest(
        member_id=joined.member_id,
        instance_id=None,
        generation=joined.generation,
        protocol_type="consumer",
        protocol_name="range",
        assignments={joined.member_id: said},
    )
    await one.groups.sync("g", request)
    refused = await enter(one, "new")
    assert refused.error is GroupError.GROUP_ID_NOT_FOUND
    assert "custom assignor" in (refused.message or "")
    assert lives(one, joined) is GroupError.NONE
    await one.close()


async def test_a_waiting_classic_member_joins_again_when_partitions_are_free(
    tmp_path: Path,
) -> None:
    one = await opened(tmp_path)
    new = await enter(one, "new")
    late = await join(one)
    assert has(await sync(one, late)) == []
    assert lives(one, late) is GroupError.NONE, "the other has all still"
    told = await beat(one, "new", new.epoch)
    assert len(has(told)) == 2
    assert lives(one, late) is GroupError.NONE
    assert (await beat(one, "new", new.epoch, owned=told.assigned)).epoch == late.generation
    assert lives(one, late) is GroupError.REBALANCE_IN_PROGRESS
    assert len(has(await sync(one, await join(one, late.member_id)))) == 2
    await one.close()


@pytest.mark.parametrize("joins", [False, True])
async def test_a_classic_member_that_neither_joins_nor_syncs_in_time_is_removed(
    tmp_path: Path, joins: bool
) -> None:
    one = await opened(tmp_path)
    old = await alone(one)
    new = await enter(one, "new")
    assert lives(one, old) is GroupError.REBALANCE_IN_PROGRESS
    if joins:
        old = await join(one, old.member_id)
    for _ in range(19):
        await pass_ms(3_000)
        assert lives(one, old) is not GroupError.UNKNOWN_MEMBER_ID
        await beat(one, "new", new.epoch)
    await pass_ms(4_000)
    assert lives(one, old) is GroupError.UNKNOWN_MEMBER_ID, "its rebalance timeout was 60 s"
    await one.close()


async def test_a_member_that_changes_its_protocol_has_nothing_to_join(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    old = await alone(one)
    new = await enter(one, "new")
    assert lives(one, old) is GroupError.REBALANCE_IN_PROGRESS
    changed = await enter(one, old.member_id)
    assert lives(one, old, changed.epoch) is GroupError.UNKNOWN_MEMBER_ID
    for _ in range(25):
        await pass_ms(3_000)
        assert (await beat(one, old.member_id, changed.epoch)).error is GroupError.NONE
        await beat(one, "new", new.epoch)
    await one.close()


async def test_what_no_member_of_a_generation_had_goes_to_the_one_that_comes(
    tmp_path: Path,
) -> None:
    one = await opened(tmp_path)
    await join(one, instance_id="i")
    new = await enter(one, "new", instance_id="i")
    assert has(new) == [0, 1, 2, 3], "the generation had not been given anything yet"
    await one.close()


async def test_a_downgraded_member_has_what_it_has_not_given_up(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    old = await alone(one, name="cooperative-sticky")
    await enter(one, "new")
    told = await join(one, old.member_id, [0, 1, 2, 3], "cooperative-sticky")
    assert len(has(await sync(one, told))) == 2
    await beat(one, "new", -1)
    described = one.groups.describe("g")
    assert described is not None
    assert read_assignment(described.members[0].assignment) == ({TOPIC: (0, 1, 2, 3)}, b"")
    await one.close()


async def test_a_downgrade_that_is_refused_leaves_the_group_as_it_was(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    await alone(one)
    new = await enter(one, "new")
    one.committer.failure = RetryableError("append", "journal", "away")
    assert (await beat(one, "new", -1)).error is GroupError.COORDINATOR_NOT_AVAILABLE
    one.committer.failure = None
    await pass_ms(500)
    assert kind(one) is GroupKind.CONSUMER
    assert (await beat(one, "new", new.epoch)).error is GroupError.NONE
    await one.close()


async def test_a_save_of_several_commands_ends_before_the_group_is_downgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_saves, "ROWS_AT_ONCE", 1)
    one = await opened(tmp_path)
    await alone(one)
    await enter(one, "new")
    one.committer.gate = asyncio.Event()
    joining = asyncio.create_task(join(one))
    await turns()
    leaving = asyncio.create_task(beat(one, "new", -1))
    await turns()
    one.committer.gate.set()
    assert (await joining).error is GroupError.NONE
    assert (await leaving).error is GroupError.NONE
    assert not one.queries.group_members("g")
    two = one.crash()
    assert kind(two) is GroupKind.CLASSIC
    described = two.groups.describe("g")
    assert described is not None
    assert len(described.members) == 2
    await two.close()


async def test_members_that_are_there_go_on_under_a_policy_that_takes_no_others(
    tmp_path: Path,
) -> None:
    one = await opened(tmp_path)
    old = await alone(one)
    await enter(one, "new")
    one.settings = GroupSettings(
        initial_rebalance_delay_ms=0, migration_policy=MigrationPolicy.DISABLED
    )
    two = one.crash()
    assert (await join(two, old.member_id)).error is GroupError.NONE
    assert (await join(two)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    await two.close()


async def test_an_upgrade_is_one_command_whatever_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await opened(tmp_path)
    await alone(one)
    waiting = asyncio.create_task(join(one))
    await turns()
    monkeypatch.setattr(member_saves, "ROWS_AT_ONCE", 1)
    one.committer.commands.clear()
    await enter(one, "new")
    first = one.committer.commands[0]
    assert isinstance(first, SaveMembers)
    assert (len(first.rows), first.kind) == (2, GroupKind.CONSUMER)
    assert (await waiting).error is GroupError.REBALANCE_IN_PROGRESS
    await one.close()


def test_a_subscription_says_topics_owned_partitions_and_rack() -> None:
    found = read_subscription(subscription([2, 0], rack="z1"))
    assert found is not None
    assert (found.topics, found.owned, found.rack) == (frozenset([TOPIC]), {TOPIC: (0, 2)}, "z1")
    without = read_subscription(subscription())
    assert without is not None
    assert (without.owned, without.rack) == ({}, "")
    assert read_subscription(subscription([1])[:-8]) is None
    assert read_assignment(write_assignment({TOPIC: [1]})[:-6]) is None
