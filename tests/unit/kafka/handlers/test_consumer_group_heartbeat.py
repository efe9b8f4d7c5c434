"""ConsumerGroupHeartbeat and ConsumerGroupDescribe over all versions."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from penstock.kafka.wire.schema import request_types
from penstock.model.errors import InvalidRequestError
from support.parsing import versions_of

HEARTBEATS = versions_of("consumer_group_heartbeat")
DESCRIBES = versions_of("consumer_group_describe")


async def beat(face: Any, version: int, **changes: Any) -> Any:
    fields = {
        "group_id": "g",
        "member_id": "one",
        "member_epoch": 0,
        "rebalance_timeout": timedelta(minutes=1),
        "subscribed_topic_names": ("flights",),
        "topic_partitions": (),
    }
    return await face.call("consumer_group_heartbeat", version, **(fields | changes))


@pytest.mark.parametrize("version", HEARTBEATS)
async def test_a_member_joins_lives_and_leaves(face: Any, version: int) -> None:
    topic = face.world.topic("flights", 3)
    joined = await beat(face, version)
    assert joined.error_code.name == "none"
    assert (joined.member_id, joined.member_epoch) == ("one", 1)
    assert joined.heartbeat_interval == timedelta(seconds=5)
    (assigned,) = joined.assignment.topic_partitions
    assert assigned.topic_id == uuid.UUID(bytes=bytes(topic.topic_id))
    assert assigned.partitions == (0, 1, 2)
    quiet = {"rebalance_timeout": timedelta(milliseconds=-1), "subscribed_topic_names": None}
    lives = await beat(face, version, member_epoch=1, topic_partitions=None, **quiet)
    assert (lives.member_epoch, lives.assignment) == (1, None)
    fenced = await beat(face, version, member_epoch=7, topic_partitions=None, **quiet)
    assert fenced.error_code.name == "fenced_member_epoch"
    assert "greater member epoch (7)" in fenced.error_message
    left = await beat(face, version, member_epoch=-1, topic_partitions=None, **quiet)
    assert (left.error_code.name, left.member_epoch) == ("none", -1)
    gone = await beat(face, version, member_epoch=1, topic_partitions=None, **quiet)
    assert gone.error_code.name == "unknown_member_id"


@pytest.mark.parametrize("version", HEARTBEATS)
async def test_the_client_makes_the_member_id_from_version_1_on(face: Any, version: int) -> None:
    face.world.topic("flights", 3)
    joined = await beat(face, version, member_id="")
    if version:
        assert joined.error_code.name == "invalid_request"
        assert joined.error_message == "MemberId can't be empty."
    else:
        assert joined.member_id


async def test_a_member_does_not_own_more_than_there_is(face: Any) -> None:
    face.world.topic("flights", 3)
    types = request_types("consumer_group_heartbeat", 1)
    owned = types.TopicPartitions(topic_id=uuid.uuid4(), partitions=tuple(range(20_000)))
    with pytest.raises(InvalidRequestError, match="20000 partitions of 1 topics, there are 3 of 1"):
        await beat(face, 1, topic_partitions=(owned,))


@pytest.mark.parametrize("version", DESCRIBES)
async def test_groups_are_described_by_their_members(face: Any, version: int) -> None:
    face.world.topic("flights", 3)
    await beat(face, 1, instance_id="i", rack_id="z")
    await face.member(group_id="classic")
    described = await face.call(
        "consumer_group_describe",
        version,
        group_ids=("g", "classic", "none", "g"),
        include_authorized_operations=False,
    )
    found, classic, none = described.groups
    assert (found.error_code.name, found.group_state) == ("none", "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (1, 1, "uniform")
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("one", "i", "z")
    assert member.subscribed_topic_names == ("flights",)
    for share in (member.assignment, member.target_assignment):
        (topic,) = share.topic_partitions
        assert (topic.topic_name, topic.partitions) == ("flights", (0, 1, 2))
    if version:
        assert member.member_type == 1
    for other in (classic, none):
        assert other.error_code.name == "group_id_not_found"
