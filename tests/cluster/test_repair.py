"""`penstock repair` in a cluster of real agents: what any agent knows or can read is listed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from support.agents import PATIENCE, Agent, Agents, run_cli
from support.probe import create_topic, read_all
from support.raw_fetch import fetch_from
from support.waiting import eventually

COUNT = 20
SETTINGS = {
    **PATIENCE,
    "SEGMENT_AGE_MS": "3600000",
    "TAIL_CACHE_BYTES": "1MiB",
    "BLOCK_CACHE_BYTES": "8MiB",
    "SCRUB_BYTES_PER_S": "0",
}


def value(topic: str, number: int) -> bytes:
    return f"{topic} {number:06d} ".encode() + b"x" * 2000


def produce(address: str, topic: str, count: int = COUNT) -> None:
    """One batch per record, all through one agent."""
    producer = Producer({"bootstrap.servers": address, "batch.num.messages": 1, "log_level": 0})
    for number in range(count):
        producer.produce(topic, value(topic, number), partition=0)
    assert producer.flush(60) == 0


def flip(folder: Path, wanted: bytes, *, every: bool = False) -> Path:
    """Flip a bit of the first file, or of every one, below a folder that holds some bytes."""
    last = None
    for path in folder.rglob("*"):
        if path.is_file():
            whole = path.read_bytes()
            at = whole.find(wanted)
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(at + 1000)
                    file.write(bytes([whole[at + 1000] ^ 8]))
                last = path
                if not every:
                    break
    if last is not None:
        return last
    raise AssertionError(f"{wanted[:20]!r} is nowhere")


def repair(agent: Agent, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run_cli("repair", "--http", agent.http, "--json", *arguments)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def cluster(tmp_path: Path, postgres_url: str, journal_name: str) -> Iterator[Agents]:
    """Two agents over a bucket that is a folder."""
    with Agents(
        folder=tmp_path,
        journal=postgres_url,
        objects=f"file://{tmp_path}/bucket",
        settings={**SETTINGS, "CLUSTER_NAME": journal_name},
    ) as agents:
        agents.add()
        agents.add()
        agents.wait_live(2)
        yield agents


def restart(agent: Agent) -> None:
    """As a crash: the WAL stays as it is, and nothing is in memory any more."""
    agent.server.kill()
    agent.server.start()


def values(agents: Agents, topic: str) -> list[int]:
    """The numbers of a topic's records."""
    return [int(text.split()[1]) for text in read_all(agents.bootstrap, topic, 1).values()]


def test_what_another_agent_knows_and_what_lies_in_its_wal(cluster: Agents, tmp_path: Path) -> None:
    create_topic(cluster.bootstrap, "shared", 1)
    create_topic(cluster.bootstrap, "walled", 1, penstock_durability="wal")
    produce(cluster.bootstrap, "shared")
    produce(cluster.bootstrap, "walled")
    flip(tmp_path / "bucket" / "segments", value("shared", 7))
    damaged = flip(tmp_path, value("walled", 5))
    # Clients send to the agent that leads the partition: that one's WAL it is.
    one, two = sorted(cluster.agents, key=lambda agent: damaged.is_relative_to(agent.server.data))

    assert repair(one) == (0, {"runs": [], "not_asked": []})
    assert fetch_from(one.address, "walled", 0, 5).error == "CORRUPT_MESSAGE"
    assert repair(two, "--only") == (0, {"runs": [], "not_asked": []})
    status, found = repair(two)
    assert status == 1
    (walled,) = found["runs"]
    assert (walled["partition"], walled["state"]) == ("walled-0", "damaged")
    assert walled["server"] == f"agent {two.agent_id}", "its owner reads it, whom nobody has told"
    (known,) = repair(two, "--only")[1]["runs"]
    assert known == walled | {"server": "this server"}, "it knows of that from now on"

    status, found = repair(one, "--scan")
    assert status == 1
    assert found["scanned"]["damaged"] == 2
    assert {run["partition"] for run in found["runs"]} == {"shared-0", "walled-0"}
    assert {run["copy"] for run in found["runs"]} == {"this agent's tail cache"}
    servers = {run["partition"]: run["server"] for run in found["runs"]}
    assert servers["walled-0"] == f"agent {two.agent_id}", "its writer has it in memory"
    # Either agent may lead the other topic.
    assert servers["shared-0"] in {f"agent {agent.agent_id}" for agent in cluster.agents}
    status, found = repair(one, "--accept-loss", "--yes")
    assert status == 0
    assert [run["state"] for run in found["runs"]] == ["restored"] * 2, "none is given up"
    assert repair(two) == (0, {"runs": [], "not_asked": []})
    assert values(cluster, "shared") == values(cluster, "walled") == list(range(COUNT))

    # No memory holds the records any more, and one record is damaged in each object that has it.
    restart(two)
    restart(one)
    cluster.wait_live(2)
    flip(tmp_path / "bucket" / "segments", value("shared", 9), every=True)
    status, found = repair(one, "--scan", "--accept-loss")
    assert status == 0
    (run,) = found["runs"]
    assert (run["partition"], run["state"], run["copy"]) == ("shared-0", "lost", "")
    for agent in (one, two):
        (row,) = eventually(lambda agent=agent: agent.status()["lost_ranges"]["ranges"])
        assert row["partition"] == "shared-0", "each knows of it, by the journal"
    create_topic(one.address, "last", 1, penstock_durability="wal")
    produce(cluster.bootstrap, "last")
    (owner,) = [agent for agent in (one, two) if agent.known_agents()[agent.agent_id]["wal_runs"]]
    (other,) = {id(agent): agent for agent in (one, two) if agent is not owner}.values()
    owner.server.kill()
    cluster.wait_live(1)
    status, found = repair(other)
    assert status == 1
    (absent,) = found["not_asked"]
    assert absent["server"] == f"agent {owner.agent_id}"
