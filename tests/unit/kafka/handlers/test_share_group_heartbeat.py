"""ShareGroupHeartbeat and ShareGroupDescribe."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from penstock.groups.settings import GroupSettings
from unit.groups.fakes import pass_ms


async def beat(face: Any, **changes: Any) -> Any:
    fields = {
        "group_id": "g",
        "member_id": "one",
        "member_epoch": 0,
        "subscribed_topic_names": ("flights",),
    }
    return await face.call("share_group_heartbeat", 1, **(fields | changes))


async def test_a_member_joins_lives_and_leaves(face: Any) -> None:
    topic = face.world.topic("flights", 3)
    joined = await beat(face)
    assert joined.error_code.name == "none"
    assert (joined.member_id, joined.member_epoch) == ("one", 1)
    assert joined.heartbeat_interval == timedelta(seconds=5)
    (assigned,) = joined.assignment.topic_partitions
    assert assigned.topic_id == uuid.UUID(bytes=bytes(topic.topic_id))
    assert assigned.partitions == (0, 1, 2)
    lives = await beat(face, member_epoch=1, subscribed_topic_names=None)
    assert (lives.member_epoch, lives.assignment) == (1, None)
    fenced = await beat(face, member_epoch=7, subscribed_topic_names=None)
    assert fenced.error_code.name == "fenced_member_epoch"
    assert "greater member epoch (7)" in fenced.error_message
    left = await beat(face, member_epoch=-1, subscribed_topic_names=None)
    assert (left.error_code.name, left.member_epoch) == ("none", -1)
    gone = await beat(face, member_epoch=1, subscribed_topic_names=None)
    assert gone.error_code.name == "unknown_member_id"


async def test_members_share_partitions_once_they_are_more(face: Any) -> None:
    face.world.topic("flights", 2)
    for number, name in enumerate(("one", "two", "three"), 1):
        joined = await beat(face, member_id=name)
        assert joined.member_epoch == number
    for name, epoch in (("one", 1), ("two", 2)):
        moved = await beat(face, member_id=name, member_epoch=epoch, subscribed_topic_names=None)
        assert moved.member_epoch == 3
        again = await beat(face, member_id=name, member_epoch=epoch, subscribed_topic_names=None)
        assert (again.member_epoch, again.assignment) == (3, moved.assignment or again.assignment)
    described = await face.call(
        "share_group_describe", 1, group_ids=("g", "x"), include_authorized_operations=False
    )
    group, missing = described.groups
    assert missing.error_code.name == "group_id_not_found"
    assert missing.error_message == "Group x not found."
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 3, 3)
    assert group.assignor_name == "simple"
    has = {
        member.member_id: member.assignment.topic_partitions[0].partitions
        for member in group.members
    }
    assert sorted(has.values()) == [(0,), (0,), (1,)]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"member_id": ""}, "invalid_request", "MemberId can't be empty."),
        (
            {"member_epoch": -2},
            "invalid_request",
            "MemberEpoch is -2, but must be greater than or equal to -1.",
        ),
        (
            {"subscribed_topic_names": None},
            "invalid_request",
            "SubscribedTopicNames must be set in first request.",
        ),
        ({"rack_id": ""}, "invalid_request", "RackId can't be empty."),
        ({"group_id": ""}, "invalid_group_id", None),
        ({"member_epoch": 3}, "group_id_not_found", "Group g is not found."),
    ],
)
async def test_what_no_group_takes(
    face: Any, changes: dict[str, Any], error: str, message: str | None
) -> None:
    refused = await beat(face, **changes)
    assert (refused.error_code.name, refused.error_message) == (error, message)


@pytest.mark.options(settings=GroupSettings(share_size_max=1))
async def test_a_group_is_full(face: Any) -> None:
    await beat(face)
    refused = await beat(face, member_id="two")
    assert refused.error_code.name == "group_max_size_reached"


async def test_a_group_of_another_kind_is_no_share_group(face: Any) -> None:
    await face.member("g")
    refused = await beat(face)
    assert refused.error_code.name == "group_id_not_found"
    assert refused.error_message == "Group g is not a share group."


async def test_a_share_group_is_no_group_of_another_kind(face: Any) -> None:
    await beat(face)
    joined = await face.join(5, "g")
    assert joined.error_code.name == "inconsistent_group_protocol"
    committed = await face.commit(9, 3)
    (topic,) = committed.topics
    assert topic.partitions[0].error_code.name == "group_id_not_found"
    consumer = await face.call(
        "consumer_group_heartbeat",
        1,
        group_id="g",
        member_id="c",
        member_epoch=0,
        rebalance_timeout=timedelta(minutes=1),
        subscribed_topic_names=("flights",),
        topic_partitions=(),
    )
    assert consumer.error_code.name == "group_id_not_found"


async def test_it_is_listed_and_deleted_once_it_is_empty(face: Any) -> None:
    await beat(face)
    listed = await face.call("list_groups", 5, types_filter=("Share",))
    assert [(one.group_id, one.group_type, one.group_state) for one in listed.groups] == [
        ("g", "share", "Stable")
    ]
    refused = await face.call("delete_groups", 2, groups_names=("g",))
    assert refused.results[0].error_code.name == "non_empty_group"
    await beat(face, member_epoch=-1)
    deleted = await face.call("delete_groups", 2, groups_names=("g",))
    assert deleted.results[0].error_code.name == "none"
    assert (await face.call("list_groups", 5)).groups == ()


async def test_a_member_that_falls_silent_is_removed(face: Any) -> None:
    await beat(face)
    await pass_ms(46_000)
    gone = await beat(face, member_epoch=1, subscribed_topic_names=None)
    assert gone.error_code.name == "unknown_member_id"
