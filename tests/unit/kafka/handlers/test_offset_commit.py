"""OffsetCommit over all versions."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import pytest

from penstock.groups.offsets import CommittedOffset
from support.parsing import versions_of
from support.waiting import turns
from unit.kafka.handlers.test_leave_group import leave

ALL = versions_of("offset_commit")


def errors(reply: Any) -> list[str]:
    return [p.error_code.name for topic in reply.topics for p in topic.partitions]


@pytest.mark.parametrize("version", ALL)
async def test_a_simple_consumer_commits_without_a_group(face: Any, version: int) -> None:
    reply = await face.commit(version, 17)
    assert errors(reply) == ["none"]
    topic_id = face.topic_id("flights")
    if version >= 10:
        assert reply.topics[0].topic_id == topic_id
    else:
        assert reply.topics[0].name == "flights"
    epoch = 3 if version >= 6 else -1
    assert (await face.world.groups.fetch_offsets("g")) == {
        (topic_id.bytes, 0): CommittedOffset(17, epoch, "note")
    }


async def test_offsets_that_an_administrator_sets_leave_a_line_and_a_simple_consumers_none(
    face: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="penstock.kafka.admin.lines")
    await face.commit(9, 5, "simple")
    joined = await face.member()
    member = {
        "generation_id_or_member_epoch": joined.generation_id,
        "member_id": joined.member_id,
    }
    await face.commit(9, 30, **member)
    await face.world.groups.fetch_offsets("g")
    await leave(face, 3, "g", (joined.member_id, None))
    assert errors(await face.commit(9, 7)) == ["none"]
    assert caplog.messages == [
        "client 'client' at 127.0.0.1 altered 1 offsets of group 'g': flights-0: 30 -> 7"
    ]


@pytest.mark.parametrize("version", ALL)
async def test_who_may_not_commit_is_told_why(face: Any, version: int) -> None:
    strange = {"generation_id_or_member_epoch": 1, "member_id": "m"}
    missing = "group_id_not_found" if version >= 9 else "illegal_generation"
    assert errors(await face.commit(version, 1, "none", **strange)) == [missing]
    joined = await face.member()
    member = {
        "generation_id_or_member_epoch": joined.generation_id,
        "member_id": joined.member_id,
    }
    assert errors(await face.commit(version, 1, **member)) == ["none"]
    assert errors(await face.commit(version, 1, **strange)) == ["unknown_member_id"]
    assert errors(await face.commit(version, 1)) == ["unknown_member_id"]
    stale = member | {"generation_id_or_member_epoch": 0}
    assert errors(await face.commit(version, 1, **stale)) == ["illegal_generation"]
    if version >= 7:
        fenced = member | {"group_instance_id": "one"}
        assert errors(await face.commit(version, 1, **fenced)) == ["unknown_member_id"]
    newcomer = asyncio.create_task(face.join(5))
    await turns()
    again = await face.join(5, member_id=joined.member_id)
    member["generation_id_or_member_epoch"] = again.generation_id
    assert errors(await face.commit(version, 1, **member)) == ["rebalance_in_progress"]
    await newcomer


@pytest.mark.parametrize("version", ALL)
async def test_each_partition_has_its_own_outcome(face: Any, version: int) -> None:
    def topic(name: str, topic_id: uuid.UUID | None, *partitions: tuple[int, str]) -> Any:
        return face.part(
            "offset_commit",
            version,
            "OffsetCommitRequestTopic",
            name=name,
            topic_id=topic_id,
            partitions=tuple(
                face.part(
                    "offset_commit",
                    version,
                    "OffsetCommitRequestPartition",
                    partition_index=index,
                    committed_offset=9,
                    committed_metadata=metadata,
                )
                for index, metadata in partitions
            ),
        )

    flights = face.topic_id("flights")
    topics = (
        topic("flights", flights, (1, ""), (2, "x" * 4097), (99, ""), (3, "x" * 4096)),
        topic("nowhere", uuid.UUID(int=5), (0, "")),
    )
    reply = await face.commit(version, 0, topics=topics)
    unknown = "unknown_topic_id" if version >= 10 else "unknown_topic_or_partition"
    assert errors(reply) == [
        "none",
        "offset_metadata_too_large",
        "unknown_topic_or_partition",
        "none",
        unknown,
    ]
    stored = await face.world.groups.fetch_offsets("g")
    assert sorted(stored) == [(flights.bytes, 1), (flights.bytes, 3)]
