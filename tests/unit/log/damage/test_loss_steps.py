"""The loss of many batches of one run is accepted by entries of bounded size."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.damage.loss_steps import loss_steps
from penstock.log.damage.salvage import Kept
from penstock.model.ids import PartitionKey
from penstock.state.answers import LossAccepted, Refusal, Refused
from penstock.state.commands import KEPT_FIELDS, KEPT_RUNS_MAX, AcceptLoss
from penstock.state.read.queries import Queries
from penstock.state.rows import StoredRun
from support.log_rig import Rig, run_rig
from support.rot import consume, object_path, read_views, runs_of
from unit.state.orders import KEY, batch, commit, open_order, topic

BATCH_BYTES = 100


def run_of(batches: int) -> StoredRun:
    """A run of one record per batch, from offset 7 and byte 16 on."""
    length = batches * BATCH_BYTES
    return StoredRun(PartitionKey(1), 7, 7 + batches, 0, "o", 16, length, 5, batches, length + 99)


def pieces_of(right: list[bool]) -> list[Kept]:
    """What is kept of a run whose batches are right or not."""
    found: list[Kept] = []
    for number, is_right in enumerate(right):
        if not is_right:
            continue
        if number and right[number - 1]:
            base, _, position, length, newest, count, sum_ = found.pop()
        else:
            base, position, length, newest, count, sum_ = (
                7 + number, 16 + number * BATCH_BYTES, 0, 5, 0, 0
            )  # fmt: skip
        length, count, sum_ = length + BATCH_BYTES, count + 1, sum_ + number
        found.append(Kept(base, 8 + number, position, length, newest, count, sum_))
    return found


def rows_of(command: AcceptLoss) -> list[Kept]:
    numbers = command.kept
    return [Kept(*numbers[at : at + KEPT_FIELDS]) for at in range(0, len(numbers), KEPT_FIELDS)]


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(2, 6))
def test_the_last_step_leaves_what_is_kept(right: list[bool], runs_max: int) -> None:
    run, kept = run_of(len(right)), pieces_of(right)
    left: list[Kept] = []
    due = (run.base_offset, run.end_offset, run.position, run.length)
    steps = list(loss_steps(run, kept, runs_max=runs_max))
    for number, step in enumerate(steps):
        assert (step.base_offset, step.end_offset, step.position, step.length) == due
        rows = rows_of(step)
        assert len(rows) <= runs_max
        for one, following in pairwise(rows):
            assert one.end_offset < following.base_offset, "each step gives up something"
        if number < len(steps) - 1:
            rest = rows.pop()
            assert (rest.sum, rest.end_offset) == (-1, run.end_offset)
            assert rest.batch_count >= 1
            assert rest.position + rest.length == run.position + run.length
            due = (rest.base_offset, rest.end_offset, rest.position, rest.length)
        left += rows
    assert left == kept


@pytest.mark.slow
def test_more_gaps_than_an_entry_may_make_are_given_up_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loss_steps.__kwdefaults__ == {"runs_max": KEPT_RUNS_MAX}
    monkeypatch.setitem(loss_steps.__kwdefaults__, "runs_max", 20)

    async def test(rig: Rig) -> None:
        (key,) = await rig.topic("t")
        count = 60
        for number in range(count):
            await rig.append(key, b"%06d" % number)
        await rig.drain()
        rig.forget_memory()
        (run,) = runs_of(rig, key)
        path = object_path(rig, run)
        data = bytearray(path.read_bytes())
        size = run.length // count
        for number in range(0, count, 2):
            data[run.position + number * size + 65] ^= 1
        path.write_bytes(data)
        await consume(rig, key, read_views)
        sizes: list[int] = []
        commit = rig.order.commit

        async def measured(commands: list[AcceptLoss]) -> object:
            sizes.extend(len(command.kept) // KEPT_FIELDS for command in commands)
            return await commit(commands)

        rig.log.damage_repair._committer.commit = measured  # type: ignore[method-assign, assignment]
        (report,) = await rig.log.damage_repair.accept_loss()
        assert report.state == "lost"
        assert len(report.lost) == count // 2
        assert sizes == [20, 11]
        await rig.log.let_queries_find()
        rig.forget_memory()
        found, error = await consume(rig, key, read_views)
        assert error is None
        assert [offset for offset, _ in found] == list(range(1, count, 2))
        assert all(one.sum is not None for one in runs_of(rig, key))

    run_rig(tmp_path, test, segment_age_ms=1 << 40)


async def test_more_than_the_bound_is_refused(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    kept = [0] * KEPT_FIELDS * (KEPT_RUNS_MAX + 1)
    command = AcceptLoss(
        partition_key=key, base_offset=0, end_offset=9, position=0, length=9, wal=1, kept=kept
    )
    (answer,) = await rig.log.commit([command])
    assert isinstance(answer, Refused)
    assert answer.reason is Refusal.INVALID_REPLACEMENT
    assert "1001 runs are kept, at most 1000 may be" in answer.detail


def test_a_run_that_the_same_entry_commits_can_be_given_up(tmp_path: Path) -> None:
    """Rows that are not in the database yet count."""
    order = open_order(tmp_path)
    order.append([topic()])
    loss = AcceptLoss(partition_key=KEY, base_offset=0, end_offset=1, position=0, length=100, wal=1)
    _, answer = order.append([commit(batch()), loss]).outcome.answers
    assert answer == LossAccepted([0, 1])
    order.close()


@pytest.mark.options(segment_age_ms=1 << 40)
async def test_what_was_given_up_is_not_served_from_memory(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    for number in range(3):
        await rig.append(key, b"%d" % number)
    await rig.log.let_queries_find()
    run = runs_of(rig, key)[1]
    (command,) = loss_steps(run, [])
    (answer,) = await rig.log.commit([command])
    assert isinstance(answer, LossAccepted)
    await rig.log.let_queries_find()
    found, error = await consume(rig, key, read_views)
    assert error is None
    assert [offset for offset, _ in found] == [0, 2]


@pytest.mark.options(segment_age_ms=1 << 40)
async def test_a_reader_looks_up_one_of_many_lost_ranges(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the lost end of a log: on the event loop, however many there are before."""
    (key,) = await rig.topic("t")
    for number in range(6):
        await rig.append(key, b"%d" % number)
    await rig.log.let_queries_find()
    for run in runs_of(rig, key)[1::2]:
        (command,) = loss_steps(run, [])
        (answer,) = await rig.log.commit([command])
        assert isinstance(answer, LossAccepted)
    await rig.log.let_queries_find()
    assert rig.queries().lost_ranges_of(key) == [(1, 2), (3, 4), (5, 6)]
    look_up = rig.queries().lost_range_before
    found = [look_up(key, offset) for offset in range(7)]
    assert found == [None, (1, 2), (1, 2), (3, 4), (3, 4), (5, 6), (5, 6)]
    monkeypatch.setattr(Queries, "lost_ranges_of", None)
    rig.forget_memory()
    served, error = await consume(rig, key, read_views)
    assert error is None
    assert [offset for offset, _ in served] == [0, 2, 4]
