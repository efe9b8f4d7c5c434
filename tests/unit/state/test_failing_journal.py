"""An order goes by a journal that is away, older, trimmed or slow, or whose clock is another."""

import asyncio

import pytest

from penstock.model.errors import (
    InDoubtError,
    JournalOlderError,
    NotFoundError,
    OverloadedError,
    PenstockError,
    RetryableError,
)
from penstock.ports.journal import JournalRow
from penstock.state.answers import ProducerIds
from penstock.state.commands import TrimLog
from support.cluster_orders import outcome
from support.simulated.journal import JournalFaults
from support.simulated.virtual_loop import VirtualClock
from unit.state.worlds import ONE, World


async def test_a_journal_that_is_away_costs_a_deadline_and_no_more(world: World) -> None:
    agent = await world.started(1)
    assert agent.order.answering_since_s is not None
    world.journal.go_away()
    found = await asyncio.gather(
        *(outcome(agent.order.commit(ONE, timeout_s=0.5)) for _ in range(12))
    )
    assert all(isinstance(error, RetryableError) for error in found)
    # Those in entries may still be committed; those that waited never will be.
    kinds = [isinstance(error, InDoubtError) for error in found]
    assert kinds == [True] * 8 + [False] * 4
    assert isinstance(await outcome(agent.order.confirm_head()), RetryableError)
    assert agent.order.answering_since_s is None
    world.journal.come_back()
    (answer,) = await agent.order.commit(ONE)
    assert answer == ProducerIds(8, 1)
    assert agent.stopped is None


@pytest.mark.slow
async def test_too_much_that_waits_is_refused(world: World) -> None:
    agent = await world.started(1)
    world.journal.go_away()
    futures = [agent.order.submit(ONE * 4096) for _ in range(90)]
    refused = [future for future in futures if future.done()]
    assert refused
    assert all(isinstance(future.exception(), OverloadedError) for future in refused)
    world.journal.come_back()
    for future in futures:
        if future not in refused:
            await future


async def test_a_journal_that_came_back_older_ends_the_agent(world: World) -> None:
    agent = await world.started(1)
    for _ in range(5):
        await agent.order.commit(ONE)
    world.journal.come_back_older(agent.order.position - 2)
    found = await outcome(agent.order.commit(ONE))
    assert isinstance(found, JournalOlderError)
    assert isinstance(agent.stopped, JournalOlderError)
    assert isinstance(await outcome(agent.order.confirm_head()), JournalOlderError)
    await agent.close()
    # Nor does it start with that replica again.
    with pytest.raises(JournalOlderError):
        await world.started(1)


async def test_a_start_learns_of_an_older_journal_whichever_read_tells_it_first(
    world: World,
) -> None:
    """The head that the start waits for is read in one way there and back, the row at the replica's
    position and a head after it in two."""
    agent = await world.started(1)
    for _ in range(5):
        await agent.order.commit(ONE)
    position = agent.order.position
    await agent.close()
    world.journal.come_back_older(position - 2)
    world.journal.faults = JournalFaults(delay_ms=(5, 5))
    with pytest.raises(JournalOlderError):
        await world.started(1)


async def test_no_head_is_confirmed_before_the_last_row_was_compared(world: World) -> None:
    """A journal that came back older has grown to the replica's position: its head alone says
    nothing."""
    one, two = await world.started(1), await world.started(2)
    for _ in range(5):
        await one.order.commit(ONE)
    await two.order.confirm_head()
    await two.close()
    position = one.order.position
    compares = asyncio.Event()
    looks = one.journal.row

    async def row(wanted: int) -> JournalRow | None:
        await compares.wait()
        return await looks(wanted)

    one.journal.row = row  # type: ignore[method-assign]
    world.journal.come_back_older(position - 3)
    for _ in range(3):
        await world.journal.connect().append(b"")
    assert world.journal.head == position
    confirming = asyncio.create_task(one.order.confirm_head(timeout_s=30))
    await world.let_pass(10)
    assert not confirming.done()
    compares.set()
    assert isinstance(await outcome(confirming), JournalOlderError)
    await world.let_pass(1)
    assert isinstance(one.stopped, JournalOlderError)
    await one.close()


async def test_what_was_planned_on_a_lost_history_is_not_sent_to_the_next(world: World) -> None:
    """A trim whose append the failover broke, and which was planned by rows that are lost: the new
    history has other records at those offsets. Nor is what was submitted since."""
    one, two = await world.started(1), await world.started(2)
    await two.order.commit(ONE)
    await one.order.confirm_head()
    await two.close()
    position = one.order.position
    looks, compares = one.journal.row, asyncio.Event()

    async def row(wanted: int) -> JournalRow | None:
        await compares.wait()
        return await looks(wanted)

    one.journal.row = row  # type: ignore[method-assign]
    planned = [
        asyncio.ensure_future(outcome(one.order.commit([TrimLog(items=[at, -1])])))
        for at in range(3)
    ]
    world.journal.faults = JournalFaults(delay_ms=(1, 1))
    await asyncio.sleep(0.0005)
    world.journal.come_back_older(position - 1)
    await world.journal.connect().append(b"")
    await world.journal.connect().append(b"")
    planned.append(asyncio.ensure_future(outcome(one.order.commit([TrimLog(items=[3, -1])]))))
    await world.let_pass(5)
    assert [row.body for row in world.journal.rows()[position - 1 :]] == [b"", b""]
    compares.set()
    await world.let_pass(1)
    assert isinstance(one.stopped, JournalOlderError)
    assert all(isinstance(error, PenstockError) for error in await asyncio.gather(*planned))
    assert world.journal.head == position + 1
    await one.close()


async def test_an_older_journal_that_has_grown_past_it_is_known_by_the_last_row(
    world: World,
) -> None:
    one, two = await world.started(1), await world.started(2)
    for _ in range(5):
        await one.order.commit(ONE)
    await two.order.confirm_head()
    await two.close()
    position = one.order.position
    await one.close()
    world.journal.come_back_older(position - 3)
    three = await world.started(3)
    for _ in range(9):
        await three.order.commit(ONE)
    assert world.journal.head > position
    with pytest.raises(JournalOlderError, match="another row"):
        await world.started(2)


async def test_a_replica_below_the_trim_has_to_bootstrap_anew(world: World) -> None:
    one, two = await world.started(1), await world.started(2)
    await two.close()
    for _ in range(5):
        await one.order.commit(ONE)
    world.journal.trim(one.order.position - 1)
    with pytest.raises(NotFoundError, match="bootstrap"):
        await world.started(2)
    # One that is past it doesn't notice.
    await one.close()
    again = await world.started(1)
    assert await again.order.commit(ONE) == [ProducerIds(5, 1)]


async def test_a_confirmed_head_was_read_after_the_question(world: World) -> None:
    """Whatever was answered to anybody before the question is applied when it is answered."""
    one, two = await world.started(1), await world.started(2)
    world.journal.faults = JournalFaults(
        delay_ms=(0, 20), commit_ms=(0, 20), slow_permille=100, lost_hint_permille=900
    )
    for _ in range(30):
        await one.order.commit(ONE)
        position = one.order.position
        await two.order.confirm_head()
        assert two.order.position >= position
        assert two.order.head_confirmed_s > world.loop.time() - 5


async def test_all_who_wait_share_one_read(world: World) -> None:
    agent = await world.started(1)
    connection = agent.journal
    reads = 0
    head = connection.head

    async def counted() -> object:
        nonlocal reads
        reads += 1
        return await head()

    connection.head = counted  # type: ignore[method-assign,assignment]
    world.journal.faults = JournalFaults(delay_ms=(10, 10))
    first = [asyncio.ensure_future(agent.order.confirm_head()) for _ in range(50)]
    await world.let_pass(0.005)
    second = [asyncio.ensure_future(agent.order.confirm_head()) for _ in range(50)]
    await asyncio.gather(*first, *second)
    # Those who asked while the first read was under way needed another.
    assert reads == 2


async def test_a_head_that_lies_behind_a_gap_is_waited_for_shortly(world: World) -> None:
    one, two = await world.started(1), await world.started(2)
    position, _ = world.journal.take_position()
    world.journal.end_transaction(position, None)
    await one.order.commit(ONE)
    began_s = world.loop.time()
    await two.order.confirm_head()
    assert two.order.position == position + 1
    assert world.loop.time() - began_s < 0.03
    assert [row.body for row in world.journal.rows()].count(b"") == 1


@pytest.mark.parametrize("skew_s", [3600, -3600, 6])
async def test_an_agent_whose_clock_is_off_writes_nothing_until_it_is_right(
    world: World, skew_s: int
) -> None:
    one, two = await world.started(1), world.agent(2)
    clock = VirtualClock(world.loop, skew_ms=skew_s * 1000)
    with pytest.raises(RetryableError, match="clock"):
        await two.start(clock, 5)
    clock.skew_ms = 4000
    again = world.agent(2, folder="again")
    await again.start(clock, 6)
    await again.order.commit(ONE)
    clock.skew_ms = skew_s * 1000
    await world.let_pass(1.5)
    found = await outcome(again.order.commit(ONE))
    assert isinstance(found, RetryableError)
    assert "clock" in str(found)
    # It follows on, and serves what it knows.
    await one.order.commit(ONE)
    await again.order.confirm_head()
    assert again.order.position == one.order.position
    clock.skew_ms = 0
    await world.let_pass(1.5)
    await again.order.commit(ONE)
    # Nothing of it got into journal time.
    assert abs(one.order.time_ms - world.clock.now_ms()) < 5_000


async def test_a_slow_answer_proves_nothing_about_clocks(world: World) -> None:
    agent = await world.started(1)
    world.journal.faults = JournalFaults(delay_ms=(6_000, 6_000))
    commit = asyncio.ensure_future(agent.order.commit(ONE, timeout_s=100))
    await world.let_pass(30)
    world.journal.faults = JournalFaults()
    await commit
    assert agent.stopped is None
