"""PostgreSQL fails over to an older state under real agents: what was acknowledged comes back."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from support.agents import PATIENCE, SECRET, Agent, Agents, run_cli
from support.postgres import PostgresServer, running_postgres
from support.probe import create_topic, read_all
from support.waiting import eventually

COMMON, LOST = 30, 20
PARTITIONS = 2


def produce(bootstrap: str, start: int, end: int) -> None:
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(start, end):
        producer.produce(
            "t",
            b"value %d" % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: error and failures.append(error),
        )
    assert producer.flush(60) == 0
    assert not failures


def metric(agent: Agent, name: str) -> float:
    request = urllib.request.Request(
        f"http://{agent.http}/metrics", headers={"authorization": f"Bearer {SECRET}"}
    )
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def fail_over_to(postgres: PostgresServer, copy: Path) -> None:
    postgres.stop()
    shutil.rmtree(postgres.data)
    copy.rename(postgres.data)
    postgres.start()


def values(agents: Agents) -> list[str]:
    return sorted(read_all(agents.bootstrap, "t", PARTITIONS).values())


@pytest.mark.parametrize("durability", ["object", "wal"])
def test_a_database_that_failed_over_to_an_older_state(tmp_path: Path, durability: str) -> None:
    with (
        running_postgres() as postgres,
        Agents(
            folder=tmp_path,
            journal=postgres.url,
            objects=f"file://{tmp_path}/bucket",
            settings={**PATIENCE, "DURABILITY": durability, "ARCHIVE_INTERVAL_MS": "500"},
        ) as agents,
    ):
        one = agents.add()
        create_topic(one.address, "t", PARTITIONS)
        produce(one.address, 0, COMMON)
        copy = postgres.folder / "copy"
        postgres.stop()
        shutil.copytree(postgres.data, copy)
        for path in [copy, *copy.rglob("*")]:
            shutil.chown(path, postgres.data.owner(), postgres.data.group())
        postgres.start()
        produce(one.address, COMMON, COMMON + LOST)
        fail_over_to(postgres, copy)
        process = one.server.process
        assert process is not None
        assert process.wait(60) == 70
        assert "the journal came back older" in one.server.tail(20_000)
        one.server.kill()  # it has ended: what the test holds of it is let go
        one.server.start()
        agents.wait_live(1)
        (found,) = eventually(lambda: one.status()["lost_histories"])
        assert found["end"] >= found["start"]
        assert metric(one, "penstock_lost_histories") == 1
        common = sorted(f"value {number}" for number in range(COMMON))
        every = sorted(f"value {number}" for number in range(COMMON + LOST))
        assert values(agents) == common
        arguments = ("repair", "--history", "--http", one.http, "--json")
        looked = run_cli(*arguments, "--dry-run")
        assert looked.returncode == 0, looked.stderr
        (report,) = json.loads(looked.stdout)["histories"]
        assert sum(part["records"] for part in report["partitions"]) == LOST, report
        assert values(agents) == common
        done = run_cli(*arguments)
        assert done.returncode == 0, done.stderr + done.stdout
        (report,) = json.loads(done.stdout)["histories"]
        assert report["closed"]
        assert values(agents) == every
        assert one.status()["lost_histories"] == []
        assert metric(one, "penstock_lost_histories") == 0
        again = run_cli("repair", "--history", "--http", one.http)
        assert (again.returncode, again.stdout) == (0, "no lost history is open\n")
        agents.stop()
