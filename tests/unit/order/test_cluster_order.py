"""Agents of one cluster order commands through a shared journal that fails in every way."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.epochs import epoch_floor
from penstock.model.errors import (
    FencedError,
    InvalidRequestError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.order.cluster_order import UNSTORED_BYTES_MAX
from penstock.replica.dump import state_digest
from penstock.replica.replica import Replica
from penstock.state.answers import Done, ProducerIds, TopicCreated
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import (
    CommitRuns,
    CreateTopic,
    Fence,
    Heartbeat,
    SetFeatureLevel,
)
from penstock.state.entry_keys import entry_key
from penstock.state.schema import CLUSTER_LEVEL
from support.cluster_orders import Agent, outcome
from support.examples import examples
from support.simulated.journal import JournalFaults, SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import START_MS, VirtualLoop, run
from unit.state.worlds import ONE, World, opened_world

NASTY = JournalFaults(
    delay_ms=(0, 8),
    commit_ms=(0, 12),
    slow_permille=15,
    lost_request_permille=30,
    lost_reply_permille=30,
    gap_permille=30,
    doubled_permille=30,
    lost_read_permille=10,
    lost_hint_permille=300,
)


def digest_of_journal(folder: Path, journal: SimulatedJournal) -> bytes:
    """What a machine that reads the rows one by one makes of them."""
    machine = LogMachine()
    replica = Replica.open(folder / "replayed.sqlite", machine, fsync=False, keeps_journal=False)
    for row in journal.rows():
        replica.apply(row.body, stamp_ms=row.stamp_ms, position=row.position)
        replica.commit()
    digest = replica.digest()[1]
    replica.close()
    return digest


def digest_of(agent: Agent) -> bytes:
    """Of a closed agent's replica."""
    with sqlite3.connect(agent.folder / "replica.sqlite") as connection:
        digest = state_digest(connection)
    connection.close()
    return digest


async def settled(work: Callable[[], Awaitable[object]], tries: int = 200) -> None:
    """Until it doesn't fail retriably."""
    for _ in range(tries):
        try:
            await work()
        except RetryableError:
            continue
        return
    raise AssertionError("it never recovers")


@settings(max_examples=examples(0.5))
@given(seed=st.integers(0, 1 << 32))
def test_any_interleaving_gives_equal_replicas_and_true_answers(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("world")
    acked: list[list[int]] = []
    doubtful: list[object] = []

    async def produce(world: World, agent: Agent) -> None:
        random = world.random
        for _ in range(6):
            calls = [
                agent.order.commit(ONE, timeout_s=0.05 if random.below(4) == 0 else 60)
                for _ in range(1 + random.below(12))
            ]
            firsts: list[int] = []
            for found in await asyncio.gather(*map(outcome, calls)):
                if isinstance(found, list):
                    assert isinstance(found[0], ProducerIds)
                    firsts.append(found[0].first)
                else:
                    doubtful.append(found)
            # Calls are applied in the order in which they were made.
            assert firsts == sorted(firsts)
            acked.append(firsts)

    async def disturb(world: World) -> None:
        for _ in range(3):
            await world.let_pass(world.random.below(300) / 1000)
            match world.random.below(4):
                case 0:
                    world.journal.crash()
                case 1:
                    world.journal.go_away()
                    await world.let_pass(world.random.below(1500) / 1000)
                    world.journal.come_back()
                case 2:
                    victim = world.agents[world.random.below(len(world.agents))]
                    victim.journal.cut = True  # type: ignore[attr-defined]
                    await world.let_pass(world.random.below(1500) / 1000)
                    victim.journal.cut = False  # type: ignore[attr-defined]
                case _:
                    pass

    async def scenario(world: World) -> None:
        agents = [await world.started(number, tries=50) for number in (1, 2, 3)]
        await asyncio.gather(disturb(world), *(produce(world, agent) for agent in agents))
        world.journal.faults = JournalFaults()
        await world.let_pass(5)  # copies that nobody waits for any more still come in
        for agent in agents:
            await settled(agent.order.confirm_head)
            assert agent.stopped is None
        assert len({agent.order.position for agent in agents}) == 1
        await asyncio.gather(*(agent.close() for agent in agents))
        ids = [first for firsts in acked for first in firsts]
        assert len(set(ids)) == len(ids)
        assert all(isinstance(error, RetryableError) for error in doubtful), doubtful
        digests = {digest_of(agent) for agent in agents}
        assert digests == {digest_of_journal(folder, world.journal)}
        # What nobody was told may have happened; what was told has.
        applied = [
            answer.first
            for entry in agents[0].applied
            for answer in entry.outcome.answers
            if isinstance(answer, ProducerIds)
        ]
        assert set(ids) <= set(applied)

    async def main(loop: VirtualLoop) -> None:
        async with opened_world(loop, folder, faults=NASTY, seed=seed) as world:
            await scenario(world)
        assert not loop.faults, loop.faults

    run(main, SeededRandom(seed))


async def test_a_commit_whose_reply_was_lost_is_answered_by_its_number(world: World) -> None:
    agent = await world.started(1)
    world.journal.faults = JournalFaults(lost_reply_permille=1000)
    commit = asyncio.ensure_future(agent.order.commit(ONE))
    await world.let_pass(0.01)
    world.journal.faults = JournalFaults()
    (answer,) = await commit
    assert answer == ProducerIds(0, 1)
    (second,) = await agent.order.commit(ONE)
    assert second == ProducerIds(1, 1)


async def test_an_append_that_is_carried_out_twice_counts_once(world: World) -> None:
    agent = await world.started(1)
    world.journal.faults = JournalFaults(doubled_permille=1000)
    found = [await agent.order.commit(ONE) for _ in range(20)]
    assert found == [[ProducerIds(n, 1)] for n in range(20)]
    assert world.journal.head > 40


async def test_what_waits_goes_in_one_entry(world: World) -> None:
    agent = await world.started(1)
    world.journal.faults = JournalFaults(delay_ms=(10, 10))
    before = world.journal.head
    futures = [agent.order.submit(ONE) for _ in range(100)]
    assert [await future for future in futures] == [[ProducerIds(n, 1)] for n in range(100)]
    # Eight entries were under way at most; the rest went together in the ninth.
    assert world.journal.head - before == 9
    own = [entry for entry in agent.applied if entry.position > before]
    assert len(own) == 9


async def test_commands_of_one_call_stay_together(world: World) -> None:
    one, two = await world.started(1), await world.started(2)
    world.journal.faults = JournalFaults(commit_ms=(0, 5))
    found = await asyncio.gather(
        *(agent.order.commit(ONE * 3) for agent in (one, two) for _ in range(10))
    )
    for answers in found:
        firsts = [answer.first for answer in answers if isinstance(answer, ProducerIds)]
        assert firsts == list(range(firsts[0], firsts[0] + 3))


async def test_the_view_moves_before_answers_are_given(world: World) -> None:
    agent = await world.started(1)
    command = CreateTopic(name="t", topic_id=b"t" * 16, partitions=1)
    future = agent.order.submit([command])
    was_done: list[bool] = []
    agent.on_applied = lambda _: was_done.append(future.done())
    (answer,) = await future
    assert was_done == [False]
    assert isinstance(answer, TopicCreated)
    last = agent.applied[-1]
    assert last.outcome.answers == [answer]
    assert last.outcome.changes
    assert entry_key(last.body)[:2] == (1, agent.order.epoch)
    assert (last.position, last.time_ms) == (agent.order.position, agent.order.time_ms)


async def test_a_newer_process_of_the_same_id_ends_the_older(world: World) -> None:
    older = await world.started(1)
    newer = await world.started(1, folder="newer")
    assert newer.order.epoch == older.order.epoch + 1
    found = await asyncio.gather(*(outcome(older.order.commit(ONE)) for _ in range(5)))
    assert all(isinstance(error, FencedError) for error in found)
    assert isinstance(older.stopped, FencedError)
    assert isinstance(await outcome(older.order.commit(ONE)), FencedError)
    assert await newer.order.commit(ONE) == [ProducerIds(0, 1)]
    assert newer.stopped is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.options(faults=JournalFaults(delay_ms=(0, 5), commit_ms=(0, 5)))
async def test_of_processes_that_open_one_epoch_at_once_each_knows_whose_it_is(
    world: World, seed: int
) -> None:
    twins = [world.agent(1, folder=f"twin{number}") for number in range(3)]
    await asyncio.gather(
        *(outcome(twin.start(world.clock, seed * 10 + number)) for number, twin in enumerate(twins))
    )
    await world.let_pass(1)
    found = [await outcome(twin.order.commit(ONE)) for twin in twins]
    served = [answer for answer in found if isinstance(answer, list)]
    # The last epoch lives; nobody took another's for its own.
    assert len(served) == 1
    assert [isinstance(error, FencedError) for error in found].count(True) == 2


async def test_a_fenced_agent_learns_it_from_its_next_entry(world: World) -> None:
    one, two = await world.started(1), await world.started(2)
    await one.order.commit([SetFeatureLevel(level=CLUSTER_LEVEL)])
    fence = Fence(agent=2, epoch=two.order.epoch, seen_position=one.order.position)
    (answer,) = await one.order.commit([fence])
    assert answer == Done()
    await two.order.confirm_head()
    assert two.stopped is None
    found = await asyncio.gather(*(outcome(two.order.commit(ONE)) for _ in range(3)))
    assert all(isinstance(error, FencedError) for error in found)
    assert isinstance(two.stopped, FencedError)
    assert one.stopped is None


async def test_a_restarted_agent_goes_on_where_its_replica_is(world: World) -> None:
    agent = await world.started(1)
    await agent.order.commit(ONE)
    first = agent.order.epoch
    assert first == epoch_floor(START_MS)
    await agent.close()
    again = await world.started(1)
    assert again.order.epoch == first + 1, "within one second epochs are counted on"
    assert await again.order.commit(ONE) == [ProducerIds(1, 1)]
    # Only what it had not applied yet was read again.
    assert [entry_key(entry.body).agent for entry in again.applied] == [1, 1]


async def test_a_replica_of_another_cluster_is_refused(world: World) -> None:
    agent = await world.started(1)
    await agent.close()
    again = world.agent(1)
    again.cluster_id = "another-cluster"
    with pytest.raises(InvalidRequestError, match="another-cluster"):
        await again.start(world.clock, 7)


async def test_closing_answers_all_that_wait(world: World) -> None:
    agent = await world.started(1)
    world.journal.go_away()
    waiting = [asyncio.ensure_future(outcome(agent.order.commit(ONE))) for _ in range(20)]
    confirming = asyncio.ensure_future(outcome(agent.order.confirm_head()))
    await world.let_pass(0)
    await agent.close()
    await agent.close()
    for found in await asyncio.gather(*waiting, confirming):
        assert isinstance(found, RetryableError), found
    assert isinstance(await outcome(agent.order.commit(ONE)), PenstockError)


async def test_records_are_refused_while_too_much_waits_for_space_and_beats_are_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await world.started(1)
    await one.order.commit([SetFeatureLevel(level=CLUSTER_LEVEL)])
    waiting = [UNSTORED_BYTES_MAX + 1]
    monkeypatch.setattr(Replica, "uncommitted_bytes", property(lambda _: waiting[0]))
    refused = await outcome(one.order.commit([CommitRuns(runs=[])]))
    assert isinstance(refused, StorageFullError)
    assert "bytes of entries wait for space on the disk of its replica" in str(refused)
    assert await one.order.commit([Heartbeat()]) == [Done()]
    waiting[0] = 0
    assert not isinstance(await outcome(one.order.commit([CommitRuns(runs=[])])), StorageFullError)
