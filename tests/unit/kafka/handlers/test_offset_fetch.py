"""OffsetFetch over all versions."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from penstock.state.command import OffsetWrite
from penstock.state.commands import DeleteTopic
from penstock.state.transaction_commands import (
    CommitToTransaction,
    EndTransaction,
    InitTransaction,
)
from support.parsing import versions_of

ALL = versions_of("offset_fetch")
Row = tuple[Any, int, int, str, str]


async def fetch(
    face: Any,
    version: int,
    topics: list[tuple[str, Any, list[int]]] | None,
    *group_ids: str,
    stable: bool = False,
) -> list[tuple[str, list[Row]]]:
    """Per group: its error, and rows of topic, partition, offset, metadata, error."""
    ids = group_ids or ("g",)
    kind = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
    wanted = (
        None
        if topics is None
        else tuple(
            face.part(
                "offset_fetch",
                version,
                kind,
                name=name,
                topic_id=topic_id,
                partition_indexes=tuple(partitions),
            )
            for name, topic_id, partitions in topics
        )
    )
    if version >= 8:
        groups = tuple(
            face.part(
                "offset_fetch",
                version,
                "OffsetFetchRequestGroup",
                group_id=group_id,
                member_id=None,
                member_epoch=-1,
                topics=wanted,
            )
            for group_id in ids
        )
        reply = await face.call("offset_fetch", version, groups=groups, require_stable=stable)
        answers = list(reply.groups)
        assert [group.group_id for group in answers] == list(ids)
    else:
        answers = [
            await face.call(
                "offset_fetch", version, group_id=one, topics=wanted, require_stable=stable
            )
            for one in ids
        ]
    return [
        (
            answer.error_code.name if version >= 2 else "none",
            [
                (
                    topic.topic_id if version >= 10 else topic.name,
                    p.partition_index,
                    p.committed_offset,
                    p.metadata,
                    p.error_code.name,
                )
                for topic in answer.topics
                for p in topic.partitions
            ],
        )
        for answer in answers
    ]


@pytest.mark.parametrize("version", ALL)
async def test_what_was_committed_is_answered_and_nothing_is_minus_one(
    face: Any, version: int
) -> None:
    await face.commit(9, 17)
    flights = face.topic_id("flights")
    name = flights if version >= 10 else "flights"
    asked = [("flights", flights, [0, 1, 99])]
    rows = [
        (name, 0, 17, "note", "none"),
        (name, 1, -1, "", "none"),
        (name, 99, -1, "", "none"),
    ]
    assert await fetch(face, version, asked) == [("none", rows)]
    nothing = [(name, index, -1, "", "none") for index in (0, 1, 99)]
    assert await fetch(face, version, asked, "none") == [("none", nothing)]


@pytest.mark.parametrize("version", ALL)
async def test_an_unknown_topic_is_unknown_by_id_alone(face: Any, version: int) -> None:
    await face.commit(9, 17)
    strange = uuid.UUID(int=5)
    ((error, (row,)),) = await fetch(face, version, [("nowhere", strange, [0])])
    assert error == "none"
    if version >= 10:
        assert row == (strange, 0, -1, "", "unknown_topic_id")
    else:
        assert row == ("nowhere", 0, -1, "", "none")


@pytest.mark.parametrize("version", range(2, 11))
async def test_null_topics_are_all_that_still_exist(face: Any, version: int) -> None:
    await face.commit(9, 17)
    flights = face.topic_id("flights")
    name = flights if version >= 10 else "flights"
    assert await fetch(face, version, None) == [("none", [(name, 0, 17, "note", "none")])]
    assert await fetch(face, version, None, "none") == [("none", [])]
    await face.world.committer.commit([DeleteTopic(topic_id=flights.bytes)])
    assert await fetch(face, version, None) == [("none", [])]


@pytest.mark.parametrize("version", range(7, 11))
async def test_an_offset_that_a_transaction_may_change_is_not_stable(
    face: Any, version: int
) -> None:
    await face.commit(9, 17)
    flights = face.topic_id("flights")
    name = flights if version >= 10 else "flights"
    commit = face.world.committer.commit
    (begun,) = await commit([InitTransaction(transactional_id="x", timeout_ms=1_000)])
    writes = [OffsetWrite(topic_id=flights.bytes, partition=number, offset=20) for number in (0, 1)]
    pending = CommitToTransaction(
        transactional_id="x",
        producer_id=begun.producer_id,
        epoch=begun.epoch,
        group_id="g",
        offsets=writes,
        adds_group=True,
    )
    await commit([pending])
    asked = [("flights", flights, [0, 1, 2])]
    unstable = [
        (name, 0, -1, "", "unstable_offset_commit"),
        (name, 1, -1, "", "unstable_offset_commit"),
        (name, 2, -1, "", "none"),
    ]
    assert await fetch(face, version, asked, stable=True) == [("none", unstable)]
    # All that are committed: of the others none is known yet.
    assert await fetch(face, version, None, stable=True) == [("none", unstable[:1])]
    ((_, rows),) = await fetch(face, version, asked)
    assert [row[2:] for row in rows] == [(17, "note", "none"), (-1, "", "none"), (-1, "", "none")]
    end = EndTransaction(
        transactional_id="x", producer_id=begun.producer_id, epoch=begun.epoch, commits=True
    )
    await commit([end])
    ((_, rows),) = await fetch(face, version, asked, stable=True)
    assert [row[2] for row in rows] == [20, 20, -1]


@pytest.mark.parametrize("version", range(8, 11))
async def test_many_groups_are_answered_in_order(face: Any, version: int) -> None:
    await face.commit(9, 1, "a")
    await face.commit(9, 2, "b")
    answers = await fetch(face, version, None, "b", "none", "a")
    assert [[row[2] for row in rows] for _, rows in answers] == [[2], [], [1]]


@pytest.mark.parametrize("version", ALL)
async def test_a_coordinator_that_ended_says_so(face: Any, version: int) -> None:
    flights = face.topic_id("flights")
    await face.world.groups.close()
    ((error, rows),) = await fetch(face, version, [("flights", flights, [0])])
    assert (error if version >= 2 else rows[0][4]) == "not_coordinator"


@pytest.mark.parametrize("version", range(8, 11))
async def test_a_group_that_is_named_many_times_is_answered_once(face: Any, version: int) -> None:
    await face.commit(5, 42)
    topic_id = face.topic_id("flights")

    def group(*partitions: int | None) -> Any:
        topics = tuple(
            face.part(
                "offset_fetch",
                version,
                "OffsetFetchRequestTopics",
                name="flights",
                topic_id=topic_id,
                partition_indexes=(number, number),
            )
            for number in partitions
        )
        return face.part(
            "offset_fetch",
            version,
            "OffsetFetchRequestGroup",
            group_id="g",
            member_id=None,
            member_epoch=-1,
            topics=None if None in partitions else topics,
        )

    async def fetched(*groups: Any) -> Any:
        answer = await face.call("offset_fetch", version, groups=groups, require_stable=False)
        (found,) = answer.groups
        (topic,) = found.topics
        return [(one.partition_index, one.committed_offset) for one in topic.partitions]

    assert await fetched(*[group(None)] * 100) == [(0, 42)]
    assert await fetched(group(0, 0), group(1), group(0)) == [(0, 42), (1, -1)]
    assert await fetched(group(0), group(None), group(1)) == [(0, 42)]
