"""Real agents of one zone: each block leaves the bucket once, and the secret stays a secret."""

import contextlib
import http.client
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from support.agents import PATIENCE, SECRET, Agents
from support.postgres import running_postgres
from support.raw_fetch import end_of, fetch_from
from support.s3 import S3Server, environment
from support.s3_proxy import S3ProxyProcess

PARTITIONS = 12
VALUE_BYTES = 20_000
RECORDS = 240


def produce(bootstrap: str, client_id: str = "x") -> dict[tuple[int, int], bytes]:
    generator = random.Random(1)
    stored: dict[tuple[int, int], bytes] = {}

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        stored[message.partition(), message.offset()] = message.value()

    producer = Producer({"bootstrap.servers": bootstrap, "client.id": client_id})
    for number in range(RECORDS):
        producer.produce(
            "t",
            generator.randbytes(VALUE_BYTES),
            partition=number % PARTITIONS,
            on_delivery=on_delivery,
        )
        if number % 40 == 39:
            producer.flush(60)
    assert producer.flush(60) == 0
    return stored


def consume(bootstrap: str, count: int, client_id: str = "x") -> dict[tuple[int, int], bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "client.id": client_id})
    consumer.assign([TopicPartition("t", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    found: dict[tuple[int, int], bytes] = {}
    deadline = time.monotonic() + 120
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            for message in consumer.consume(1000, 0.5):
                if message.error() is None:
                    found[message.partition(), message.offset()] = message.value()
    finally:
        consumer.close()
    return found


def fetched_from(address: str) -> dict[tuple[int, int], bytes]:
    """All records, as exactly this agent gives them."""
    found = {}
    for partition in range(PARTITIONS):
        error, end = end_of(address, "t", partition)
        assert error == "NONE"
        at = 0
        while at < end:
            fetched = fetch_from(address, "t", partition, at, wait_ms=10_000)
            assert fetched.error == "NONE", fetched.error
            for offset, value in zip(fetched.offsets, fetched.values, strict=True):
                found[partition, offset] = value
                at = offset + 1
    return found


def blocks(agents: Agents) -> list[dict[str, int]]:
    found = []
    for agent in agents.agents:
        connection = http.client.HTTPConnection(agent.http, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/status", headers={"authorization": f"Bearer {SECRET}"})
            answer = connection.getresponse()
            assert answer.status == 200
            found.append(_find(json.load(answer), "blocks"))
    return found


def _find(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        if name in value:
            return value[name]
        return next(filter(None, (_find(inner, name) for inner in value.values())), None)
    return None


@pytest.fixture
def zone(s3: S3Server, tmp_path: Path) -> Iterator[tuple[Agents, S3ProxyProcess]]:
    """Three agents of one zone that keep nothing new in memory, behind a proxy that counts."""
    with (
        running_postgres() as postgres,
        S3ProxyProcess(upstream=s3.endpoint, log=tmp_path / "proxy.log") as proxy,
        Agents(
            tmp_path,
            postgres.url,
            f"s3://{s3.make_bucket()}/zone",
            environment=environment(proxy.endpoint),
            settings={
                "TAIL_CACHE_BYTES": "0",
                "DEFAULT_PARTITIONS": str(PARTITIONS),
                # Reads by other jobs would be counted with those of clients.
                "ARCHIVE_INTERVAL_MS": "3600000",
                "SNAPSHOT_INTERVAL_MS": "3600000",
                "AGENT_TIMEOUT_MS": "60000",
                # However slow this machine is: a peer that is waited for is no dead one.
                "PEER_TIMEOUT_MS": "30000",
            },
            zones=("a",),
        ) as agents,
    ):
        for _ in range(3):
            agents.add()
        agents.wait_live()
        yield agents, proxy


def test_each_block_is_downloaded_once_and_the_secret_is_in_no_log(
    zone: tuple[Agents, S3ProxyProcess], tmp_path: Path
) -> None:
    agents, proxy = zone
    stored = produce(agents.bootstrap)
    objects = proxy.counts()["operations"]["put"]
    proxy.clear_counts()
    # From each of the agents, whoever leads.
    for agent in agents.agents:
        assert fetched_from(agent.address) == stored
    assert proxy.counts()["operations"]["get"] > 0
    counts = blocks(agents)
    # Objects are of one block each. Without the zone's cache all three agents would read each.
    # Not counted at the proxy: a slow machine has some asked for a second time (`Hedged`).
    loads = sum(count["loads"] for count in counts)
    assert 0 < loads <= objects
    assert sum(count["own"] + count["peer"] for count in counts) == 3 * loads, counts
    assert sum(count["away"] + count["refused"] for count in counts) == 0, counts
    # With all in memory nothing is read again.
    proxy.clear_counts()
    assert consume(agents.bootstrap, RECORDS) == stored
    assert proxy.counts()["operations"].get("get", 0) == 0
    for agent in agents.agents:
        assert SECRET not in agent.server.log.read_text()


def test_records_that_only_another_agents_wal_holds_are_asked_of_it(
    s3: S3Server, tmp_path: Path
) -> None:
    """Written in one zone, read in the other before anything is in the bucket."""
    with (
        running_postgres() as postgres,
        Agents(
            tmp_path,
            postgres.url,
            f"s3://{s3.make_bucket()}/wal",
            environment=environment(s3.endpoint),
            settings={
                **PATIENCE,
                "DURABILITY": "wal",
                "SEGMENT_AGE_MS": "3600000",
                "DEFAULT_PARTITIONS": str(PARTITIONS),
            },
            zones=("a", "b"),
        ) as agents,
    ):
        for _ in range(2):
            agents.add()
        agents.wait_live()
        stored = produce(agents.bootstrap, client_id="x,penstock_zone=a")
        for zone in ("a", "b"):
            assert consume(agents.bootstrap, RECORDS, f"x,penstock_zone={zone}") == stored
        for agent in agents.agents:
            assert SECRET not in agent.server.log.read_text()
