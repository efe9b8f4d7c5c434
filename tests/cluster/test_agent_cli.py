"""`penstock agent` against a real cluster, and WALs that are taken over without being asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.world import World
from support.agents import PATIENCE, SECRET, Agent, run_cli
from support.probe import create_topic, read_all
from support.raw_fetch import RawProducer, fetch_from, raw_producer
from support.server import REPOSITORY
from support.waiting import eventually

PARTITIONS = 3
WITHOUT_SECRET = 1


def agent_cli(agent: Agent, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_cli("agent", *arguments, "--http", agent.http)


def listed(agent: Agent) -> dict[int, dict[str, Any]]:
    done = agent_cli(agent, "list", "--json")
    assert done.returncode == 0, done.stderr
    return {row["id"]: row for row in json.loads(done.stdout)["agents"]}


def leads(agent: Agent, topic: str) -> set[int]:
    """Ids of the agents that lead partitions of a topic, as an agent tells clients."""
    from confluent_kafka.admin import AdminClient

    found = AdminClient({"bootstrap.servers": agent.address}).list_topics(topic, timeout=60)
    return {row.leader for row in found.topics[topic].partitions.values()}


def test_list_names_every_agent(world: World) -> None:
    done = agent_cli(world.agents.agents[1], "list")
    assert done.returncode == 0, done.stderr
    for agent in world.agents.agents:
        (line,) = [row for row in done.stdout.splitlines() if row.startswith(str(agent.agent_id))]
        for text in ("live", agent.address, agent.http, f"region=test,zone={agent.zone}"):
            assert text in line
    # Those of an agent that has come back just now are nobody's for a moment.
    eventually(
        lambda: sum(row["shards"] for row in listed(world.agents.agents[0]).values()),
        lambda shards: shards == 64,
    )


@pytest.mark.parametrize("secret", [None, "another-secret-0123456789"])
@pytest.mark.parametrize(
    "command", [("list",), ("drain", "1"), ("remove", "1"), ("takeover", "/tmp")], ids=" ".join
)
def test_nothing_is_done_without_the_clusters_secret(
    world: World, command: tuple[str, ...], secret: str | None
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    environment["PYTHONPATH"] = str(REPOSITORY / "src")
    if secret is not None:
        environment["PENSTOCK_CLUSTER_SECRET"] = secret
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "penstock",
            "agent",
            *command,
            "--http",
            world.agents.agents[0].http,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == WITHOUT_SECRET
    assert "secret" in done.stderr
    assert "PENSTOCK_CLUSTER_SECRET" in done.stderr
    assert SECRET not in done.stderr


def test_a_drained_agent_holds_and_leads_nothing_and_takes_up_again(world: World) -> None:
    first, second = world.agents.agents[:2]
    topic = f"drained-{time.monotonic_ns()}"
    create_topic(first.address, topic, 64)
    # Not one that has missed a beat, which a busy machine may make it do.
    everybody = {agent.agent_id for agent in world.agents.agents}
    eventually(lambda: leads(first, topic), lambda leaders: leaders == everybody)
    walled = f"{topic}-walled"
    create_topic(first.address, walled, PARTITIONS, penstock_durability="wal")
    acked = fill(second, walled)
    # What lies in its WAL is moved at once, though a run may wait for an hour.
    assert listed(first)[second.agent_id]["wal_runs"] > 0
    done = agent_cli(first, "drain", str(second.agent_id))
    assert done.returncode == 0, done.stderr
    assert (
        f"agent {second.agent_id} is draining, and holds 0 group shards and 0 WAL runs"
        in done.stdout
    )
    row = listed(first)[second.agent_id]
    assert (row["status"], row["shards"], row["wal_runs"]) == ("draining", 0, 0)
    assert acked.items() <= read_all(first.address, walled, PARTITIONS).items()
    assert second.agent_id not in leads(first, topic)
    # It serves consumers on, and sends producers to the others.
    (partition, offset), value = next(iter(acked.items()))
    assert fetch_from(second.address, walled, partition, offset).values[:1] == [value.encode()]
    with raw_producer(second.address) as producer:
        assert producer.send(topic, 0, b"elsewhere") == "NOT_LEADER_OR_FOLLOWER"
    done = agent_cli(first, "drain", str(second.agent_id), "--undo")
    assert done.returncode == 0, done.stderr
    eventually(
        lambda: listed(first)[second.agent_id],
        lambda row: row["status"] == "live" and row["shards"] > 0,
        pause_seconds=1,
    )
    eventually(lambda: leads(first, topic), lambda leaders: leaders == everybody)


def test_a_live_agent_is_not_removed_and_its_wal_not_taken(world: World) -> None:
    first, second = world.agents.agents[:2]
    topic = f"living-{time.monotonic_ns()}"
    create_topic(first.address, topic, 1, penstock_durability="wal")
    with raw_producer(second.address) as producer:
        offset = send(producer, topic, 0, "mine")
    told = second.status()
    assert 0 < told["wal"]["free_bytes"] < told["wal"]["bytes_max"]
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    assert [name for name in told if f"`{name}`" not in page] == []
    for command in (("remove", str(second.agent_id)), ("takeover", str(second.server.data))):
        done = agent_cli(first, *command)
        assert done.returncode == 1
        assert "AGENT_IS_ALIVE" in done.stderr
    done = agent_cli(first, "drain", "7")
    assert done.returncode == 1
    assert "UNKNOWN_AGENT" in done.stderr
    assert fetch_from(second.address, topic, 0, offset).values == [b"mine"]


def test_a_dead_agent_is_removed_once_its_wal_is_taken_over(world: World) -> None:
    """Every record that was acknowledged by it is read again, at its offset."""
    first = world.agents.agents[0]
    topic = f"taken-{time.monotonic_ns()}"
    create_topic(first.address, topic, PARTITIONS, penstock_durability="wal")
    victim = world.agents.add()
    try:
        world.agents.wait_live(4)
        agent_id = victim.agent_id
        acked = fill(victim, topic)
    finally:
        victim.server.kill()
        world.agents.agents.remove(victim)
    world.agents.wait_live(3)
    refused = agent_cli(first, "remove", str(agent_id))
    assert refused.returncode == 1
    assert "WAL_IN_USE" in refused.stderr
    assert listed(first)[agent_id]["wal_runs"] > 0
    done = agent_cli(first, "takeover", str(victim.server.data))
    assert done.returncode == 0, done.stderr
    assert f"bytes of {victim.server.data} to the bucket" in done.stdout
    stored = read_all(world.agents.agents[1].address, topic, PARTITIONS)
    assert acked.items() <= stored.items()
    done = agent_cli(first, "remove", str(agent_id))
    assert done.returncode == 0, done.stderr
    eventually(lambda: agent_id in listed(world.agents.agents[2]), lambda known: not known)


def fill(agent: Agent, topic: str, per_partition: int = 20) -> dict[tuple[int, int], str]:
    """Records in an agent's WAL, as it acknowledged them, by partition and offset."""
    acked = {}
    with raw_producer(agent.address) as producer:
        for number in range(per_partition):
            for partition in range(PARTITIONS):
                value = f"{partition}/{number}"
                offset = send(producer, topic, partition, value)
                acked[partition, offset] = value
    return acked


def send(producer: RawProducer, topic: str, partition: int, value: str) -> int:
    """Until it is acknowledged; its offset."""
    _, offset = eventually(
        lambda: producer.send_for_offset(topic, partition, value.encode()),
        lambda answer: answer[0] == "NONE",
    )
    return offset


@pytest.fixture
def shared_volume(tmp_path: Path) -> Iterator[World]:
    """Three agents that see one another's directories."""
    settings = {
        **PATIENCE,
        "SEGMENT_AGE_MS": "3600000",
        "WAL_VOLUMES": str(tmp_path / "agent-*"),
    }
    with World(tmp_path, settings=settings) as world:
        yield world


def test_a_dead_wal_on_a_shared_volume_is_taken_over_by_itself(shared_volume: World) -> None:
    world = shared_volume
    first, victim, third = world.agents.agents
    topic = "shared"
    create_topic(first.address, topic, PARTITIONS, penstock_durability="wal")
    acked = fill(victim, topic)
    victim.server.kill()
    killed_s = time.monotonic()
    eventually(
        lambda: [fetch_from(first.address, topic, number, 0).error for number in range(PARTITIONS)],
        lambda errors: set(errors) == {"NONE"},
        timeout_seconds=120,
    )
    print(f"taken over {time.monotonic() - killed_s:.1f} s after the kill")
    assert acked.items() <= read_all(third.address, topic, PARTITIONS).items()
    eventually(lambda: any("took over" in agent.server.tail() for agent in (first, third)))
    # Its own again, as another WAL.
    world.start_again(victim)
    world.agents.wait_live(3)
    with raw_producer(victim.address) as producer:
        offset = send(producer, topic, 0, "again")
    eventually(
        lambda: fetch_from(first.address, topic, 0, offset).values,
        lambda values: values == [b"again"],
    )
