"""Share consumers of the Java client, and its Admin's calls for share groups (KIP-932)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from peers.line_clients import kafka_java
from support.ports import adjacent_ports
from support.server import ServerProcess
from support.share_client import led_elsewhere

SECONDS_MAX = 300


@pytest.mark.parametrize("workers", [1, 2])
def test_java_share_consumers_read_and_are_administered(tmp_path: Path, workers: int) -> None:
    program = kafka_java()
    if isinstance(program, str):
        pytest.skip(program)
    arguments = ("--workers", str(workers)) if workers > 1 else ()
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", arguments=arguments)
    server.kafka_port = adjacent_ports(workers)
    server.start()
    try:
        if workers == 1:
            topic = "flights"
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
        else:
            # The consumer asks the wrong worker first, which names the right one.
            topic = led_elsewhere(server.bootstrap, "flights")
        command = [*program.command[:-1], "ShareGroups", server.bootstrap, topic]
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        assert said.stdout.splitlines() == [
            "share.version 1",
            "first [0x1, 1x1, 2x1, 3x1, 4x1, 5x1]",
            "said [Optional.empty]",
            "again [2x2, 5x2]",
            "described Stable 1",
            "listed true",
            "start 6",
            "altered 4",
            "after [4x1, 5x1]",
            "deleted null",
            "gone true",
        ], said.stderr
    finally:
        status = server.stop()
    assert status == 0, server.tail()
