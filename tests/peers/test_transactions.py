"""Transactions of the Java client, which speaks protocol V2 (KIP-890): each end raises the epoch,
and what is produced and committed adds itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from peers.line_clients import kafka_java
from support.ports import adjacent_ports
from support.server import ServerProcess

SECONDS_MAX = 300


@pytest.mark.parametrize("workers", [1, 2])
def test_a_java_producer_commits_aborts_transforms_and_is_fenced(
    tmp_path: Path, workers: int
) -> None:
    program = kafka_java()
    if isinstance(program, str):
        pytest.skip(program)
    arguments = ("--workers", str(workers)) if workers > 1 else ()
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", arguments=arguments)
    server.kafka_port = adjacent_ports(workers)
    server.start()
    try:
        command = [*program.command[:-1], "Transactions", server.bootstrap, "flights"]
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        assert said.stdout.splitlines() == [
            "transaction.version 2",
            "offsets of all partitions true",
            "transformed [0-0, 0-1, 3-0, 3-1]",
            "fenced ProducerFencedException",
            "read [0-0, 0-1, 3-0, 3-1, of the next one]",
        ], said.stderr
    finally:
        status = server.stop()
    assert status == 0, server.tail()
