"""An agent whose replica's disk is full: a small volume of its own, which only root may mount."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.agents import PATIENCE, Agent, Agents
from support.committer import Committer
from support.metrics import scrape
from support.probe import Probe, create_topic, read_all
from support.waiting import eventually

VOLUME = "24m"
PARTITIONS = 3
COMMITTERS = 8
"""Clients that make the journal grow by more than a hundred entries a second."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a volume")


@pytest.fixture
def pair(tmp_path: Path, postgres_url: str, journal_name: str) -> Iterator[tuple[Agents, Agent]]:
    """Two agents, and which of them has the small volume."""
    with (
        ExitStack() as stack,
        Agents(
            tmp_path,
            journal=postgres_url,
            objects=f"file://{tmp_path}/bucket",
            settings={"CLUSTER_NAME": journal_name, **PATIENCE},
        ) as agents,
    ):
        agents.add()
        small = agents.prepare()
        volume = small.server.data
        volume.mkdir(parents=True)
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={VOLUME}", "tmpfs", str(volume)], check=False
        )
        if mounted.returncode:
            pytest.skip("nothing may be mounted here")
        stack.callback(subprocess.run, ["umount", "--lazy", str(volume)], check=True)
        small.server.start()
        agents.wait_live()
        yield agents, small


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler:
        try:
            while filler.write(b"x" * 4096):
                pass
        except OSError:
            pass


def test_an_agent_whose_disk_is_full_lives_and_goes_on(pair: tuple[Agents, Agent]) -> None:
    agents, small = pair
    first, topic = agents.agents[0], "full"
    create_topic(first.address, topic, PARTITIONS)
    before = first.known_agents()[small.agent_id]
    ending = threading.Event()

    def commit(group_id: str) -> None:
        committer = Committer(first.address, group_id, topic)
        offset = 0
        while not ending.is_set():
            offset += 1
            if committer.commit(offset) != "NONE":
                ending.wait(0.5)
        committer.close()

    threads = [
        threading.Thread(target=commit, args=(f"g{number}",)) for number in range(COMMITTERS)
    ]
    with Probe(agents.bootstrap, topic, PARTITIONS, reads=False) as probe:
        probe.wait_accepted(0.0)
        filler = small.server.data / "filler"
        fill(filler)
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: scrape(small.http)["penstock_replica_unstored_bytes", ""] > 10_000)
            # It keeps up: what the other one knows now is known there soon, and so on.
            for _ in range(8):
                position = first.status()["journal_position"]
                eventually(lambda position=position: small.status()["journal_position"] >= position)
                threading.Event().wait(1)
            filler.unlink()
            eventually(lambda: "the replica's disk has space again" in small.server.tail())
        finally:
            ending.set()
            for thread in threads:
                thread.join()
    assert "applied in memory alone until the replica's disk has space" in small.server.tail()
    after = first.known_agents()[small.agent_id]
    assert (after["status"], after["epoch"]) == ("live", before["epoch"])
    assert not probe.failed(), probe.failed()[:3]
    assert probe.acked().items() <= read_all(small.address, topic, PARTITIONS).items()
