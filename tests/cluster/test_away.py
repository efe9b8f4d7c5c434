"""PostgreSQL or the store is away, an agent is stopped until others have given it up, a clock is an
hour off: what clients are told meanwhile, and that all resumes by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chaos.world import SKEWED, World
from support.agents import Agent
from support.probe import Probe, create_topic, read_all
from support.raw_fetch import end_of, fetch_from, raw_producer
from support.server import ServerFailedError
from support.waiting import eventually

PARTITIONS = 3
AWAY_S = float(os.environ.get("PENSTOCK_TEST_AWAY_S", "12"))
"""How long PostgreSQL is away: longer than an agent may be silent; a minute takes a minute."""
TIMEOUT_MS = 3_000
FENCED_EXIT_STATUS = 70
JUMPING = Path(__file__).parents[1] / "support" / "jumping.py"


def make_topic(world: World, durability: str = "object") -> str:
    topic = f"away-{durability}-{time.monotonic_ns()}"
    create_topic(world.agents.agents[0].address, topic, PARTITIONS, penstock_durability=durability)
    return topic


def epochs(world: World) -> dict[int, tuple[str, int]]:
    """Status and epoch of all agents, as the first of them knows."""
    known = world.agents.agents[0].known_agents()
    return {number: (agent["status"], agent["epoch"]) for number, agent in known.items()}


@pytest.fixture
def unharmed(world: World) -> Iterator[None]:
    """All processes that ran before run afterwards, in the same epochs."""
    pids = [agent.server.process.pid for agent in world.agents.agents if agent.server.process]
    before = epochs(world)
    yield
    assert pids == [
        agent.server.process.pid
        for agent in world.agents.agents
        if agent.server.process and agent.server.running()
    ], world.logs()
    assert epochs(world) == before, world.logs()


@pytest.mark.usefixtures("unharmed")
def test_postgres_away_fetches_go_on_and_nobody_is_fenced(world: World) -> None:
    topic = make_topic(world)
    agents = world.agents.agents
    with Probe(world.agents.bootstrap, topic, PARTITIONS, timeout_ms=TIMEOUT_MS) as probe:
        probe.warm_up()
        # Also from memory and objects of the agents that have not written it.
        stored = dict(list(read_all(agents[1].address, topic, PARTITIONS).items())[-3:])
        eventually(lambda: all(told(agent, topic, stored) for agent in agents))
        world.postgres.stop()
        try:
            away_s = time.monotonic()
            while time.monotonic() - away_s < AWAY_S:
                for agent in agents:
                    assert told(agent, topic, stored), agent.server.tail()
                time.sleep(0.5)
            assert_refused_in_time(agents, topic)
            # An end that is told must be true: none is told.
            error, _ = end_of(agents[0].address, topic, 0)
            assert error == "LEADER_NOT_AVAILABLE"
            back_s = time.monotonic()
        finally:
            world.start_postgres()
        print(f"PostgreSQL was away for {back_s - away_s:.0f} s")
        print(f"accepted again after {probe.wait_accepted(back_s):.2f} s")
        print(f"served again after {probe.wait_served(back_s):.2f} s")
    given_up = [sent for sent in probe.failed() if sent.began_s > away_s]
    assert given_up, "produces were answered while nothing could be ordered"
    for sent in given_up:
        assert sent.retriable or sent.error == "_MSG_TIMED_OUT", sent
    acked = [s for s in probe.sent if s.offset >= 0 and away_s < s.began_s and s.ended_s < back_s]
    assert not acked, "acknowledged while PostgreSQL was away"
    stored = read_all(agents[2].address, topic, PARTITIONS)
    assert probe.acked().items() <= stored.items()


@pytest.mark.usefixtures("unharmed")
def test_store_away_wal_goes_on_and_object_refuses(world: World) -> None:
    in_objects, in_wal = make_topic(world), make_topic(world, "wal")
    with (
        Probe(world.agents.bootstrap, in_objects, PARTITIONS, timeout_ms=TIMEOUT_MS) as objects,
        Probe(world.agents.bootstrap, in_wal, PARTITIONS, timeout_ms=60_000) as wal,
    ):
        objects.warm_up()
        wal.warm_up()
        world.proxy.refuse(refusing=True)
        away_s = time.monotonic()
        try:
            # Several rounds of the WAL's, and at least one refusal in object mode.
            for _ in range(3):
                wal.wait_accepted(time.monotonic())
            wal.wait_served(away_s)
            eventually(lambda: [s for s in objects.failed() if s.began_s > away_s])
            assert_refused_in_time(world.agents.agents, in_objects)
        finally:
            world.proxy.refuse(refusing=False)
        back_s = time.monotonic()
        print(f"object mode accepted again after {objects.wait_accepted(back_s):.2f} s")
        objects.wait_served(back_s)
    assert not wal.failed(), wal.failed()[:3]
    for sent in objects.failed():
        assert sent.retriable or sent.error == "_MSG_TIMED_OUT", sent
    for topic, probe in ((in_objects, objects), (in_wal, wal)):
        stored = read_all(world.agents.bootstrap, topic, PARTITIONS)
        assert probe.acked().items() <= stored.items()


def test_a_stopped_agent_is_fenced_and_ends_when_it_wakes(world: World) -> None:
    topic = make_topic(world)
    victim, witness = world.agents.agents[1], world.agents.agents[0]
    victim_id = victim.agent_id
    _, epoch = epochs(world)[victim_id]
    with (
        Probe(victim.address, topic, PARTITIONS, timeout_ms=60_000) as probe,
        raw_producer(victim.address) as late,
    ):
        probe.warm_up()
        assert late.send(topic, 0, b"in time") == "NONE"
        victim.pause()
        eventually(
            lambda: witness.known_agents()[victim_id]["status"],
            lambda status: status == "fenced",
        )
        # Lies in the sleeper's socket, and is the first that it reads.
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(late.send, topic, 0, b"late")
            time.sleep(0.5)
            victim.resume()
            process = victim.server.process
            assert process is not None
            status = process.wait(60)
        assert answer.result() != "NONE"
        assert status == FENCED_EXIT_STATUS, victim.server.tail()
        assert "other agents go on without this one" in victim.server.tail()
        assert victim.server.tail().count("was ended by another") == 1
        world.start_again(victim)
        world.agents.wait_live(3)
        again = epochs(world)[victim_id]
        assert again[0] == "live"
        assert again[1] > epoch
        probe.wait_accepted(time.monotonic())
        probe.wait_served(time.monotonic())
    stored = read_all(world.agents.bootstrap, topic, PARTITIONS)
    assert probe.acked().items() <= stored.items()
    assert "in time" in stored.values()
    assert "late" not in stored.values()


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
def test_an_agent_whose_clock_jumps_an_hour_refuses_writes_and_harms_nothing(
    world: World, skew_ms: int, tmp_path: Path
) -> None:
    topic = make_topic(world)
    skewed, right = world.agents.agents[2], world.agents.agents[0]
    clock = tmp_path / "clock"
    clock.write_text("0")
    skewed.server.stop()
    skewed.server.launcher = (str(JUMPING),)
    skewed.server.environment["PENSTOCK_TEST_CLOCK_FILE"] = str(clock)
    try:
        skewed.server.start()
        world.agents.wait_live(3)
        before = epochs(world)
        with (
            Probe(world.agents.bootstrap, topic, PARTITIONS) as probe,
            Probe(skewed.address, topic, PARTITIONS, timeout_ms=TIMEOUT_MS, reads=False) as there,
        ):
            probe.warm_up()
            told_bytes = skewed.server.log.stat().st_size
            set_clock(clock, skew_ms)
            eventually(lambda: b"clock" in skewed.server.log.read_bytes()[told_bytes:])
            set_clock(clock, 0)
            back_s = time.monotonic()
            probe.wait_accepted(back_s)
            probe.wait_served(back_s)
            there.wait_accepted(back_s)
        assert epochs(world) == before
    finally:
        skewed.server.kill()
        skewed.server.launcher = ("-m", "penstock")
        del skewed.server.environment["PENSTOCK_TEST_CLOCK_FILE"]
    # A client that is told of a dead leader waits for it.
    world.start_again(skewed)
    world.agents.wait_live(3)
    for one in (probe, there):
        for sent in one.failed():
            assert sent.retriable or sent.error == "_MSG_TIMED_OUT", sent
    stored = read_all(right.address, topic, PARTITIONS)
    assert (probe.acked() | there.acked()).items() <= stored.items()


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
def test_an_agent_whose_clock_is_an_hour_off_does_not_start_and_says_why(
    world: World, skew_ms: int
) -> None:
    agent = world.agents.prepare()
    try:
        agent.server.launcher = (SKEWED,)
        agent.server.environment["PENSTOCK_TEST_CLOCK_SKEW_MS"] = str(skew_ms)
        with pytest.raises(ServerFailedError, match="ended with 1 before it was ready") as failed:
            agent.server.start()
        assert "clock" in str(failed.value)
    finally:
        world.agents.agents.remove(agent)


def told(agent: Agent, topic: str, stored: dict[tuple[int, int], str]) -> bool:
    """Whether an agent gives these records, each at its offset."""
    for (partition, offset), value in stored.items():
        fetched = fetch_from(agent.address, topic, partition, offset, wait_ms=5_000)
        if fetched.error != "NONE" or fetched.values[:1] != [value.encode()]:
            return False
        assert fetched.offsets[0] == offset
    return True


def assert_refused_in_time(agents: list[Agent], topic: str) -> None:
    """Each agent answers a produce by the time that its client waits, and retriably; the client
    here gives up after sixty such times, since the rest is this machine's."""
    for agent in agents:
        with raw_producer(agent.address) as producer:
            error = producer.send(topic, 0, b"in vain", timeout_ms=1_000)
            assert error in {"NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"}


def set_clock(file: Path, skew_ms: int) -> None:
    """At once: nobody reads half a number."""
    making = file.with_suffix(".new")
    making.write_text(str(skew_ms))
    making.replace(file)
