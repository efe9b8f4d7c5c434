"""OffsetDelete 0."""

from __future__ import annotations

import logging
from typing import Any

import pytest


async def delete(face: Any, group_id: str, *topics: tuple[str, list[int]]) -> tuple[str, list[str]]:
    reply = await face.call(
        "offset_delete",
        0,
        group_id=group_id,
        topics=tuple(
            face.part(
                "offset_delete",
                0,
                "OffsetDeleteRequestTopic",
                name=name,
                partitions=tuple(
                    face.part("offset_delete", 0, "OffsetDeleteRequestPartition", partition_index=p)
                    for p in partitions
                ),
            )
            for name, partitions in topics
        ),
    )
    codes = [p.error_code.name for topic in reply.topics for p in topic.partitions]
    return reply.error_code.name, codes


async def test_offsets_of_topics_that_nobody_reads_are_deleted(
    face: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="penstock.kafka.admin.lines")
    await face.commit(9, 17)
    error, codes = await delete(face, "g", ("flights", [0, 1, 99]), ("nowhere", [0]))
    assert error == "none"
    unknown = "unknown_topic_or_partition"
    assert codes == ["none", "none", unknown, unknown]
    assert (await face.world.groups.fetch_offsets("g")) == {}
    assert caplog.messages == [
        "client 'client' at 127.0.0.1 deleted 2 offsets of group 'g': flights-0, flights-1"
    ]


async def test_refusals_have_kafkas_codes(face: Any) -> None:
    face.topic_id("flights")
    assert await delete(face, "none", ("flights", [0])) == ("group_id_not_found", [])
    await face.member()
    assert await delete(face, "g", ("flights", [0])) == ("none", ["group_subscribed_to_topic"])
    await face.join(5, "workers", protocol_type="connect")
    assert await delete(face, "workers", ("flights", [0])) == ("non_empty_group", [])
