"""What tools do with groups, and what expires, on the real order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.groups.coordinator import GroupCoordinator
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import Leaver, Protocol, SyncRequest
from penstock.groups.settings import GroupSettings
from penstock.model.errors import (
    RetryableError,
)
from penstock.state.answers import OffsetsCommitted
from penstock.state.commands import CommitOffsets
from support.state_rows import group_offsets
from support.waiting import turns
from unit.groups.calls import commit, join, stable, write
from unit.groups.fakes import (
    subscription,
    world,
)

DAY_MS = 24 * 3600 * 1000


async def test_deleting_takes_empty_groups_with_their_offsets_alone(tmp_path: Path) -> None:
    one = world(tmp_path)
    await stable(one, "busy")
    await commit(one, [write(one, 1)], "simple")
    errors = await one.groups.delete_groups(["busy", "simple", "none"])
    assert errors == [
        GroupError.NON_EMPTY_GROUP,
        GroupError.NONE,
        GroupError.GROUP_ID_NOT_FOUND,
    ]
    assert [group.group_id for group in one.groups.overviews()] == ["busy"]
    assert (await one.groups.fetch_offsets("simple")) == {}
    assert one.queries.group("simple") is None
    await one.close()


async def test_a_member_that_joins_a_group_under_deletion_is_sent_away(tmp_path: Path) -> None:
    one = world(tmp_path)
    await commit(one, [write(one, 1)])
    one.committer.gate = asyncio.Event()
    deletion = asyncio.create_task(one.groups.delete_groups(["g"]))
    await turns()
    assert (await join(one)).error is GroupError.COORDINATOR_NOT_AVAILABLE
    refused = await commit(one, [write(one, 2)])
    assert refused.error is GroupError.COORDINATOR_NOT_AVAILABLE
    one.committer.gate.set()
    assert await deletion == [GroupError.NONE]
    assert (await join(one)).error is GroupError.NONE
    assert (await one.groups.fetch_offsets("g")) == {}
    await one.close()


async def test_a_deletion_that_the_journal_refuses_keeps_the_group(tmp_path: Path) -> None:
    one = world(tmp_path)
    await commit(one, [write(one, 1)])
    one.committer.failure = RetryableError("append", "journal", "away")
    assert await one.groups.delete_groups(["g"]) == [GroupError.COORDINATOR_NOT_AVAILABLE]
    one.committer.failure = None
    assert len(await one.groups.fetch_offsets("g")) == 1
    assert (await commit(one, [write(one, 2)])).codes == [0]
    await one.close()


async def test_offsets_of_topics_that_members_read_are_not_deleted(tmp_path: Path) -> None:
    one = world(tmp_path)
    protocols = (Protocol("range", subscription("flights")),)
    joined = await stable(one, protocols=protocols)
    writes = [write(one, 1), write(one, 2, topic="planes")]
    await commit(one, writes, joined=joined)
    items = [
        ("flights", (one.topic("flights").topic_id, 0)),
        ("planes", (one.topic("planes").topic_id, 0)),
        ("planes", (one.topic("planes").topic_id, 1)),
    ]
    error, errors = await one.groups.delete_offsets("g", items)
    assert error is GroupError.NONE
    assert errors == [
        GroupError.GROUP_SUBSCRIBED_TO_TOPIC,
        GroupError.NONE,
        GroupError.NONE,
    ]
    assert list(await one.groups.fetch_offsets("g")) == [items[0][1]]
    assert list(group_offsets(one.queries, "g")) == [items[0][1]]
    await stable(one, "connect-1", protocol_type="consumer")
    assert (await one.groups.delete_offsets("none", items))[0] is GroupError.GROUP_ID_NOT_FOUND
    await join(one, "workers", protocol_type="connect")
    assert (await one.groups.delete_offsets("workers", items))[0] is GroupError.NON_EMPTY_GROUP
    await one.close()


async def test_expiry_goes_through_all_groups_page_by_page(tmp_path: Path) -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=0, expire_groups_max=2)
    one = world(tmp_path, settings)
    for number in range(5):
        await commit(one, [write(one, 1)], f"old-{number}")
    await stable(one, "alive", protocols=(Protocol("range", subscription("flights")),))
    one.clock.skew_ms += 7 * DAY_MS
    await commit(one, [write(one, 1)], "young")
    await commit(one, [write(one, 1, partition=1)], "old-3")
    deleted = [await one.groups.expire() for _ in range(4)]
    # alive + old-0, old-1 + old-2, one offset of old-3 + old-4, young.
    assert deleted == [1, 2, 2, 0]
    assert sorted(group.group_id for group in one.groups.overviews()) == [
        "alive",
        "old-3",
        "young",
    ]
    assert list(await one.groups.fetch_offsets("old-3")) == [(one.topic("flights").topic_id, 1)]
    # And from the start again.
    one.clock.skew_ms += 7 * DAY_MS
    assert sum([await one.groups.expire() for _ in range(2)]) == 2
    assert [group.group_id for group in one.groups.overviews()] == ["alive"]
    await one.close()


async def test_a_group_that_became_empty_expires_from_then_on(tmp_path: Path) -> None:
    one = world(tmp_path)
    joined = await stable(one)
    await commit(one, [write(one, 1)], joined=joined)
    one.clock.skew_ms += 8 * DAY_MS
    assert await one.groups.expire() == 0
    one.groups.leave("g", [Leaver(joined.member_id, None)])
    await turns()
    assert await one.groups.expire() == 0
    one.clock.skew_ms += 7 * DAY_MS
    assert await one.groups.expire() == 1
    assert one.queries.group("g") is None
    await one.close()


@pytest.mark.parametrize("offset_count", [1, 2], ids=["the whole group", "one of its offsets"])
async def test_a_commit_whose_answer_was_lost_is_not_expired_with_what_it_replaced(
    tmp_path: Path, offset_count: int
) -> None:
    one = world(tmp_path)
    await commit(one, [write(one, 1)])
    one.clock.skew_ms += 8 * DAY_MS
    if offset_count > 1:
        await commit(one, [write(one, 1, partition=1)])
    one.committer.gate = asyncio.Event()
    expiry = asyncio.create_task(one.groups.expire())
    await turns()
    # The commit was given up as in doubt before the look, and is journaled after it.
    late = CommitOffsets(group_id="g", offsets=[write(one, 2)])
    assert one.order.append([late]).outcome.answers == [OffsetsCommitted([0])]
    one.committer.gate.set()
    await expiry
    fetched = await one.groups.fetch_offsets("g")
    assert fetched[one.topic("flights").topic_id, 0].offset == 2
    assert len(fetched) == offset_count
    await one.close()


async def test_what_an_operator_deletes_goes_whatever_was_committed_meanwhile(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    await commit(one, [write(one, 1)])
    one.committer.gate = asyncio.Event()
    deletion = asyncio.create_task(one.groups.delete_groups(["g"]))
    await turns()
    one.order.append([CommitOffsets(group_id="g", offsets=[write(one, 2)])])
    one.committer.gate.set()
    assert await deletion == [GroupError.NONE]
    assert (await one.groups.fetch_offsets("g")) == {}
    await one.close()


async def test_groups_expire_by_the_time_that_they_are_told_and_not_by_the_clock(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    journal_ms = one.clock.now_ms()
    in_doubt = False
    groups = GroupCoordinator(
        committer=one.committer,
        queries=one.queries,
        view=one.view,
        clock=one.clock,
        random=one.random,
        settings=one.settings,
        now_ms=lambda: None if in_doubt else min(journal_ms, one.clock.now_ms()),
    )
    await commit(one, [write(one, 1)])
    # A clock that is ahead of journal time ages nothing.
    one.clock.skew_ms += 30 * DAY_MS
    assert await groups.expire() == 0
    journal_ms += 8 * DAY_MS
    in_doubt = True
    assert await groups.expire() == 0
    in_doubt = False
    assert await groups.expire() == 1
    await groups.close()
    await one.close()


async def test_a_group_is_described_as_kafka_does(tmp_path: Path) -> None:
    one = world(tmp_path)
    waiting = asyncio.create_task(join(one, instance_id="one"))
    await asyncio.sleep(0)
    preparing = one.groups.describe("g")
    assert preparing is not None
    assert preparing.state is GroupState.PREPARING
    assert preparing.protocol_name == ""
    assert [(m.instance_id, m.metadata) for m in preparing.members] == [("one", b"")]
    joined = await waiting
    reply = await one.groups.sync(
        "g",
        SyncRequest(
            member_id=joined.member_id,
            instance_id="one",
            generation=1,
            protocol_type=None,
            protocol_name=None,
            assignments={joined.member_id: b"all"},
        ),
    )
    assert reply.error is GroupError.NONE
    described = one.groups.describe("g")
    assert described is not None
    assert (described.state, described.protocol_name) == (GroupState.STABLE, "range")
    (member,) = described.members
    assert (member.metadata, member.assignment) == (b"meta", b"all")
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
    await one.close()


async def test_expiry_is_decided_at_once_and_meets_nothing_later(tmp_path: Path) -> None:
    one = world(tmp_path)
    await commit(one, [write(one, 1)], "a")
    await commit(one, [write(one, 1)], "b")
    one.clock.skew_ms += 7 * DAY_MS
    await commit(one, [write(one, 1, partition=1)], "a")
    # One offset of "a" has expired, and the whole of "b".
    one.committer.gate = asyncio.Event()
    expiry = asyncio.create_task(one.groups.expire())
    await turns()
    renewed = asyncio.create_task(commit(one, [write(one, 2)], "a"))
    assert (await join(one, "b")).error is GroupError.COORDINATOR_NOT_AVAILABLE
    await turns()
    one.committer.gate.set()
    assert await expiry == 2
    assert (await renewed).codes == [0]
    joined = await stable(one, "b")
    heartbeat = one.groups.heartbeat("b", joined.member_id, None, joined.generation)
    assert heartbeat is GroupError.NONE
    # What was committed after the expiry was decided is not what it deletes.
    assert (await one.groups.fetch_offsets("a"))[one.topic("flights").topic_id, 0].offset == 2
    await one.close()
