"""Quotas as clients meet them: told to wait, served after it, and nothing lost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import root
from support.server import ServerProcess, running_server

DEADLINE_S = 120
RATE = 20_000
BURST_BYTES = 10 * RATE
RECORD_BYTES = 10_000
RECORDS = 30


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("limited"), {}) as server:
        yield server


def quota(server: ServerProcess, *words: str) -> str:
    done = CliRunner().invoke(root, ["quota", *words, "--server", server.bootstrap])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_librdkafka_is_told_to_wait_and_delivers_all(
    limited: ServerProcess, name: Callable[[str], str]
) -> None:
    from confluent_kafka import Consumer, Producer

    waits: list[float] = []
    failed: list[object] = []
    topic, client_id = name("loaded"), name("loader")
    common = {"bootstrap.servers": limited.bootstrap, "client.id": client_id}
    producer = Producer(
        common
        | {
            "throttle_cb": lambda event: waits.append(event.throttle_time),
            # Each record is a request, so that those after the burst wait.
            "batch.num.messages": 1,
            "max.in.flight": 1,
        }
    )
    producer.produce(topic, b"", on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(DEADLINE_S) == 0
    quota(limited, "set", f"producer_byte_rate={RATE}", "--client-id", client_id)
    quota(limited, "set", f"consumer_byte_rate={RATE}", "--client-id", client_id)
    began_s = time.monotonic()
    for _ in range(RECORDS):
        producer.produce(
            topic, os.urandom(RECORD_BYTES), on_delivery=lambda e, _: e and failed.append(e)
        )
    assert producer.flush(DEADLINE_S) == 0
    took_s = time.monotonic() - began_s
    assert not failed
    # What is beyond the burst comes at the rate; the last request's wait is after its answer.
    beyond_bytes = (RECORDS - 1) * RECORD_BYTES - BURST_BYTES
    assert took_s >= beyond_bytes / RATE - 0.5
    assert max(waits) > 0
    found: list[bytes] = []
    consumer = Consumer(common | {"group.id": name("g"), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline_s = time.monotonic() + DEADLINE_S
    while len(found) < RECORDS + 1 and time.monotonic() < deadline_s:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    assert [len(value) for value in found] == [0, *[RECORD_BYTES] * RECORDS]
    quota(limited, "remove", "producer_byte_rate", "consumer_byte_rate", "--client-id", client_id)
    producer.produce(topic, os.urandom(RECORD_BYTES))
    assert producer.flush(DEADLINE_S) == 0


def test_aiokafka_and_kafka_python_deliver_all(
    limited: ServerProcess, name: Callable[[str], str]
) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from kafka import KafkaProducer

    topic, client_id = name("loaded"), name("loader")
    # Less than a record per second beyond a burst of five.
    quota(limited, "set", f"producer_byte_rate={RECORD_BYTES // 2}", "--client-id", client_id)
    values = [os.urandom(RECORD_BYTES) for _ in range(8)]
    producer = KafkaProducer(bootstrap_servers=limited.bootstrap, client_id=client_id, batch_size=0)
    for value in values[:4]:
        producer.send(topic, value).get(timeout=DEADLINE_S)
    producer.close()

    async def go_on() -> list[bytes]:
        async with AIOKafkaProducer(
            bootstrap_servers=limited.bootstrap, client_id=client_id
        ) as other:
            for value in values[4:]:
                await asyncio.wait_for(other.send_and_wait(topic, value), DEADLINE_S)
        found: list[bytes] = []
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=limited.bootstrap,
            auto_offset_reset="earliest",
            client_id=name("reader"),
        ) as consumer:
            async with asyncio.timeout(DEADLINE_S):
                while len(found) < len(values):
                    found.append((await consumer.getone()).value)
        return found

    assert asyncio.run(go_on()) == values


def test_quotas_are_there_after_a_kill(tmp_path: Path) -> None:
    with running_server(tmp_path, {}) as server:
        quota(server, "set", "request_percentage=50", "--user", "alice")
        before = quota(server, "list", "--json")
        server.kill()
    with running_server(tmp_path, {}) as server:
        assert quota(server, "list", "--json") == before
