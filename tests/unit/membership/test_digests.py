"""Real replicas on one journal compare their states: a flipped cell is found, and by whom."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.log.opening.cluster import open_cluster_order
from penstock.membership.digests import DigestKeeper
from penstock.model.errors import CorruptDataError, RetryableError
from penstock.order.cluster_order import ClusterOrderSettings
from penstock.order.protocol import AgentIdentity
from penstock.replica.archive import Archive
from penstock.replica.difference import aside_of, note_of, read_difference
from penstock.replica.digest_pins import DigestPins
from penstock.replica.follower import FollowerSettings
from penstock.replica.pinned import PinnedState, digest_pinned
from penstock.state.answers import TopicCreated
from penstock.state.commands import (
    AskDigest,
    CreateTopic,
    Fence,
    Heartbeat,
    ReportDigest,
    SetFeatureLevel,
)
from penstock.state.digest_plan import DigestRound, Verdict
from penstock.state.orders import ClusterOrder
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.schema import INTEGRITY_LEVEL
from support.cluster_rig import ScriptedStore, passing
from support.simulated.inline_executor import InlineExecutor
from support.simulated.journal import SimulatedJournal
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop

INTERVAL_MS = 60_000


def topic(name: str) -> CreateTopic:
    return CreateTopic(name=name, topic_id=name.encode().ljust(16, b"."), partitions=2)


class Member:
    """One agent, as far as order and digests go. It may have several lives."""

    def __init__(self, world: World, agent_id: int) -> None:
        self.world = world
        self.agent_id = agent_id
        self.path = world.folder / str(agent_id) / "replica.sqlite"
        self.path.parent.mkdir()
        self.ended: list[BaseException] = []
        self.is_open = False

    async def start(self) -> None:
        world = self.world
        store = world.store
        executor = InlineExecutor(random=SeededRandom(self.agent_id))
        self.ended = []
        self.order: ClusterOrder = await open_cluster_order(
            world.journal.connect(),
            Archive(
                store,
                cluster_id=world.journal.cluster_id,
                scratch=self.path.parent / "scratch",
                executor=executor,
            ),
            self.path,
            identity=AgentIdentity(agent_id=self.agent_id, level_max=INTEGRITY_LEVEL),
            cluster_id=world.journal.cluster_id,
            clock=world.clock,
            random=SeededRandom(self.agent_id),
            executor=executor,
            settings=ClusterOrderSettings(follower=FollowerSettings(inline_bytes_max=100)),
        )
        self.is_open = True
        self.queries = Queries(self.path)
        self.view = StateView.load(self.queries)
        await self.order.start(
            on_applied=lambda batch: [self.view.apply(one.outcome.changes) for one in batch],
            on_stopped=self.ended.append,
        )
        self.keeper = DigestKeeper(
            me=self.agent_id,
            epoch=self.order.epoch,
            order=self.order,
            view=self.view,
            replica=self.path,
            scratch=self.path.parent / "scratch",
            clock=world.clock,
            executor=executor,
            interval_ms=world.interval_ms,
            on_fatal=self.ended.append,
            hash_pinned=world.hash_pinned,
        )

    async def stop(self) -> None:
        if self.is_open:
            self.is_open = False
            await self.order.close()
            self.queries.close()

    def flip(self, sql: str = "UPDATE partitions SET log_start = 7") -> None:
        """What a disk or memory does to a cell."""
        connection = sqlite3.connect(self.path)
        connection.execute(sql)
        connection.commit()
        connection.close()


class World:
    """A journal, agents on a virtual loop, and the ticks of their jobs."""

    def __init__(self, loop: VirtualLoop, folder: Path) -> None:
        self.folder = folder
        self.clock = VirtualClock(loop)
        self.journal = SimulatedJournal(random=SeededRandom(1), clock=self.clock)
        self.store = ScriptedStore(loop)
        self.members: list[Member] = []
        self.interval_ms = INTERVAL_MS
        self.hash_pinned: Callable[[PinnedState, Path], dict[str, bytes]] = digest_pinned

    async def begin(self, count: int) -> list[Member]:
        """That many agents at the level, with topics."""
        self.members = [Member(self, number) for number in range(1, count + 1)]
        for member in self.members:
            await member.start()
        first = self.members[0].order
        await first.commit([SetFeatureLevel(level=INTEGRITY_LEVEL)])
        await first.commit([topic("t")])
        await self.level_out()
        return self.members

    async def level_out(self) -> None:
        for member in self.members:
            if member.is_open and not member.ended:
                await member.order.confirm_head()

    async def ticks(self, count: int) -> None:
        """Seconds, each with one tick of every job. Who has ended ends like a process."""
        for _ in range(count):
            for member in self.members:
                if member.is_open and not member.ended:
                    await member.keeper.run_once()
            for member in self.members:
                if member.ended:
                    await member.stop()
            await passing(1)
            await self.level_out()

    async def a_round(self) -> None:
        """Until one was due, asked for, answered and judged."""
        await self.ticks(INTERVAL_MS // 1000 + 5)


@pytest.fixture
async def world(virtual_loop: VirtualLoop, tmp_path: Path) -> AsyncIterator[World]:
    world = World(virtual_loop, tmp_path)
    yield world
    for member in world.members:
        await member.stop()


async def writes(member: Member, name: str) -> bool:
    (answer,) = await member.order.commit([topic(name)])
    return isinstance(answer, TopicCreated)


@pytest.mark.slow
async def test_agents_that_are_equal_go_on(world: World) -> None:
    members = await world.begin(3)
    await world.a_round()
    for member in members:
        assert member.keeper.judged.verdict is Verdict.EQUAL
        assert member.keeper.equal_position == member.view.digests.position > 0
        assert member.keeper.counts.equal == 1
        assert await writes(member, f"by-{member.agent_id}")
        assert list((member.path.parent / "scratch").iterdir()) == []
    # One round at a time, and the next one an interval later.
    before = members[0].view.digests.position
    await world.ticks(30)
    assert members[0].view.digests.position == before
    await world.ticks(40)
    assert members[0].view.digests.position > before


@pytest.mark.slow
async def test_of_three_the_bad_one_bootstraps_and_goes_on(world: World) -> None:
    good, bad, other = await world.begin(3)
    bad.flip()
    await world.a_round()
    (error,) = bad.ended
    assert isinstance(error, CorruptDataError)
    assert "differs from that of the majority" in str(error)
    assert "partitions" in str(error)
    assert not bad.is_open
    for member in (good, other):
        assert member.ended == []
        assert member.keeper.judged.verdict is Verdict.MAJORITY
        assert list(member.keeper.judged.agents) == [2]
        assert member.keeper.counts.others_differed == 1
        assert await writes(member, f"by-{member.agent_id}")
    found = read_difference(bad.path)
    assert found is not None
    assert (found.count, found.tables) == (1, ["partitions"])
    await bad.start()
    # What differed is kept to be looked at; the agent asks by itself whether it is right now.
    kept = sqlite3.connect(aside_of(bad.path))
    assert kept.execute("SELECT DISTINCT log_start FROM partitions").fetchall() == [(7,)]
    kept.close()
    await world.ticks(5)
    for member in (good, bad, other):
        assert member.ended == []
        assert member.keeper.judged.verdict is Verdict.EQUAL, member.agent_id
        assert await writes(member, f"again-{member.agent_id}")
    assert not note_of(bad.path).exists()


@pytest.mark.slow
async def test_two_that_differ_stop_writing_and_name_the_table(world: World) -> None:
    good, bad = await world.begin(2)
    bad.flip()
    await world.a_round()
    for member in (good, bad):
        assert member.ended == []
        assert member.keeper.judged.verdict is Verdict.SPLIT
        with pytest.raises(RetryableError, match=r"agents 1, 2 differ at position .* in part"):
            await writes(member, "u")
        with pytest.raises(RetryableError):
            await member.order.submit([topic("u")])
        await member.order.commit([Heartbeat()])
        # What is read is served as before.
        assert member.view.topic("t") is not None
        assert member.keeper.gauges()["penstock_digest_split"] == 1
        assert member.keeper.status()["tables"] == ["partitions"]
    # A restart alone changes nothing: it stops at once, and compares again.
    await good.stop()
    await good.start()
    with pytest.raises(RetryableError, match="differ at position"):
        await writes(good, "u")
    await world.ticks(5)
    assert good.keeper.judged.verdict is Verdict.SPLIT
    # An operator says which is wrong.
    await bad.stop()
    bad.path.unlink()
    await bad.start()
    await world.ticks(5)
    for member in (good, bad):
        assert member.keeper.judged.verdict is Verdict.EQUAL
        assert await writes(member, f"by-{member.agent_id}")


@pytest.mark.slow
async def test_one_of_two_that_is_left_alone_goes_on_when_it_is_restarted(world: World) -> None:
    good, bad = await world.begin(2)
    bad.flip()
    await world.a_round()
    await bad.stop()
    await good.order.commit(
        [Fence(agent=2, epoch=bad.order.epoch, seen_position=good.order.position)]
    )
    await world.a_round()
    # That the other one died does not make this one right.
    with pytest.raises(RetryableError):
        await writes(good, "u")
    await good.stop()
    await good.start()
    await world.ticks(5)
    assert await writes(good, "u")


@pytest.mark.slow
async def test_two_that_differ_stop_again_though_one_of_them_was_alone_meanwhile(
    world: World,
) -> None:
    good, bad = await world.begin(2)
    bad.flip()
    await world.a_round()
    await good.stop()
    await bad.stop()
    await good.start()
    await good.order.commit(
        [Fence(agent=2, epoch=bad.order.epoch, seen_position=good.order.position)]
    )
    await world.ticks(5)
    assert good.keeper.judged.verdict is Verdict.ALONE
    await bad.start()
    await world.ticks(5)
    await assert_stopped(good, bad)


@pytest.mark.slow
async def test_they_also_do_where_one_died_before_its_answer(world: World) -> None:
    good, bad = await world.begin(2)
    bad.flip()
    await world.a_round()
    await bad.stop()
    await bad.start()
    # It asks for a round, in place of the one that says that they differ.
    await bad.keeper.run_once()
    await bad.stop()
    await bad.start()
    await world.ticks(5)
    await assert_stopped(good, bad)


@pytest.mark.slow
async def test_an_agent_that_starts_after_a_round_of_all_asks_for_none(world: World) -> None:
    first, second = await world.begin(2)
    await world.a_round()
    before = first.view.digests.position
    await second.stop()
    await second.start()
    await world.ticks(5)
    assert first.view.digests.position == before


async def assert_stopped(*members: Member) -> None:
    for member in members:
        assert member.keeper.judged.verdict is Verdict.SPLIT
        with pytest.raises(RetryableError, match="differ at position"):
            await writes(member, "u")


@pytest.mark.slow
async def test_a_third_agent_settles_who_of_two_is_wrong(world: World) -> None:
    good, bad = await world.begin(2)
    bad.flip()
    await world.a_round()
    assert good.keeper.judged.verdict is Verdict.SPLIT
    third = Member(world, 3)
    world.members.append(third)
    await third.start()
    await world.ticks(5)
    (error,) = bad.ended
    assert "differs from that of the majority" in str(error)
    for member in (good, third):
        assert member.keeper.judged.verdict is Verdict.MAJORITY
        assert await writes(member, f"by-{member.agent_id}")
    await bad.start()
    await world.ticks(5)
    assert bad.keeper.judged.verdict is Verdict.EQUAL


@pytest.mark.slow
async def test_an_agent_that_differs_twice_does_not_start_again(world: World) -> None:
    _, bad, _ = await world.begin(3)
    bad.flip()
    await world.a_round()
    await bad.start()
    bad.flip('UPDATE topics SET configs = \'{"a":"b"}\'')
    await world.ticks(5)
    (error,) = bad.ended
    assert "made again since the last difference" in str(error)
    with pytest.raises(CorruptDataError, match=r"differed 2 times in a row.* in topics"):
        await bad.start()
    note_of(bad.path).unlink()
    await bad.start()
    assert not bad.ended


async def test_the_state_is_that_of_the_very_position(world: World) -> None:
    """Rows past the one that asks are read and applied with it, by each agent in its own way."""
    members = await world.begin(3)
    first = members[0]
    asked = first.order.submit([AskDigest(seen_position=0)])
    later = [first.order.submit([topic(f"later-{number}")]) for number in range(20)]
    await asked
    for future in later:
        await future
    await world.level_out()
    position = first.view.digests.position
    assert first.order.position > position
    await world.ticks(3)
    for member in members:
        assert member.keeper.judged.verdict is Verdict.EQUAL
        assert member.keeper.equal_position == position


@pytest.mark.slow
async def test_a_state_that_sqlite_cannot_read_is_a_difference(world: World) -> None:
    good, bad, _ = await world.begin(3)

    def damaged(pinned: PinnedState, scratch: Path) -> dict[str, bytes]:
        if str(bad.path.parent) in str(scratch):
            pinned.close()
            raise CorruptDataError("hash state", str(scratch), "malformed")
        return digest_pinned(pinned, scratch)

    world.hash_pinned = damaged
    for member in world.members:
        member.keeper._hash = damaged
    await world.a_round()
    (error,) = bad.ended
    assert "malformed" in str(error)
    assert bad.keeper.counts.failed == 1
    assert await writes(good, "u")


async def test_an_agent_that_cannot_hash_now_is_waited_for(world: World) -> None:
    members = await world.begin(2)

    def full(pinned: PinnedState, scratch: Path) -> dict[str, bytes]:
        pinned.close()
        raise RetryableError("hash state", str(scratch), "no space")

    members[1].keeper._hash = full
    with pytest.raises(RetryableError):
        await world.a_round()
    await world.ticks(5)
    assert members[0].keeper.judged.verdict is Verdict.WAITING
    assert list(members[0].keeper.judged.missing) == [2]
    for member in members:
        assert await writes(member, f"by-{member.agent_id}")


@pytest.mark.slow
async def test_who_does_not_answer_is_named_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        first, second = await world.begin(2)
        await first.order.commit([AskDigest(seen_position=0)])
        await world.level_out()
        # It lives, and its job does not come round; nor does the next round of the first one.
        first.keeper._interval_s = 0
        for _ in range(700):
            await first.keeper.run_once()
            await passing(1)
        assert first.keeper.judged.verdict is Verdict.WAITING
        assert second.ended == []
    told = [text for text in caplog.messages if "not answered" in text]
    assert len(told) == 1
    assert "agents 2 have not answered for 600 s" in told[0]


def test_a_state_that_cannot_be_held_is_counted(tmp_path: Path) -> None:
    pins = DigestPins(tmp_path / "missing.sqlite", lambda _: True)
    pins.pin(7)
    assert pins.failure_count == 1
    assert pins.take(7) is None
    pins.close()


async def test_a_state_is_kept_until_its_round_is_known(world: World) -> None:
    """Rows are applied by another thread, and the view follows a moment later."""
    members = await world.begin(2)
    first = members[0]
    await first.order.commit([AskDigest(seen_position=0)])
    await world.level_out()
    known = first.view.digests
    first.view.digests = DigestRound()
    await first.keeper.run_once()
    first.view.digests = known
    await world.ticks(3)
    for member in members:
        assert member.keeper.judged.verdict is Verdict.EQUAL


async def test_a_state_of_an_older_round_or_of_another_epoch_is_not_hashed(world: World) -> None:
    """Nobody waits for such an answer, and hashing a large state takes minutes."""
    hashed: list[int] = []

    def counted(pinned: PinnedState, scratch: Path) -> dict[str, bytes]:
        hashed.append(pinned.position)
        return digest_pinned(pinned, scratch)

    first, second = await world.begin(2)
    second.keeper._hash = counted
    await first.order.commit([AskDigest(seen_position=0)])
    await world.level_out()
    older = second.view.digests.position
    pinned = second.order.digest_pins.take(older)
    assert pinned is not None
    await first.order.commit([AskDigest(seen_position=older)])
    await world.level_out()
    newer = second.order.digest_pins.take(second.view.digests.position)
    assert newer is not None
    newer.close()
    second.order.digest_pins._replace(pinned)
    await second.keeper.run_once()
    assert hashed == []
    assert second.order.digest_pins.take(older) is None, "it is let go"
    # Asked of an epoch that ends before the answer.
    await first.order.commit([AskDigest(seen_position=second.view.digests.position)])
    await world.level_out()
    held = second.order.digest_pins.take(second.view.digests.position)
    assert held is not None
    second.keeper._epoch += 1
    second.order.digest_pins._replace(held)
    await second.keeper.run_once()
    assert hashed == []


@pytest.mark.slow
async def test_the_note_of_a_difference_stays_until_another_agent_was_equal(world: World) -> None:
    good, bad, other = await world.begin(3)
    bad.flip()
    await world.a_round()
    assert bad.ended
    await bad.start()
    for member in (good, other):
        await member.stop()
        await bad.order.commit(
            [
                Fence(
                    agent=member.agent_id,
                    epoch=member.order.epoch,
                    seen_position=bad.order.position,
                )
            ]
        )
    await world.ticks(70)
    assert bad.keeper.judged.verdict is Verdict.ALONE
    assert note_of(bad.path).exists()
    await good.start()
    await world.a_round()
    assert bad.keeper.judged.verdict is Verdict.EQUAL
    assert not note_of(bad.path).exists()


@pytest.mark.slow
async def test_an_interval_below_a_minute_is_kept(world: World) -> None:
    world.interval_ms = 5_000
    members = await world.begin(3)
    await world.ticks(40)
    assert members[0].keeper.counts.equal >= 5


@pytest.mark.slow
async def test_an_open_round_is_left_a_minute_to_those_that_have_yet_to_answer(
    world: World,
) -> None:
    world.interval_ms = 5_000
    first, second = await world.begin(2)
    while not first.view.digests.position:
        await world.ticks(1)
    position = first.view.digests.position
    world.members = [first]
    await world.ticks(50)
    assert first.keeper.judged.verdict is Verdict.WAITING
    assert first.view.digests.position == position
    await world.ticks(30)
    assert first.view.digests.position > position
    world.members = [first, second]


async def test_an_answer_that_the_journal_did_not_take_is_sent_again(world: World) -> None:
    """The state that it is of can't be hashed again."""
    members = await world.begin(2)
    order = members[0].order
    commit, failed = order.commit, []

    async def fail_once(commands: Any) -> Any:
        if isinstance(commands[0], ReportDigest) and not failed:
            failed.append(commands[0].position)
            raise RetryableError("commit", "journal", "it is away")
        return await commit(commands)

    order.commit = fail_once  # type: ignore[method-assign]
    await order.commit([AskDigest(seen_position=0)])
    await world.level_out()
    with pytest.raises(RetryableError):
        await members[0].keeper.run_once()
    await world.ticks(5)
    assert failed == [members[0].view.digests.position]
    for member in members:
        assert member.keeper.judged.verdict is Verdict.EQUAL
