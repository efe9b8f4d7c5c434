"""Groups that open transactions have offsets of: how they are deleted, and that they stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.groups.deletion import ROWS_MAX
from penstock.groups.errors import GroupError
from penstock.state.answers import OffsetsCommitted, TransactionSettled
from penstock.state.command import OffsetWrite
from penstock.state.commands import DeleteOffsets
from penstock.state.transaction_commands import (
    CommitToTransaction,
    EndTransaction,
    InitTransaction,
)
from unit.groups.calls import commit, write
from unit.groups.fakes import World, world
from unit.groups.test_deletion import MANY

DAY_MS = 24 * 3600 * 1000


async def begun(one: World, writes: Sequence[OffsetWrite]) -> TransactionSettled:
    """An open transaction that has offsets of group g."""
    (answer,) = await one.committer.commit(
        [InitTransaction(transactional_id="x", timeout_ms=60_000)]
    )
    assert isinstance(answer, TransactionSettled)
    pending = CommitToTransaction(
        transactional_id="x",
        producer_id=answer.producer_id,
        epoch=answer.epoch,
        group_id="g",
        offsets=list(writes),
        adds_group=True,
    )
    (kept,) = await one.committer.commit([pending])
    assert kept == OffsetsCommitted([0] * len(writes))
    return answer


async def end(one: World, begun: TransactionSettled, *, commits: bool) -> None:
    ends = EndTransaction(
        transactional_id="x", producer_id=begun.producer_id, epoch=begun.epoch, commits=commits
    )
    (answer,) = await one.committer.commit([ends])
    assert isinstance(answer, TransactionSettled), answer


async def test_a_group_that_only_a_transaction_has_made_is_deleted_in_bounded_entries(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    one.topic("flights", MANY)
    transaction = await begun(one, [write(one, 1, number) for number in range(MANY)])
    assert [group.group_id for group in one.groups.overviews()] == ["g"]
    one.committer.commands.clear()
    assert await one.groups.delete_groups(["g"]) == [GroupError.NONE]
    assert await one.groups.pending_offsets("g") == set()
    emptied = [command for command in one.committer.commands if isinstance(command, DeleteOffsets)]
    assert [len(command.items) for command in emptied] == [ROWS_MAX, ROWS_MAX]
    await end(one, transaction, commits=True)
    assert await one.groups.fetch_offsets("g") == {}
    assert not list(one.groups.overviews())
    await one.close()


async def test_a_group_expires_once_no_transaction_has_offsets_of_it(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.topic("flights")
    await commit(one, [write(one, 1, number) for number in range(3)])
    transaction = await begun(one, [write(one, 2)])
    one.clock.skew_ms += 8 * DAY_MS
    assert await one.groups.expire() == 0
    assert len(await one.groups.fetch_offsets("g")) == 3
    await end(one, transaction, commits=False)
    assert await one.groups.expire() == 1
    assert not list(one.groups.overviews())
    await one.close()


async def test_offsets_of_a_commit_are_shown_by_a_coordinator_that_had_read_them(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    one.topic("flights")
    await commit(one, [write(one, 1, number) for number in range(2)])
    before = await one.groups.fetch_offsets("g")
    assert [committed.offset for committed in before.values()] == [1, 1]
    transaction = await begun(one, [write(one, 9)])
    await end(one, transaction, commits=True)
    after = await one.groups.fetch_offsets("g")
    assert sorted(committed.offset for committed in after.values()) == [1, 9]
    await one.close()
