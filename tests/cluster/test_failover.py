"""One of three agents dies or comes: every partition is accepted and served again, by a client's
clock. What it takes is printed; bench/bench_failover.py measures it."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from chaos.world import World
from support.agents import Agent, run_cli
from support.probe import Probe, Read, create_topic, read_all
from support.raw_fetch import fetch_from, raw_producer
from support.waiting import eventually

PARTITIONS = 6
RETRIABLE = {"NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR"}


def assert_one_record_each(reads: list[Read]) -> None:
    """A reader has skipped nothing and seen nothing twice within each partition."""
    by_partition: dict[int, list[int]] = {}
    for read in reads:
        by_partition.setdefault(read.partition, []).append(read.offset)
    for partition, offsets in by_partition.items():
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), partition


def test_partitions_of_a_killed_agent_go_on_elsewhere(world: World) -> None:
    topic = "failover-object"
    create_topic(world.agents.agents[0].address, topic, PARTITIONS)
    victim = world.agents.agents[1]
    with Probe(world.agents.bootstrap, topic, PARTITIONS) as probe:
        probe.warm_up()
        killed_s = time.monotonic()
        victim.server.kill()
        accepted = probe.wait_accepted(killed_s)
        served = probe.wait_served(killed_s)
        print(f"killed: accepted after {accepted:.2f} s, served after {served:.2f} s")
    assert not probe.failed(), probe.failed()[:3]
    stored = read_all(world.agents.agents[0].address, topic, PARTITIONS)
    # Everything acknowledged is there, where it was said to be, and nothing is there twice.
    assert probe.acked().items() <= stored.items()
    assert max(Counter(stored.values()).values()) == 1
    assert_one_record_each(probe.read)


def test_an_agent_that_comes_serves(world: World) -> None:
    topic = "join"
    create_topic(world.agents.agents[0].address, topic, PARTITIONS)
    with Probe(world.agents.bootstrap, topic, PARTITIONS) as probe:
        probe.warm_up()
        agent = world.agents.agents[2]
        agent.server.stop()
        began_s = time.monotonic()
        agent.server.start()
        # Alone, so that it is this agent that answers.
        with Probe(agent.address, topic, PARTITIONS) as alone:
            alone.warm_up()
        print(f"joined and served all partitions {time.monotonic() - began_s:.2f} s after start")
    assert not probe.failed(), probe.failed()[:3]
    assert not alone.failed(), alone.failed()[:3]


def last_before(probe: Probe, at_s: float) -> dict[int, int]:
    """By partition, the last offset that was acknowledged by a moment."""
    found: dict[int, int] = {}
    for sent in list(probe.sent):
        if sent.offset >= 0 and sent.ended_s < at_s:
            found[sent.partition] = max(sent.offset, found.get(sent.partition, -1))
    return found


@pytest.fixture
def wal_topic(world: World) -> str:
    topic = f"failover-wal-{time.monotonic_ns()}"
    create_topic(world.agents.agents[0].address, topic, PARTITIONS, penstock_durability="wal")
    return topic


def write_alone(victim: Agent, topic: str) -> dict[int, int]:
    """A record that nobody reads in each partition, through this very agent; their offsets.

    Partitions' leaders are drawn: an agent leads none of six in one of eleven topics, and then a
    client that asks for leaders writes nothing into its WAL.
    """
    with raw_producer(victim.address) as producer:
        return {
            partition: eventually(
                lambda partition=partition: producer.send_for_offset(topic, partition, b"alone"),
                lambda answer: answer[0] == "NONE",
            )[1]
            for partition in range(PARTITIONS)
        }


def test_a_dead_wal_is_waited_for_never_skipped(world: World, wal_topic: str) -> None:
    """All partitions accept at once; what lies in the dead agent's WAL alone is answered retriably
    until another agent took it over."""
    victim = world.agents.agents[1]
    others = [agent for agent in world.agents.agents if agent is not victim]
    unread = f"{wal_topic}-unread"
    create_topic(others[0].address, unread, PARTITIONS, penstock_durability="wal")
    with Probe(victim.address, wal_topic, PARTITIONS, timeout_ms=60_000) as probe:
        probe.warm_up()
        alone = write_alone(victim, unread)
        killed_s = time.monotonic()
        victim.server.kill()
        accepted = probe.wait_accepted(killed_s)
        print(f"killed: a topic of durability wal accepted everywhere after {accepted:.2f} s")
        for agent in others:
            for partition, offset in alone.items():
                fetched = fetch_from(agent.address, unread, partition, offset)
                assert fetched.error in RETRIABLE, fetched
                assert not fetched.offsets
            for partition, offset in last_before(probe, killed_s).items():
                fetched = fetch_from(agent.address, wal_topic, partition, offset)
                if fetched.error == "NONE":
                    assert fetched.offsets[:1] == [offset], fetched
                else:
                    assert fetched.error in RETRIABLE, fetched
                    assert not fetched.offsets
        takeover = ("agent", "takeover", str(victim.server.data), "--http", others[0].http)
        # Clients are sent elsewhere before the dead agent is fenced; until then it is refused.
        done = eventually(
            lambda: run_cli(*takeover),
            lambda done: done.returncode == 0 or "AGENT_IS_ALIVE" not in done.stderr,
        )
        assert done.returncode == 0, done.stderr
        probe.wait_served(killed_s)
    assert not probe.failed(), probe.failed()[:3]
    stored = read_all(others[1].address, wal_topic, PARTITIONS)
    assert probe.acked().items() <= stored.items()
    assert max(Counter(stored.values()).values()) == 1
    assert_one_record_each(probe.read)
    kept = dict.fromkeys(alone.items(), "alone")
    assert all(read_all(agent.address, unread, PARTITIONS) == kept for agent in others)
    # And the agent itself comes back, in the same directory.
    world.start_again(victim)
    world.agents.wait_live(3)
    eventually(lambda: read_all(victim.address, wal_topic, PARTITIONS), lambda all_: all_ == stored)
