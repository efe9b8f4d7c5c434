"""The coordinator on the real order: waiting, journaling, memory, expiry and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import JoinReply, Leaver
from penstock.groups.offsets import CommittedOffset
from penstock.groups.settings import GroupSettings
from penstock.model.errors import (
    CorruptDataError,
    FencedError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.state.commands import SaveGroup
from support.waiting import turns
from unit.groups.calls import commit, join, stable, sync, write
from unit.groups.fakes import (
    QUICK,
    join_request,
    pass_ms,
    world,
)

DAY_MS = 24 * 3600 * 1000


async def test_two_members_get_their_shares_when_they_are_journaled(tmp_path: Path) -> None:
    one = world(tmp_path)
    first = await join(one)
    both = asyncio.gather(join(one), join(one, member_id=first.member_id))
    second, again = await both
    assert again.generation == second.generation == 2
    assert [member.member_id for member in again.members] == [
        first.member_id,
        second.member_id,
    ]
    one.committer.gate = asyncio.Event()
    syncs = [
        asyncio.create_task(sync(one, second, {})),
        asyncio.create_task(sync(one, again, {first.member_id: b"1", second.member_id: b"2"})),
    ]
    await turns()
    assert not any(task.done() for task in syncs)
    one.committer.gate.set()
    assert [reply.assignment for reply in await asyncio.gather(*syncs)] == [b"2", b"1"]
    (saved,) = [c for c in one.committer.commands if isinstance(c, SaveGroup)]
    assert (saved.generation, saved.protocol_type, saved.empty) == (2, "consumer", False)
    await one.close()


async def test_a_restart_keeps_members_and_offsets_and_is_not_noticed(tmp_path: Path) -> None:
    one = world(tmp_path)
    joined = await stable(one)
    assert (await commit(one, [write(one, 17)], joined=joined)).codes == [0]
    next_one = one.crash()
    heartbeat = next_one.groups.heartbeat("g", joined.member_id, None, joined.generation)
    assert heartbeat is GroupError.NONE
    key = (next_one.topic("flights").topic_id, 0)
    assert (await next_one.groups.fetch_offsets("g"))[key] == CommittedOffset(17, -1, "m")
    assert (await commit(next_one, [write(next_one, 18)], joined=joined)).codes == [0]
    # It asks again for what it has: no rebalance.
    assert (await sync(next_one, joined, {})).assignment == b"all"
    await next_one.close()


async def test_after_a_restart_sessions_end_of_those_who_do_not_come_back(tmp_path: Path) -> None:
    one = world(tmp_path)
    joined = await stable(one)
    next_one = one.crash()
    await pass_ms(joined_session_ms := 10_000)
    await turns()
    description = next_one.groups.describe("g")
    assert description is not None
    assert description.state is GroupState.EMPTY
    heartbeat = next_one.groups.heartbeat("g", joined.member_id, None, joined.generation)
    assert heartbeat is GroupError.UNKNOWN_MEMBER_ID
    row = next_one.queries.group("g")
    assert row is not None
    assert row.empty_since_ms is not None
    assert joined_session_ms == join_request().session_timeout_ms
    await next_one.close()


async def test_a_crash_in_a_rebalance_goes_back_to_the_journaled_generation(tmp_path: Path) -> None:
    one = world(tmp_path)
    joined = await stable(one)
    newcomer = asyncio.create_task(join(one))
    again = await join(one, member_id=joined.member_id)
    second = await newcomer
    assert again.generation == joined.generation + 1
    next_one = one.crash()
    groups = next_one.groups
    # The one that knows the unjournaled generation joins again; the newcomer is unknown.
    error = groups.heartbeat("g", joined.member_id, None, again.generation)
    assert error is GroupError.ILLEGAL_GENERATION
    error = groups.heartbeat("g", second.member_id, None, second.generation)
    assert error is GroupError.UNKNOWN_MEMBER_ID
    assert (await join(next_one, member_id=joined.member_id)).error is GroupError.NONE
    await next_one.close()


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (StorageFullError("append", "journal", "full"), GroupError.COORDINATOR_NOT_AVAILABLE),
        (FencedError("append", "agent 1", "epoch 2"), GroupError.NOT_COORDINATOR),
        (PenstockError("append", "journal", "broken"), GroupError.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_what_the_journal_refuses_is_told_and_may_be_tried_again(
    tmp_path: Path, failure: PenstockError, error: GroupError
) -> None:
    one = world(tmp_path)
    joined = await join(one)
    one.committer.failure = failure
    assert (await sync(one, joined, {joined.member_id: b"all"})).error is error
    assert (await commit(one, [write(one, 1)], "simple")).error is error
    assert one.groups.describe("simple") is None
    one.committer.failure = None
    again = await join(one, member_id=joined.member_id)
    assert (await sync(one, again, {joined.member_id: b"all"})).assignment == b"all"
    assert (await commit(one, [write(one, 1)], "simple")).codes == [0]
    await one.close()


async def test_groups_are_refused_by_empty_id_and_unknown_ones_by_kind(tmp_path: Path) -> None:
    one = world(tmp_path)
    groups = one.groups
    assert (await join(one, "")).error is GroupError.INVALID_GROUP_ID
    assert groups.heartbeat("", "m", None, 1) is GroupError.INVALID_GROUP_ID
    assert groups.leave("", [Leaver("m", None)])[0] is GroupError.INVALID_GROUP_ID
    assert (await join(one, "none", "m")).error is GroupError.UNKNOWN_MEMBER_ID
    assert groups.heartbeat("none", "m", None, 1) is GroupError.UNKNOWN_MEMBER_ID
    error, (result,) = groups.leave("none", [Leaver("m", "i")])
    assert (error, result) == (GroupError.NONE, ("m", "i", GroupError.UNKNOWN_MEMBER_ID))
    joined = JoinReply(member_id="m", generation=1)
    assert (await sync(one, joined, {}, "none")).error is GroupError.UNKNOWN_MEMBER_ID
    result = await commit(one, [write(one, 1)], "none", joined)
    assert result.error is GroupError.GROUP_ID_NOT_FOUND
    assert (await groups.fetch_offsets("none")) == {}
    assert groups.describe("none") is None
    # Asking makes no group.
    assert list(groups.overviews()) == []
    # An empty id may hold a simple consumer's offsets, as in Kafka.
    assert (await commit(one, [write(one, 1)], "")).codes == [0]
    await one.close()


async def test_a_group_that_only_had_a_pending_member_leaves_no_trace(tmp_path: Path) -> None:
    one = world(tmp_path)
    reply = await join(one, id_required=True)
    assert reply.error is GroupError.MEMBER_ID_REQUIRED
    assert [group.state for group in one.groups.overviews()] == [GroupState.EMPTY]
    await pass_ms(10_001)
    assert list(one.groups.overviews()) == []
    assert one.groups._memory.groups == {}
    await one.close()


async def test_idle_groups_are_let_go_and_read_again(tmp_path: Path) -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=0, idle_groups_max=3)
    one = world(tmp_path, settings)
    joined = await stable(one, "alive")
    for number in range(10):
        await commit(one, [write(one, number)], f"g{number}")
    assert sorted(one.groups._memory.groups) == ["alive", "g7", "g8", "g9"]
    key = (one.topic("flights").topic_id, 0)
    assert [(await one.groups.fetch_offsets(f"g{n}"))[key].offset for n in range(10)] == [
        *range(10)
    ]
    assert len(one.groups._memory.groups) == 4
    assert len(list(one.groups.overviews())) == 11
    heartbeat = one.groups.heartbeat("alive", joined.member_id, None, joined.generation)
    assert heartbeat is GroupError.NONE
    await one.close()


async def test_closing_answers_all_that_wait_and_leaves_nothing_behind(tmp_path: Path) -> None:
    one = world(tmp_path, GroupSettings())
    waiting = asyncio.create_task(join(one))
    await turns()
    await one.groups.close()
    assert (await waiting).error is GroupError.NOT_COORDINATOR
    assert (await join(one)).error is GroupError.NOT_COORDINATOR
    assert (await commit(one, [write(one, 1)])).error is GroupError.NOT_COORDINATOR
    assert one.groups.heartbeat("g", "m", None, 1) is GroupError.NOT_COORDINATOR
    assert await one.groups.expire() == 0
    with pytest.raises(RetryableError):
        (await one.groups.fetch_offsets("g"))
    with pytest.raises(RetryableError):
        one.groups.describe("g")
    assert not one.groups._memory.waiting
    assert not one.groups._journal.tasks
    await one.close()


async def test_a_cancelled_join_is_answered_to_nobody(tmp_path: Path) -> None:
    one = world(tmp_path, GroupSettings())
    waiting = asyncio.create_task(join(one))
    await turns()
    waiting.cancel()
    await turns()
    assert not one.groups._memory.waiting
    # Its member is dropped like any other that falls silent: no sync comes.
    await pass_ms(200_000)
    await turns()
    description = one.groups.describe("g")
    assert description is not None
    assert description.state is GroupState.EMPTY
    await one.close()


async def test_a_damaged_group_is_named_every_time(tmp_path: Path) -> None:
    one = world(tmp_path)
    save = SaveGroup(
        group_id="g", generation=3, protocol_type="consumer", empty=False, state=b"\xff"
    )
    await one.committer.commit([save])
    for _ in range(2):
        with pytest.raises(CorruptDataError):
            one.groups.describe("g")
    await one.close()


def test_settings_default_to_kafkas() -> None:
    assert GroupSettings().initial_rebalance_delay_ms == 3000
    assert QUICK.offsets_retention_ms == 7 * DAY_MS
