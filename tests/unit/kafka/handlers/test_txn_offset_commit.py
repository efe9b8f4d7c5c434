"""TxnOffsetCommit of groups' members (KIP-447): which generations and members may commit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from unit.kafka.handlers.test_consumer_group_heartbeat import beat

ADDS_GROUP = 5


async def begun(face: Any) -> dict[str, Any]:
    """A transactional producer, as its requests name it."""
    reply = await face.call(
        "init_producer_id",
        4,
        transactional_id="x",
        transaction_timeout=timedelta(seconds=60),
        producer_id=-1,
        producer_epoch=-1,
    )
    return {"producer_id": reply.producer_id, "producer_epoch": reply.producer_epoch}


async def commit(
    face: Any, producer: dict[str, Any], *, member: str = "", generation: int = -1, **fields: Any
) -> str:
    """The error of one offset, of partition 0 of flights."""
    face.topic_id("flights")
    version = ADDS_GROUP
    partition = face.part(
        "txn_offset_commit",
        version,
        "TxnOffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=9,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    topic = face.part(
        "txn_offset_commit",
        version,
        "TxnOffsetCommitRequestTopic",
        name="flights",
        partitions=(partition,),
    )
    asked = {
        "transactional_id": "x",
        "group_id": "g",
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "topics": (topic,),
    }
    reply = await face.call("txn_offset_commit", version, **(asked | producer | fields))
    return str(reply.topics[0].partitions[0].error_code.name)


@pytest.mark.parametrize("instance", [None, "i"])
async def test_a_member_of_a_classic_group_commits_in_its_generation(
    face: Any, instance: str | None
) -> None:
    producer = await begun(face)
    assert await commit(face, producer, member="m", generation=1) == "illegal_generation"
    joined = await face.member(group_instance_id=instance)
    mine = {"member": joined.member_id, "generation": joined.generation_id}
    assert await commit(face, producer, **mine, group_instance_id=instance) == "none"
    late = mine | {"generation": joined.generation_id - 1}
    assert await commit(face, producer, **late) == "illegal_generation"
    other = mine | {"member": "other"}
    assert await commit(face, producer, **other) == "unknown_member_id"
    if instance is not None:
        fenced = await commit(face, producer, **other, group_instance_id=instance)
        assert fenced == "fenced_instance_id"
    # Older clients name no member, and may commit all the same, as in Kafka.
    assert await commit(face, producer) == "none"


async def test_a_member_commits_what_it_read_while_its_group_rebalances(face: Any) -> None:
    producer = await begun(face)
    joined = await face.join(5)
    # The generation has begun, and waits for its leader's assignment.
    mine = {"member": joined.member_id, "generation": joined.generation_id}
    assert await commit(face, producer, **mine) == "none"


async def test_a_member_of_a_consumer_group_commits_in_its_epoch(face: Any) -> None:
    producer = await begun(face)
    joined = await beat(face, 1)
    mine = {"member": joined.member_id, "generation": joined.member_epoch}
    assert await commit(face, producer, **mine) == "none"
    late = mine | {"generation": joined.member_epoch - 1}
    assert await commit(face, producer, **late) == "illegal_generation"
    assert await commit(face, producer, **mine | {"member": "other"}) == "unknown_member_id"
    assert await commit(face, producer) == "none"
