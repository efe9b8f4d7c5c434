"""What tests ask of a coordinator."""

from __future__ import annotations

from typing import Any

from penstock.groups.committing import CommitResult
from penstock.groups.errors import GroupError
from penstock.groups.messages import JoinReply, SyncReply, SyncRequest
from penstock.state.command import OffsetWrite
from unit.groups.fakes import (
    World,
    join_request,
)


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
