"""Agents serve one another on a port of their own: strangers on the HTTP port are not in their way,
and an old release, which knows one port, finds it by the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.world import World
from cluster.test_upgrade import NEW, OLD, install, old
from support.agents import PATIENCE, Agent
from support.metrics import scrape
from support.probe import create_topic
from support.raw_fetch import fetch_from, raw_producer
from support.strangers import HALF, Strangers
from support.waiting import eventually

IN_THE_WAL = {**PATIENCE, "SEGMENT_AGE_MS": "3600000", "PEER_TIMEOUT_MS": "10000"}
"""Records stay in the WAL of the agent that took them, so that others must ask it; and a peer that
this machine keeps waiting is no dead one."""


def write_to(agent: Agent, topic: str, value: bytes) -> int:
    """One record into the WAL of exactly this agent; its offset."""
    with raw_producer(agent.address) as producer:
        _, offset = eventually(
            lambda: producer.send_for_offset(topic, 0, value), lambda answer: answer[0] == "NONE"
        )
    return offset


def reads(agent: Agent, topic: str, offset: int, value: bytes) -> None:
    """This agent gives the record, which lies in another's WAL."""
    fetched = eventually(
        lambda: fetch_from(agent.address, topic, 0, offset),
        lambda fetched: fetched.error == "NONE" and fetched.offsets[:1] == [offset],
    )
    assert fetched.values[0] == value


def ports(agent: Agent, by: Agent) -> tuple[int, int]:
    """Where peers and where tools are told to call an agent, as one of this release lists it."""
    told = by.known_agents()[agent.agent_id]
    assert "penstock.http" not in told["labels"]
    return int(told["peer"].rpartition(":")[2]), int(told["http"].rpartition(":")[2])


def test_strangers_on_either_port_are_not_in_the_way_of_peers(tmp_path: Path) -> None:
    with World(tmp_path, agents=2, settings=IN_THE_WAL) as world, Strangers() as strangers:
        writer, reader = world.agents.agents
        create_topic(writer.address, "t", 1, penstock_durability="wal")
        assert writer.http
        both = (writer.server.http_port + 1, writer.server.http_port)
        assert ports(writer, by=reader) == both
        for port in both:
            for _ in range(250):
                strangers.connect(port, HALF)
        for number in range(10):
            value = b"record %d" % number
            reads(reader, "t", write_to(writer, "t", value), value)
        found = scrape(writer.http)
        for port in ("http", "peer"):
            assert found["penstock_http_ended_connections_total", f"{port} room"] >= 50
            assert found["penstock_http_refused_total", f"{port} connections"] == 0


@pytest.mark.parametrize("first", [OLD, NEW])
def test_an_old_and_a_new_agent_read_one_anothers_wals(tmp_path: Path, first: int) -> None:
    """Whichever of the two was started first, and after one was replaced as well."""
    with World(tmp_path, agents=2, settings=IN_THE_WAL, prepare=old) as world:
        agents = world.agents.agents
        if first == NEW:
            replace_one(world, agents[0], NEW)
        else:
            replace_one(world, agents[1], NEW)
        new, other = agents if first == NEW else reversed(agents)
        create_topic(new.address, "t", 1, penstock_durability="wal")
        assert new.http
        assert other.http
        assert ports(new, by=new) == (new.server.http_port + 1, new.server.http_port)
        # The old release has one port.
        assert ports(other, by=new) == (other.server.http_port, other.server.http_port)
        with Strangers() as strangers:
            # They are in the way on the old one's port alone.
            for _ in range(250):
                strangers.connect(new.server.http_port, HALF)
            reads(other, "t", write_to(new, "t", b"of the new"), b"of the new")
        reads(new, "t", write_to(other, "t", b"of the old"), b"of the old")


def replace_one(world: World, agent: Agent, level: int) -> None:
    """Stop in order, install, start."""
    assert agent.server.stop() == 0, agent.server.tail()
    install(agent, level)
    agent.server.start()
    world.agents.wait_live(2)
