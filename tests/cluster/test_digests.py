"""A cell of a real agent's replica flips under load: the agents find it, and lose no record."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from chaos.world import World
from support.agents import PATIENCE, Agent
from support.probe import CLIENT, Probe, create_topic, read_all
from support.waiting import eventually

PARTITIONS = 2
TOPIC, QUIET = "compared", "quiet"
SECONDS = 120.0


@pytest.fixture
def compared_world(tmp_path: Path) -> Iterator[World]:
    """Agents that compare their states every few seconds."""
    settings = {**PATIENCE, "DIGEST_INTERVAL_MS": "3000"}
    with World(tmp_path, settings=settings) as world:
        yield world


def digest_of(agent: Agent) -> dict[str, Any]:
    found: dict[str, Any] = agent.status()["digest"]
    return found


def flip(agent: Agent) -> None:
    """A cell of a topic that nobody writes to, so that nothing mends it by chance."""
    with sqlite3.connect(agent.server.data / "replica.sqlite", timeout=30) as connection:
        connection.execute(
            "UPDATE partitions SET bytes = bytes + 1 WHERE next_offset = 0 AND partition_key ="
            " (SELECT min(partition_key) FROM partitions WHERE next_offset = 0)"
        )
    connection.close()


def wait_ended(agent: Agent) -> int:
    assert agent.server.process is not None
    status = agent.server.process.wait(SECONDS)
    agent.server.process = None
    return status


def test_a_flipped_cell_costs_its_agent_a_start_and_two_agents_their_writes(
    compared_world: World,
) -> None:
    world = compared_world
    first, second, third = world.agents.agents
    for name in (TOPIC, QUIET):
        create_topic(first.address, name, PARTITIONS)
    with Probe(world.agents.bootstrap, TOPIC, PARTITIONS) as probe:
        probe.warm_up()
        for agent in (first, second, third):
            eventually(
                lambda agent=agent: digest_of(agent),
                lambda found: found["verdict"] == "equal" and found["equal_position"] > 0,
                timeout_seconds=SECONDS,
            )
        flip(second)
        assert wait_ended(second) == 70
        assert "differs from that of the majority" in second.server.tail()
        ended_s = time.monotonic()
        probe.wait_accepted(ended_s)
        second.server.start()
        eventually(
            lambda: digest_of(second),
            lambda found: found["verdict"] == "equal",
            timeout_seconds=SECONDS,
        )
        assert (second.server.data / "replica.sqlite.aside").exists()
        assert not (second.server.data / "replica.sqlite.differs").exists()
        assert first.server.running()
        assert third.server.running()
        probe.wait_served(time.monotonic())
    assert not probe.failed(), probe.failed()[:3]
    assert probe.acked().items() <= read_all(first.address, TOPIC, PARTITIONS).items()
    # Two are left, and one of them is wrong: nobody knows which.
    third.server.stop()
    world.agents.wait_live(2)
    flip(second)
    for agent in (first, second):
        split = eventually(
            lambda agent=agent: digest_of(agent),
            lambda found: found["verdict"] == "split",
            timeout_seconds=SECONDS,
        )
        assert split["tables"] == ["partitions"]
        assert split["agents"] == sorted([first.agent_id, second.agent_id])
    assert send(world) != ""
    assert probe.acked().items() <= read_all(second.address, TOPIC, PARTITIONS).items()
    # An operator says which: its replica is made again.
    second.server.stop()
    for suffix in ("", "-wal", "-shm"):
        (second.server.data / f"replica.sqlite{suffix}").unlink(missing_ok=True)
    second.server.start()
    for agent in (first, second):
        eventually(
            lambda agent=agent: digest_of(agent),
            lambda found: found["verdict"] == "equal",
            timeout_seconds=SECONDS,
        )
    assert send(world) == ""


def send(world: World) -> str:
    """The error of one record within ten seconds; "": it was acknowledged."""
    errors: list[str] = []
    bootstrap = ",".join(agent.address for agent in world.agents.agents[:2])
    producer = Producer({**CLIENT, "bootstrap.servers": bootstrap, "message.timeout.ms": 10_000})

    def done(error: KafkaException | None, _message: object) -> None:
        errors.append("" if error is None else str(error))

    producer.produce(TOPIC, b"one more", on_delivery=done)
    producer.flush(30)
    (error,) = errors
    return error
