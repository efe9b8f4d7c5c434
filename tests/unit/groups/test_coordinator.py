"""The coordinator on the real order: waiting, journaling, memory, expiry and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from groups_fakes import (
    QUICK,
    World,
    join_request,
    pass_ms,
    run,
    settle,
    subscription,
    world,
)

from penstock.groups.committing import CommitResult
from penstock.groups.errors import GroupError
from penstock.groups.generations import GroupState
from penstock.groups.messages import JoinReply, Leaver, Protocol, SyncReply, SyncRequest
from penstock.groups.offsets import CommittedOffset
from penstock.groups.settings import GroupSettings
from penstock.metadata.answers import Refusal
from penstock.metadata.commands import DeleteTopic, OffsetWrite, SaveGroup
from penstock.model.errors import (
    CorruptDataError,
    FencedError,
    PenstockError,
    RetryableError,
    StorageFullError,
)

DAY_MS = 24 * 3600 * 1000


async def join(one: World, group_id: str = "g", member_id: str = "", **changes: Any) -> JoinReply:
    new_member_id = "" if member_id else one.groups.new_member_id("client")
    request = join_request(member_id, new_member_id=new_member_id, **changes)
    return await one.groups.join(group_id, request)


async def sync(
    one: World, joined: JoinReply, assignments: dict[str, bytes], group_id: str = "g"
) -> SyncReply:
    return await one.groups.sync(
        group_id,
        SyncRequest(
            member_id=joined.member_id,
            instance_id=None,
            generation=joined.generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        ),
    )


async def stable(one: World, group_id: str = "g", **changes: Any) -> JoinReply:
    """A group with one member, which has everything."""
    joined = await join(one, group_id, **changes)
    assert joined.error is GroupError.NONE
    synced = await sync(one, joined, {joined.member_id: b"all"}, group_id)
    assert synced.assignment == b"all"
    return joined


async def commit(
    one: World, writes: list[OffsetWrite], group_id: str = "g", joined: JoinReply | None = None
) -> CommitResult:
    return await one.groups.commit_offsets(
        group_id,
        writes,
        member_id=joined.member_id if joined else "",
        instance_id=None,
        generation=joined.generation if joined else -1,
    )


def write(one: World, offset: int, partition: int = 0, topic: str = "flights") -> OffsetWrite:
    topic_id = one.topic(topic).topic_id
    return OffsetWrite(topic_id=topic_id, partition=partition, offset=offset, metadata="m")


def test_two_members_get_their_shares_when_they_are_journaled(tmp_path: Path) -> None:
    async def work() -> None:
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
        await settle()
        assert not any(task.done() for task in syncs)
        one.committer.gate.set()
        assert [reply.assignment for reply in await asyncio.gather(*syncs)] == [b"2", b"1"]
        (saved,) = [c for c in one.committer.commands if isinstance(c, SaveGroup)]
        assert (saved.generation, saved.protocol_type, saved.empty) == (2, "consumer", False)
        await one.close()

    run(work())


def test_a_restart_keeps_members_and_offsets_and_is_not_noticed(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        joined = await stable(one)
        assert (await commit(one, [write(one, 17)], joined=joined)).codes == [0]
        next_one = one.crash()
        heartbeat = next_one.groups.heartbeat("g", joined.member_id, None, joined.generation)
        assert heartbeat is GroupError.NONE
        key = (next_one.topic("flights").topic_id, 0)
        assert next_one.groups.fetch_offsets("g")[key] == CommittedOffset(17, -1, "m")
        assert (await commit(next_one, [write(next_one, 18)], joined=joined)).codes == [0]
        # It asks again for what it has: no rebalance.
        assert (await sync(next_one, joined, {})).assignment == b"all"
        await next_one.close()

    run(work())


def test_after_a_restart_sessions_end_of_those_who_do_not_come_back(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        joined = await stable(one)
        next_one = one.crash()
        await pass_ms(joined_session_ms := 10_000)
        await settle()
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

    run(work())


def test_a_crash_in_a_rebalance_goes_back_to_the_journaled_generation(tmp_path: Path) -> None:
    async def work() -> None:
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

    run(work())


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (StorageFullError("append", "journal", "full"), GroupError.COORDINATOR_NOT_AVAILABLE),
        (FencedError("append", "agent 1", "epoch 2"), GroupError.NOT_COORDINATOR),
        (PenstockError("append", "journal", "broken"), GroupError.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_the_journal_refuses_is_told_and_may_be_tried_again(
    tmp_path: Path, failure: PenstockError, error: GroupError
) -> None:
    async def work() -> None:
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

    run(work())


def test_a_failed_commit_leaves_no_offset_in_memory(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        key = (one.topic("flights").topic_id, 0)
        await commit(one, [write(one, 1)])
        assert one.groups.fetch_offsets("g")[key].offset == 1
        one.committer.failure = RetryableError("append", "journal", "away")
        await commit(one, [write(one, 2)])
        assert one.groups.fetch_offsets("g")[key].offset == 1
        one.committer.failure = None
        await commit(one, [write(one, 3)])
        assert one.groups.fetch_offsets("g")[key].offset == 3
        await one.close()

    run(work())


def test_offsets_are_refused_one_by_one(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        good, bad = write(one, 5), write(one, 6, partition=99)
        unknown = OffsetWrite(topic_id=b"?" * 16, partition=0, offset=7)
        result = await commit(one, [good, bad, unknown])
        assert result.codes == [0, Refusal.UNKNOWN_PARTITION, Refusal.UNKNOWN_TOPIC]
        assert list(one.groups.fetch_offsets("g")) == [(good.topic_id, 0)]
        await one.close()

    run(work())


def test_a_commit_is_kept_although_its_client_has_gone(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        await commit(one, [write(one, 1)])
        key = (one.topic("flights").topic_id, 0)
        assert one.groups.fetch_offsets("g")[key].offset == 1
        one.committer.gate = asyncio.Event()
        client = asyncio.create_task(commit(one, [write(one, 2)]))
        await settle()
        client.cancel()
        await settle()
        one.committer.gate.set()
        await settle()
        assert one.groups.fetch_offsets("g")[key].offset == 2
        await one.close()

    run(work())


def test_a_read_while_commits_are_open_is_not_kept(tmp_path: Path) -> None:
    """Else the answers, which come later, would put older offsets over newer ones."""

    async def work() -> None:
        one = world(tmp_path)
        key = (one.topic("flights").topic_id, 0)
        commits = [asyncio.create_task(commit(one, [write(one, offset)])) for offset in (1, 2, 3)]
        seen = []
        while not all(task.done() for task in commits):
            found = one.groups.fetch_offsets("g").get(key)
            seen.append(found.offset if found else 0)
            await asyncio.sleep(0)
        assert seen == sorted(seen)
        assert one.groups.fetch_offsets("g")[key].offset == 3
        await one.close()

    run(work())


def test_offsets_of_a_topic_go_with_it(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        await commit(one, [write(one, 1)])
        await one.committer.commit([DeleteTopic(topic_id=one.topic("flights").topic_id)])
        later = one.topic("flights")
        assert (later.topic_id, 0) not in one.groups.fetch_offsets("g")
        await one.close()

    run(work())


def test_groups_are_refused_by_empty_id_and_unknown_ones_by_kind(tmp_path: Path) -> None:
    async def work() -> None:
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
        assert groups.fetch_offsets("none") == {}
        assert groups.describe("none") is None
        # Asking makes no group.
        assert list(groups.overviews()) == []
        # An empty id may hold a simple consumer's offsets, as in Kafka.
        assert (await commit(one, [write(one, 1)], "")).codes == [0]
        await one.close()

    run(work())


def test_a_group_that_only_had_a_pending_member_leaves_no_trace(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        reply = await join(one, id_required=True)
        assert reply.error is GroupError.MEMBER_ID_REQUIRED
        assert [group.state for group in one.groups.overviews()] == [GroupState.EMPTY]
        await pass_ms(10_001)
        assert list(one.groups.overviews()) == []
        assert one.groups._memory.groups == {}
        await one.close()

    run(work())


def test_deleting_takes_empty_groups_with_their_offsets_alone(tmp_path: Path) -> None:
    async def work() -> None:
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
        assert one.groups.fetch_offsets("simple") == {}
        assert one.queries.group("simple") is None
        await one.close()

    run(work())


def test_a_member_that_joins_a_group_under_deletion_is_sent_away(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        await commit(one, [write(one, 1)])
        one.committer.gate = asyncio.Event()
        deletion = asyncio.create_task(one.groups.delete_groups(["g"]))
        await settle()
        assert (await join(one)).error is GroupError.COORDINATOR_NOT_AVAILABLE
        refused = await commit(one, [write(one, 2)])
        assert refused.error is GroupError.COORDINATOR_NOT_AVAILABLE
        one.committer.gate.set()
        assert await deletion == [GroupError.NONE]
        assert (await join(one)).error is GroupError.NONE
        assert one.groups.fetch_offsets("g") == {}
        await one.close()

    run(work())


def test_a_deletion_that_the_journal_refuses_keeps_the_group(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        await commit(one, [write(one, 1)])
        one.committer.failure = RetryableError("append", "journal", "away")
        assert await one.groups.delete_groups(["g"]) == [GroupError.COORDINATOR_NOT_AVAILABLE]
        one.committer.failure = None
        assert len(one.groups.fetch_offsets("g")) == 1
        assert (await commit(one, [write(one, 2)])).codes == [0]
        await one.close()

    run(work())


def test_offsets_of_topics_that_members_read_are_not_deleted(tmp_path: Path) -> None:
    async def work() -> None:
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
        assert list(one.groups.fetch_offsets("g")) == [items[0][1]]
        assert list(one.queries.group_offsets("g")) == [items[0][1]]
        await stable(one, "connect-1", protocol_type="consumer")
        assert (await one.groups.delete_offsets("none", items))[0] is GroupError.GROUP_ID_NOT_FOUND
        await join(one, "workers", protocol_type="connect")
        assert (await one.groups.delete_offsets("workers", items))[0] is GroupError.NON_EMPTY_GROUP
        await one.close()

    run(work())


def test_expiry_goes_through_all_groups_page_by_page(tmp_path: Path) -> None:
    async def work() -> None:
        settings = GroupSettings(initial_rebalance_delay_ms=0, expire_groups_max=2)
        one = world(tmp_path, settings)
        for number in range(5):
            await commit(one, [write(one, 1)], f"old-{number}")
        await stable(one, "alive", protocols=(Protocol("range", subscription("flights")),))
        one.clock.skipped_ms += 7 * DAY_MS
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
        assert list(one.groups.fetch_offsets("old-3")) == [(one.topic("flights").topic_id, 1)]
        # And from the start again.
        one.clock.skipped_ms += 7 * DAY_MS
        assert sum([await one.groups.expire() for _ in range(2)]) == 2
        assert [group.group_id for group in one.groups.overviews()] == ["alive"]
        await one.close()

    run(work())


def test_a_group_that_became_empty_expires_from_then_on(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        joined = await stable(one)
        await commit(one, [write(one, 1)], joined=joined)
        one.clock.skipped_ms += 8 * DAY_MS
        assert await one.groups.expire() == 0
        one.groups.leave("g", [Leaver(joined.member_id, None)])
        await settle()
        assert await one.groups.expire() == 0
        one.clock.skipped_ms += 7 * DAY_MS
        assert await one.groups.expire() == 1
        assert one.queries.group("g") is None
        await one.close()

    run(work())


def test_idle_groups_are_let_go_and_read_again(tmp_path: Path) -> None:
    async def work() -> None:
        settings = GroupSettings(initial_rebalance_delay_ms=0, idle_groups_max=3)
        one = world(tmp_path, settings)
        joined = await stable(one, "alive")
        for number in range(10):
            await commit(one, [write(one, number)], f"g{number}")
        assert sorted(one.groups._memory.groups) == ["alive", "g7", "g8", "g9"]
        key = (one.topic("flights").topic_id, 0)
        assert [one.groups.fetch_offsets(f"g{n}")[key].offset for n in range(10)] == [*range(10)]
        assert len(one.groups._memory.groups) == 4
        assert len(list(one.groups.overviews())) == 11
        heartbeat = one.groups.heartbeat("alive", joined.member_id, None, joined.generation)
        assert heartbeat is GroupError.NONE
        await one.close()

    run(work())


def test_a_group_is_described_as_kafka_does(tmp_path: Path) -> None:
    async def work() -> None:
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

    run(work())


def test_closing_answers_all_that_wait_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path, GroupSettings())
        waiting = asyncio.create_task(join(one))
        await settle()
        await one.groups.close()
        assert (await waiting).error is GroupError.NOT_COORDINATOR
        assert (await join(one)).error is GroupError.NOT_COORDINATOR
        assert (await commit(one, [write(one, 1)])).error is GroupError.NOT_COORDINATOR
        assert one.groups.heartbeat("g", "m", None, 1) is GroupError.NOT_COORDINATOR
        assert await one.groups.expire() == 0
        with pytest.raises(RetryableError):
            one.groups.fetch_offsets("g")
        with pytest.raises(RetryableError):
            one.groups.describe("g")
        assert not one.groups._memory.waiting
        assert not one.groups._journal.tasks
        await one.close()

    run(work())


def test_a_cancelled_join_is_answered_to_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path, GroupSettings())
        waiting = asyncio.create_task(join(one))
        await settle()
        waiting.cancel()
        await settle()
        assert not one.groups._memory.waiting
        # Its member is dropped like any other that falls silent: no sync comes.
        await pass_ms(200_000)
        await settle()
        description = one.groups.describe("g")
        assert description is not None
        assert description.state is GroupState.EMPTY
        await one.close()

    run(work())


def test_expiry_is_decided_at_once_and_meets_nothing_later(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        await commit(one, [write(one, 1)], "a")
        await commit(one, [write(one, 1)], "b")
        one.clock.skipped_ms += 7 * DAY_MS
        await commit(one, [write(one, 1, partition=1)], "a")
        # One offset of "a" has expired, and the whole of "b".
        one.committer.gate = asyncio.Event()
        expiry = asyncio.create_task(one.groups.expire())
        await settle()
        renewed = asyncio.create_task(commit(one, [write(one, 2)], "a"))
        assert (await join(one, "b")).error is GroupError.COORDINATOR_NOT_AVAILABLE
        await settle()
        one.committer.gate.set()
        assert await expiry == 2
        assert (await renewed).codes == [0]
        joined = await stable(one, "b")
        heartbeat = one.groups.heartbeat("b", joined.member_id, None, joined.generation)
        assert heartbeat is GroupError.NONE
        # What was committed after the expiry was decided is not what it deletes.
        assert one.groups.fetch_offsets("a")[one.topic("flights").topic_id, 0].offset == 2
        await one.close()

    run(work())


def test_a_commit_under_way_goes_with_the_group_that_is_deleted(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        await commit(one, [write(one, 1)])
        one.committer.gate = asyncio.Event()
        late = asyncio.create_task(commit(one, [write(one, 2)]))
        await settle()
        deletion = asyncio.create_task(one.groups.delete_groups(["g"]))
        await settle()
        one.committer.gate.set()
        assert (await late).codes == [0]
        assert await deletion == [GroupError.NONE]
        assert one.groups.describe("g") is None
        assert one.groups.fetch_offsets("g") == {}
        assert one.queries.group("g") is None
        await one.close()

    run(work())


def test_a_damaged_group_is_named_every_time(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        save = SaveGroup(
            group_id="g", generation=3, protocol_type="consumer", empty=False, state=b"\xff"
        )
        await one.committer.commit([save])
        for _ in range(2):
            with pytest.raises(CorruptDataError):
                one.groups.describe("g")
        await one.close()

    run(work())


def test_closing_answers_a_commit_that_the_journal_never_answers(tmp_path: Path) -> None:
    async def work() -> None:
        one = world(tmp_path)
        one.committer.gate = asyncio.Event()
        waiting = asyncio.create_task(commit(one, [write(one, 1)]))
        await settle()
        await one.groups.close()
        assert (await waiting).error is GroupError.COORDINATOR_NOT_AVAILABLE
        assert not one.groups._journal.tasks
        await one.close()

    run(work())


def test_settings_default_to_kafkas() -> None:
    assert GroupSettings().initial_rebalance_delay_ms == 3000
    assert QUICK.offsets_retention_ms == 7 * DAY_MS
