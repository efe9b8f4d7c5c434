"""Agents that are drained, or stopped in order, while producers of several libraries write to WALs:
the producers go to the others at once, so that the drain ends, and nobody is missed or accused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from chaos.world import World
from support.agents import Agent, run_cli
from support.probe import create_topic, read_all
from support.waiting import eventually

SCRIPT = str(Path(__file__).parents[1] / "support" / "writing_producer.py")
LIBRARIES = ("confluent", "aiokafka", "python")
PARTITIONS = 12
"""Each agent leads some of them, but for one chance in a hundred."""


class Writer:
    """A producer in a process of its own."""

    def __init__(self, library: str, bootstrap: str, topic: str) -> None:
        self.library = library
        self.stored: dict[tuple[int, int], str] = {}
        """Values by partition and offset, as the client was told."""
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", SCRIPT, library, bootstrap, topic, str(PARTITIONS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name=library)
        self._thread.start()

    def __enter__(self) -> Writer:  # noqa: PYI034 - no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            partition, offset, value = json.loads(line)
            self.stored[partition, offset] = value

    def end(self) -> int:
        """Let it flush and end; its exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            status = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._thread.join()
        self.process.stdout.close()
        return status

    def count(self) -> int:
        assert self.process.poll() is None, f"{self.library} ended with {self.process.poll()}"
        return len(self.stored)


@pytest.fixture
def topic(world: World) -> str:
    name = f"drained-under-load-{time.monotonic_ns()}"
    create_topic(world.agents.agents[0].address, name, PARTITIONS, penstock_durability="wal")
    return name


@pytest.fixture
def writers(world: World, topic: str) -> Iterator[list[Writer]]:
    """One of each library; all have written to all partitions."""
    with ExitStack() as stack:
        found = [
            stack.enter_context(Writer(library, world.agents.bootstrap, topic))
            for library in LIBRARIES
        ]
        eventually(lambda: all(covers_all(writer) for writer in found), timeout_seconds=120)
        yield found


def covers_all(writer: Writer) -> bool:
    writer.count()
    return len({partition for partition, _ in list(writer.stored)}) == PARTITIONS


def wait_more(writers: list[Writer]) -> float:
    """Until each has been told of a further record of each partition; for how long that took."""
    began_s = time.monotonic()
    before = {writer.library: set(writer.stored) for writer in writers}

    def further(writer: Writer) -> bool:
        writer.count()
        new = set(writer.stored) - before[writer.library]
        return len({partition for partition, _ in new}) == PARTITIONS

    eventually(lambda: all(further(writer) for writer in writers), timeout_seconds=120)
    return time.monotonic() - began_s


def runs_in(agent: Agent, witness: Agent) -> int:
    """How many runs lie in an agent's WAL, as another one says."""
    return int(witness.known_agents()[agent.agent_id]["wal_runs"])


def test_a_drain_ends_while_producers_write(
    world: World, topic: str, writers: list[Writer]
) -> None:
    first, second = world.agents.agents[:2]
    node = str(second.agent_id)
    assert runs_in(second, first) > 0, "it leads nothing, so this shows nothing"
    began_s = time.monotonic()
    done = run_cli("agent", "drain", node, "--http", first.http)
    took_s = time.monotonic() - began_s
    assert done.returncode == 0, done.stderr
    assert f"agent {node} is draining, and holds 0 group shards and 0 WAL runs" in done.stdout
    more_s = wait_more(writers)
    # The producers are gone, though all of them are still connected.
    assert runs_in(second, first) == 0
    assert second.status()["waiting_bytes"] == 0
    print(f"drained in {took_s:.1f} s with the command's start; then all again in {more_s:.1f} s")
    back = run_cli("agent", "drain", "--undo", node, "--http", first.http)
    assert back.returncode == 0, back.stderr
    wait_more(writers)
    assert [writer.end() for writer in writers] == [0] * len(writers)
    stored = read_all(world.agents.bootstrap, topic, PARTITIONS)
    for writer in writers:
        assert writer.stored.items() <= stored.items(), writer.library


def test_nobody_warns_of_an_agent_that_is_stopped_in_order(
    world: World, topic: str, writers: list[Writer]
) -> None:
    victim = world.agents.agents[1]
    others = [world.agents.agents[0], world.agents.agents[2]]
    victim_id = victim.agent_id
    said_bytes = [agent.server.log.stat().st_size for agent in others]
    assert victim.server.stop() == 0, victim.server.tail()
    # At once: by silence it would take eight seconds here.
    status = others[0].known_agents()[victim_id]
    assert status["status"] == "fenced", status
    assert runs_in(victim, others[0]) == 0
    wait_more(writers)
    for agent, before in zip(others, said_bytes, strict=True):
        said = agent.server.log.read_bytes()[before:].decode()
        assert f"agent {victim_id} has been silent" not in said
        assert "proposing to fence" not in said
    world.start_again(victim)
    world.agents.wait_live(3)
    wait_more(writers)
    assert [writer.end() for writer in writers] == [0] * len(writers)
    stored = read_all(world.agents.bootstrap, topic, PARTITIONS)
    for writer in writers:
        assert writer.stored.items() <= stored.items(), writer.library
