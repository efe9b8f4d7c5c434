"""Consumers of a topic that is cleaned by key get what Kafka's would, before, during and after."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.client import ClientOptions, PipelineClient
from support.agents import run_cli
from support.cleaned_topic import CleanedTopic, check_a_topic
from support.ports import adjacent_ports
from support.server import ServerProcess
from support.waiting import eventually

pytestmark = pytest.mark.skipif(
    "PENSTOCK_TEST_BOOTSTRAP" in os.environ, reason="cleans by an API that only this server has"
)


@pytest.fixture(params=[1, 2], ids=["alone", "workers"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    settings = {"SEGMENT_AGE_MS": "100", "RETENTION_CHECK_MS": "200"}
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", settings=settings)
    if request.param > 1:
        settings["WORKERS"] = str(request.param)
        server.kafka_port = adjacent_ports(2 * request.param)
        server.http_port = server.kafka_port + request.param
    server.start()
    try:
        yield server
        assert server.running(), server.tail()
    finally:
        status = server.stop() if server.process is not None else None
    assert status == 0, server.tail()
    verified = run_cli("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.parametrize("delete_retention_ms", [0, 86_400_000])
def test_a_cleaned_topic_is_as_in_the_model(
    server: ServerProcess, delete_retention_ms: int
) -> None:
    if "WORKERS" in server.settings and not delete_retention_ms:
        pytest.skip("once is enough with workers")
    with PipelineClient(ClientOptions(urls=(f"http://{server.http}",))) as client:
        topic = CleanedTopic(server.bootstrap, client, "cleaned", delete_retention_ms)
        topic.create()

        def restart() -> None:
            """So that nothing is in memory."""
            assert server.stop() == 0, server.tail()
            server.start()

        check_a_topic(topic, restart)


def alter(server: ServerProcess, topic: str, config: str) -> None:
    done = run_cli("topic", "alter", topic, "--config", config, "--server", server.bootstrap)
    assert done.returncode == 0, done.stderr


def test_compact_and_delete_both_work(server: ServerProcess) -> None:
    """Superseded records go by key, then what is old goes whole, and offsets never change."""
    with PipelineClient(ClientOptions(urls=(f"http://{server.http}",))) as client:
        topic = CleanedTopic(server.bootstrap, client, "both", delete_retention_ms=86_400_000)
        topic.create(**{"cleanup.policy": "compact,delete", "retention.ms": "-1"})
        topic.write(4)
        assert topic.clean().dropped_records > 0
        ends = {number: runs[-1][1] for number, runs in topic.runs().items()}
        topic.first_timestamp_ms = int(time.time() * 1000) - 60_000
        topic.write(3)
        alter(server, "both", "retention.ms=86400000")
        # All that was written first is older than a day, and lies in one cleaned run.
        eventually(
            lambda: [place.log_start for place in topic.state().partitions],
            lambda starts: starts == list(ends.values()),
        )
        expected = topic.cleaned_models()
        assert topic.clean().dropped_records > 0
        for number, model in expected.items():
            kept = topic.retained(number)
            assert kept == model.records()
            assert all(topic.written[number][record.offset] == record for record in kept)
            assert kept[0].offset >= ends[number]
        topic.check_from_everywhere()
        # And what is cleaned grows old as well.
        alter(server, "both", "retention.ms=1000")
        eventually(lambda: all(p.log_start == p.high_watermark for p in topic.state().partitions))
