"""Agents of one cluster order commands through a shared journal that fails in every way."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.answers import Done, ProducerIds, TopicCreated
from penstock.metadata.apply import LogMachine
from penstock.metadata.cluster_order import ClusterOrderSettings
from penstock.metadata.commands import AllocateProducerIds, CreateTopic, Fence, SetFeatureLevel
from penstock.metadata.schema import CLUSTER_LEVEL
from penstock.model.epochs import epoch_floor
from penstock.model.errors import (
    FencedError,
    InDoubtError,
    InvalidRequestError,
    JournalOlderError,
    NotFoundError,
    OverloadedError,
    PenstockError,
    RetryableError,
)
from penstock.ports.journal import JournalRow
from penstock.replica import Replica, state_digest
from penstock.replica.follower import FollowerSettings
from penstock.testing.journal import JournalFaults, SimulatedJournal
from penstock.testing.randomness import SeededRandom
from penstock.testing.virtual_loop import START_MS, VirtualClock, VirtualLoop, run
from support.cluster_orders import Agent, outcome

ONE = [AllocateProducerIds(count=1)]
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


class World:
    """One journal and agents on a virtual loop."""

    def __init__(self, loop: VirtualLoop, folder: Path, faults: JournalFaults, seed: int) -> None:
        self.loop = loop
        self.folder = folder
        self.seed = seed
        self.clock = VirtualClock(loop)
        self.random = SeededRandom(seed)
        self.journal = SimulatedJournal(random=self.random, clock=self.clock, faults=faults)
        self.agents: list[Agent] = []

    def agent(self, agent_id: int, *, folder: str = "") -> Agent:
        """A process, not started yet. Two of one id have the same folder, unless it is given."""
        agent = Agent(
            agent_id,
            self.folder / (folder or str(agent_id)),
            self.journal.connect(),
            self.journal.cluster_id,
        )
        self.agents.append(agent)
        return agent

    async def started(self, agent_id: int, *, folder: str = "", tries: int = 1) -> Agent:
        agent = self.agent(agent_id, folder=folder)
        # Some of what is applied is applied in the executor.
        settings = ClusterOrderSettings(follower=FollowerSettings(inline_bytes_max=100))
        seed = self.seed * 100 + len(self.agents)
        await agent.start(self.clock, seed, settings=settings, tries=tries)
        return agent

    async def let_pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


Scenario = Callable[[World], Awaitable[None]]


def play(
    folder: Path, scenario: Scenario, *, faults: JournalFaults | None = None, seed: int = 1
) -> None:
    """Run a scenario and close what it left open."""

    async def main(loop: VirtualLoop) -> None:
        world = World(loop, folder, faults or JournalFaults(), seed)
        try:
            await scenario(world)
        finally:
            for agent in world.agents:
                await agent.close()
        assert not loop.faults, loop.faults

    run(main, SeededRandom(seed))


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


# -- any interleaving ------------------------------------------------------------------------------


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
            for answer in entry.answers
            if isinstance(answer, ProducerIds)
        ]
        assert set(ids) <= set(applied)

    play(folder, scenario, faults=NASTY, seed=seed)


# -- numbers ---------------------------------------------------------------------------------------


def test_a_commit_whose_reply_was_lost_is_answered_by_its_number(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        agent = await world.started(1)
        world.journal.faults = JournalFaults(lost_reply_permille=1000)
        commit = asyncio.ensure_future(agent.order.commit(ONE))
        await world.let_pass(0.01)
        world.journal.faults = JournalFaults()
        (answer,) = await commit
        assert answer == ProducerIds(0, 1)
        (second,) = await agent.order.commit(ONE)
        assert second == ProducerIds(1, 1)

    play(tmp_path, scenario)


def test_an_append_that_is_carried_out_twice_counts_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        agent = await world.started(1)
        world.journal.faults = JournalFaults(doubled_permille=1000)
        found = [await agent.order.commit(ONE) for _ in range(20)]
        assert found == [[ProducerIds(n, 1)] for n in range(20)]
        assert world.journal.head > 40

    play(tmp_path, scenario)


def test_what_waits_goes_in_one_entry(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        agent = await world.started(1)
        world.journal.faults = JournalFaults(delay_ms=(10, 10))
        before = world.journal.head
        futures = [agent.order.submit(ONE) for _ in range(100)]
        applied = [await future for future in futures]
        assert [one.answers for one in applied] == [[ProducerIds(n, 1)] for n in range(100)]
        # Eight entries were under way at most; the rest went together in the ninth.
        assert world.journal.head - before == 9
        assert len({one.position for one in applied}) == 9

    play(tmp_path, scenario)


def test_commands_of_one_call_stay_together(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.started(1), await world.started(2)
        world.journal.faults = JournalFaults(commit_ms=(0, 5))
        found = await asyncio.gather(
            *(agent.order.commit(ONE * 3) for agent in (one, two) for _ in range(10))
        )
        for answers in found:
            firsts = [answer.first for answer in answers if isinstance(answer, ProducerIds)]
            assert firsts == list(range(firsts[0], firsts[0] + 3))

    play(tmp_path, scenario)


def test_the_view_moves_before_answers_are_given(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        agent = await world.started(1)
        command = CreateTopic(name="t", topic_id=b"t" * 16, partitions=1)
        future = agent.order.submit([command])
        was_done: list[bool] = []
        agent.on_applied = lambda _: was_done.append(future.done())
        (answer,) = (await future).answers
        assert was_done == [False]
        assert isinstance(answer, TopicCreated)
        last = agent.applied[-1]
        assert last.answers == [answer]
        assert last.changes
        assert (last.agent, last.epoch) == (1, agent.order.epoch)
        assert (last.position, last.time_ms) == (agent.order.position, agent.order.time_ms)

    play(tmp_path, scenario)


# -- epochs ----------------------------------------------------------------------------------------


def test_a_newer_process_of_the_same_id_ends_the_older(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        older = await world.started(1)
        newer = await world.started(1, folder="newer")
        assert newer.order.epoch == older.order.epoch + 1
        found = await asyncio.gather(*(outcome(older.order.commit(ONE)) for _ in range(5)))
        assert all(isinstance(error, FencedError) for error in found)
        assert isinstance(older.stopped, FencedError)
        assert isinstance(await outcome(older.order.commit(ONE)), FencedError)
        assert await newer.order.commit(ONE) == [ProducerIds(0, 1)]
        assert newer.stopped is None

    play(tmp_path, scenario)


@pytest.mark.parametrize("seed", range(5))
def test_of_processes_that_open_one_epoch_at_once_each_knows_whose_it_is(
    tmp_path: Path, seed: int
) -> None:
    async def scenario(world: World) -> None:
        twins = [world.agent(1, folder=f"twin{number}") for number in range(3)]
        await asyncio.gather(
            *(
                outcome(twin.start(world.clock, seed * 10 + number))
                for number, twin in enumerate(twins)
            )
        )
        await world.let_pass(1)
        found = [await outcome(twin.order.commit(ONE)) for twin in twins]
        served = [answer for answer in found if isinstance(answer, list)]
        # The last epoch lives; nobody took another's for its own.
        assert len(served) == 1
        assert [isinstance(error, FencedError) for error in found].count(True) == 2

    play(tmp_path, scenario, faults=JournalFaults(delay_ms=(0, 5), commit_ms=(0, 5)), seed=seed)


def test_a_fenced_agent_learns_it_from_its_next_entry(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_a_restarted_agent_goes_on_where_its_replica_is(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        agent = await world.started(1)
        await agent.order.commit(ONE)
        first = agent.order.epoch
        assert first == epoch_floor(START_MS)
        await agent.close()
        again = await world.started(1)
        assert again.order.epoch == first + 1, "within one second epochs are counted on"
        assert await again.order.commit(ONE) == [ProducerIds(1, 1)]
        # Only what it had not applied yet was read again.
        assert [entry.agent for entry in again.applied] == [1, 1]

    play(tmp_path, scenario)


def test_a_replica_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        agent = await world.started(1)
        await agent.close()
        again = world.agent(1)
        again.cluster_id = "another-cluster"
        with pytest.raises(InvalidRequestError, match="another-cluster"):
            await again.start(world.clock, 7)

    play(tmp_path, scenario)


# -- the journal away, older, trimmed --------------------------------------------------------------


def test_a_journal_that_is_away_costs_a_deadline_and_no_more(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_too_much_that_waits_is_refused(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_a_journal_that_came_back_older_ends_the_agent(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_a_start_learns_of_an_older_journal_whichever_read_tells_it_first(tmp_path: Path) -> None:
    """The head that the start waits for is read in one way there and back, the row at the replica's
    position and a head after it in two."""

    async def scenario(world: World) -> None:
        agent = await world.started(1)
        for _ in range(5):
            await agent.order.commit(ONE)
        position = agent.order.position
        await agent.close()
        world.journal.come_back_older(position - 2)
        world.journal.faults = JournalFaults(delay_ms=(5, 5))
        with pytest.raises(JournalOlderError):
            await world.started(1)

    play(tmp_path, scenario)


def test_no_head_is_confirmed_before_the_last_row_was_compared(tmp_path: Path) -> None:
    """A journal that came back older has grown to the replica's position: its head alone says
    nothing."""

    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_an_older_journal_that_has_grown_past_it_is_known_by_the_last_row(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_a_replica_below_the_trim_has_to_bootstrap_anew(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


# -- heads -----------------------------------------------------------------------------------------


def test_a_confirmed_head_was_read_after_the_question(tmp_path: Path) -> None:
    """Whatever was answered to anybody before the question is applied when it is answered."""

    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_all_who_wait_share_one_read(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_a_head_that_lies_behind_a_gap_is_waited_for_shortly(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        one, two = await world.started(1), await world.started(2)
        position, _ = world.journal.take_position()
        world.journal.end_transaction(position, None)
        await one.order.commit(ONE)
        began_s = world.loop.time()
        await two.order.confirm_head()
        assert two.order.position == position + 1
        assert world.loop.time() - began_s < 0.03
        assert [row.body for row in world.journal.rows()].count(b"") == 1

    play(tmp_path, scenario)


# -- clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew_s", [3600, -3600, 6])
def test_an_agent_whose_clock_is_off_writes_nothing_until_it_is_right(
    tmp_path: Path, skew_s: int
) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)


def test_a_slow_answer_proves_nothing_about_clocks(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        agent = await world.started(1)
        world.journal.faults = JournalFaults(delay_ms=(6_000, 6_000))
        commit = asyncio.ensure_future(agent.order.commit(ONE, timeout_s=100))
        await world.let_pass(30)
        world.journal.faults = JournalFaults()
        await commit
        assert agent.stopped is None

    play(tmp_path, scenario)


def test_closing_answers_all_that_wait(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
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

    play(tmp_path, scenario)
