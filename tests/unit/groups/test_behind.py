"""Groups of a cluster's agent whose disk has no room for its replica."""

import asyncio
from pathlib import Path

import pytest

from penstock.groups.errors import GroupError
from penstock.groups.ownership import NotServedError
from penstock.metadata.commands import OffsetWrite
from penstock.model.errors import StorageFullError
from penstock.replica.transaction import Transaction
from support.cluster_face import ClusterAgent, World, in_world


def test_a_committed_offset_does_not_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the journal, and answered; the replica's readers do not see it yet."""
    commit = Transaction.commit
    is_full = False

    def commit_if_there_is_room(transaction: Transaction[object]) -> None:
        if is_full:
            raise StorageFullError("commit", "replica.sqlite", "no space")
        commit(transaction)

    monkeypatch.setattr(Transaction, "commit", commit_if_there_is_room)

    async def main(world: World) -> None:
        nonlocal is_full
        (agent,) = await world.cluster(1)
        topic = await agent.topic("flights")
        while agent.groups.refused("g") is not GroupError.NONE:
            await asyncio.sleep(0.1)
        await store(agent, topic.topic_id, 5)
        is_full = True
        await store(agent, topic.topic_id, 9)
        with pytest.raises(NotServedError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            (await agent.groups.fetch_offsets("g"))
        is_full = False
        while not agent.order.shows_answers:
            await asyncio.sleep(0.1)
        (found,) = (await agent.groups.fetch_offsets("g")).values()
        assert found.offset == 9

    in_world(tmp_path, main)


async def store(agent: ClusterAgent, topic_id: bytes, offset: int) -> None:
    write = OffsetWrite(topic_id=topic_id, partition=0, offset=offset)
    result = await agent.on_node(
        agent.groups.commit_offsets("g", [write], member_id="", instance_id=None, generation=-1)
    )
    assert (result.error, list(result.codes)) == (GroupError.NONE, [0])
