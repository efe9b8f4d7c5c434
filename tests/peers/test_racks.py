"""Consumers with a rack, in a cluster of three zones: each reads from an agent of its own zone, and
from all partitions, whichever zone's agent leads them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peers.line_clients import kafka_java
from support.agents import Agents
from support.line_client import LineClient
from support.metrics import scrape
from support.postgres import running_postgres
from support.waiting import eventually

PARTITIONS = 6
RECORDS = 600
ZONES = ("a", "b", "c")
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    folder = tmp_path_factory.mktemp("zones")
    (folder / "objects").mkdir()
    with (
        running_postgres() as postgres,
        Agents(folder, postgres.url, (folder / "objects").as_uri(), zones=ZONES) as agents,
    ):
        for _ in ZONES:
            agents.add()
        agents.wait_live()
        yield agents


@pytest.mark.parametrize("factor", [-1, 1, 3])
def test_a_java_consumer_with_a_rack_reads_all_partitions(agents: Agents, factor: int) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    program = kafka_java()
    if isinstance(program, str):
        pytest.skip(program)
    topic = f"factor{factor}"
    admin = AdminClient({"bootstrap.servers": agents.bootstrap, "log_level": 0})
    wanted = NewTopic(topic, PARTITIONS, replication_factor=factor)
    for created in admin.create_topics([wanted]).values():
        created.result(20)
    shown = admin.list_topics(topic, timeout=20).topics[topic].partitions.values()
    assert {len(partition.replicas) for partition in shown} == {3 if factor == -1 else factor}
    assert len({partition.leader for partition in shown}) > 1, "all are led in one zone"
    producer = Producer({"bootstrap.servers": agents.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(60) == 0

    before = fetches(agents)
    member = LineClient(program, "member", agents.bootstrap, topic, f"group-{topic}", "b")
    read: set[str] = set()

    def poll() -> int:
        read.update(record["value"] for record in member.ask("poll 300")["records"])
        return len(read)

    eventually(poll, lambda count: count == RECORDS, timeout_seconds=SECONDS_MAX)
    assert member.end() == 0
    # One that is sent to an agent that Metadata doesn't name asks again and again without a pause.
    assert fetches(agents) - before < 1_000


def fetches(agents: Agents) -> float:
    """Count the fetches that the agents have answered."""
    found = (scrape(agent.server.http) for agent in agents.agents)
    return sum(values["penstock_request_duration_seconds_count", "Fetch"] for values in found)
