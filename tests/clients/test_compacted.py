"""Consumers of a topic that is cleaned by key get what Kafka's would, before, during and after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.pipeline.client import DoorClient, DoorOptions
from support.agents import run_cli
from support.cleaned_topic import CleanedTopic, check_a_topic
from support.server import ServerProcess

pytestmark = pytest.mark.skipif(
    "PENSTOCK_TEST_BOOTSTRAP" in os.environ, reason="cleans by a door that only this server has"
)


@pytest.fixture(params=[1, 2], ids=["alone", "workers"])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    settings = {"SEGMENT_AGE_MS": "100"}
    if request.param > 1:
        settings["WORKERS"] = str(request.param)
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", settings=settings)
    server.start()
    try:
        yield server
        assert server.running(), server.tail()
    finally:
        status = server.stop() if server.process is not None else None
    assert status == 0, server.tail()


@pytest.mark.parametrize("delete_retention_ms", [0, 86_400_000])
def test_a_cleaned_topic_is_as_in_the_model(
    server: ServerProcess, delete_retention_ms: int
) -> None:
    if "WORKERS" in server.settings and not delete_retention_ms:
        pytest.skip("once is enough with workers")
    with DoorClient(DoorOptions(urls=(f"http://{server.http}",))) as client:
        topic = CleanedTopic(server.bootstrap, client, "cleaned", delete_retention_ms)
        topic.create()

        def restart() -> None:
            """So that nothing is in memory."""
            assert server.stop() == 0, server.tail()
            server.start()

        check_a_topic(topic, restart)
    assert server.stop() == 0
    verified = run_cli("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    server.start()
