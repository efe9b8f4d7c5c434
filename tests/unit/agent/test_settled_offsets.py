"""A coordinator shows a group's offsets as transactions have settled them."""

import pytest

from penstock.groups.ownership import NotServedError
from penstock.state.answers import OffsetsCommitted, TransactionSettled
from penstock.state.command import OffsetWrite
from penstock.state.commands import CommitOffsets
from penstock.state.transaction_commands import (
    CommitToTransaction,
    EndTransaction,
    InitTransaction,
)
from support.log_rig import Rig


async def test_offsets_in_memory_are_read_again_once_a_transaction_has_changed_them(
    rig: Rig,
) -> None:
    await rig.topic("t", partitions=2)
    topic = rig.view.topic("t")
    assert topic is not None
    groups = rig.agent.groups
    (first,) = await rig.log.commit([InitTransaction(transactional_id="x", timeout_ms=60_000)])
    assert isinstance(first, TransactionSettled)
    before = OffsetWrite(topic_id=topic.topic_id, partition=1, offset=4)
    await rig.log.commit([CommitOffsets(group_id="g", offsets=[before])])

    async def offsets() -> dict[int, int]:
        found = await groups.fetch_offsets("g")
        return {number: committed.offset for (_, number), committed in found.items()}

    assert await offsets() == {1: 4}
    epoch = first.epoch
    for number, commits in enumerate((False, True)):
        (pending,) = await rig.log.commit(
            [
                CommitToTransaction(
                    transactional_id="x",
                    producer_id=first.producer_id,
                    epoch=epoch,
                    group_id="g",
                    offsets=[OffsetWrite(topic_id=topic.topic_id, partition=number, offset=7)],
                    adds_group=True,
                )
            ]
        )
        assert pending == OffsetsCommitted([0])
        assert await groups.pending_offsets("g") == {(topic.topic_id, number)}
        assert await offsets() == {1: 4}
        (ended,) = await rig.log.commit(
            [
                EndTransaction(
                    transactional_id="x",
                    producer_id=first.producer_id,
                    epoch=epoch,
                    commits=commits,
                    bumps=True,
                )
            ]
        )
        assert isinstance(ended, TransactionSettled), ended
        epoch = ended.epoch
        assert await groups.pending_offsets("g") == set()
    assert await offsets() == {1: 7}


async def test_a_coordinator_that_has_ended_says_so(rig: Rig) -> None:
    await rig.agent.groups.close()
    with pytest.raises(NotServedError):
        await rig.agent.groups.pending_offsets("g")
