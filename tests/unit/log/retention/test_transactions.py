"""Time-outs abort transactions, and unused transactional ids are forgotten."""

import logging

import pytest

from penstock.log.retention import transactions as keeping
from penstock.model.ids import PartitionKey
from penstock.state.apply import transactions as applying
from penstock.state.transactions import TransactionState
from support.log_rig import Rig
from support.transactional_producer import TransactionalProducer

TIMEOUT_S = 60


async def begun(rig: Rig, name: str, key: PartitionKey) -> TransactionalProducer:
    producer = TransactionalProducer(rig, name)
    await producer.begin()
    await producer.write(key, b"%s" % name.encode())
    return producer


async def states(rig: Rig) -> dict[str, TransactionState]:
    await rig.log.keeper.clear_leftovers()  # the database is brought along
    rows = rig.queries().transactions_page(-1, limit=99)
    return {row.transactional_id: row.state for row in rows}


async def test_a_transaction_is_aborted_once_its_time_out_has_passed(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=keeping.__name__)
    (key,) = await rig.topic("t")
    await begun(rig, "old", key)
    rig.clock.advance(TIMEOUT_S - 1)
    await begun(rig, "young", key)
    keeper = rig.log.transactions
    assert await keeper.abort_timed_out() == 0
    rig.clock.advance(1)
    assert await keeper.abort_timed_out() == 1
    assert await states(rig) == {
        "old": TransactionState.ABORTED,
        "young": TransactionState.ONGOING,
    }
    assert keeper.timed_out_count == 1
    (record,) = caplog.records
    assert record.getMessage().startswith("aborted 1 of 1 transactions that were open for longer")
    assert record.getMessage().endswith("'old'")
    head = rig.view.head(key)
    assert head is not None
    # Its marker is there, and what is read as committed goes up to what is open still.
    assert (head.next_offset, head.last_stable) == (3, 1)
    assert await keeper.abort_timed_out() == 0


async def test_what_has_timed_out_is_ended_in_entries_of_bounded_work(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(applying, "ENDED_PER_COMMAND", 2)
    monkeypatch.setattr(keeping, "ITEMS_MAX", 3)
    caplog.set_level(logging.INFO, logger=keeping.__name__)
    (key,) = await rig.topic("t")
    for number in range(7):
        await begun(rig, f"x{number}", key)
    rig.clock.advance(TIMEOUT_S)
    before = rig.order.position
    assert await rig.log.transactions.abort_timed_out() == 7
    # Three, three and one were found, and two at most are ended in an entry.
    assert rig.order.position - before == 5
    assert set((await states(rig)).values()) == {TransactionState.ABORTED}


async def test_two_keepers_at_once_abort_each_transaction_once(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    for number in range(3):
        await begun(rig, f"x{number}", key)
    rig.clock.advance(TIMEOUT_S)
    keeper = rig.log.transactions
    await rig.log.keeper.clear_leftovers()  # the database is brought along
    rows = rig.queries().timed_out_transactions(rig.clock.now_ms(), limit=9)
    assert len(rows) == 3
    assert await keeper.abort_timed_out() == 3
    # As another agent that had looked before.
    assert await keeper._abort(rows) == 0
    head = rig.view.head(key)
    assert head is not None
    assert head.next_offset == 6


async def test_nothing_times_out_while_the_clock_is_in_doubt(rig: Rig) -> None:
    (key,) = await rig.topic("t")
    await begun(rig, "x", key)
    rig.clock.set_wall(rig.clock.now_ms() + 7_200_000)
    assert await rig.log.transactions.abort_timed_out() == 0
    assert await rig.log.transactions.forget_unused() == 0


@pytest.mark.options(transactional_id_expiration_ms=600_000)
async def test_ids_that_nobody_uses_are_forgotten_and_open_ones_are_kept(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "ITEMS_MAX", 2)
    caplog.set_level(logging.INFO, logger=keeping.__name__)
    (key,) = await rig.topic("t")
    for number in range(6):
        await begun(rig, f"old{number}", key)
    for number in range(7):
        producer = TransactionalProducer(rig, f"unused{number}")
        await producer.begin()
    keeper = rig.log.transactions
    rig.clock.advance(600)
    used = await begun(rig, "used", key)
    await used.end(commits=True)
    assert await keeper.forget_unused() == 0
    rig.clock.advance(1)
    assert await keeper.forget_unused() == 7
    assert set(await states(rig)) == {"used", *(f"old{number}" for number in range(6))}
    assert keeper.forgotten_count == 7
    assert "'unused0'" in caplog.text
