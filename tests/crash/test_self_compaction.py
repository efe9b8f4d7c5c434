"""A server's own compaction: its child is killed, then the server."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.app.self_compaction import NICE
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.segment import parse_job_key
from support.compacted_log import CompactedLog
from support.server import ServerProcess, run_penstock, running_server
from support.waiting import eventually

SELF = {
    "SEGMENT_AGE_MS": "100",
    "RETENTION_CHECK_MS": "200",
    "DELETE_GRACE_MS": "1000",
    "COMPACTION": "self",
    "COMPACTION_INTERVAL_MS": "1000",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running_server(tmp_path, SELF) as server:
        yield server


def compaction(server: ServerProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{server.http}/v1/status", timeout=30) as answer:
        status: dict[str, Any] = json.load(answer)["compaction"]
    return status


def child(server: ServerProcess, *, not_one_of: tuple[int, ...] = ()) -> int:
    """The pid of the engine process that takes jobs."""

    def pids() -> list[int]:
        status = compaction(server)  # none until the HTTP port has been served for a moment
        is_ready = status and status["engine"]["state"] == "ready"
        return status["engine"]["pids"] if is_ready else []

    found = eventually(pids, lambda pids: bool(pids) and pids[0] not in not_one_of)
    return int(found[0])


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def write_until_compacted(log: CompactedLog) -> None:
    """Write run after run until one more object of a job is named."""

    def outputs() -> set[str]:
        return {key for key in log.named_objects() if parse_job_key(key) is not None}

    before = outputs()

    def write() -> set[str]:
        log.write(1, apart=False)
        return outputs() - before

    eventually(write)


def test_a_server_compacts_by_itself_whatever_is_killed(server: ServerProcess) -> None:
    with PipelineClient(ClientOptions(urls=(f"http://{server.http}",))) as client:
        log = CompactedLog(server.bootstrap, client)
        log.create()
        write_until_compacted(log)
        log.check_read()
        first = child(server)
        assert psutil.Process(first).nice() == NICE
        os.kill(first, signal.SIGKILL)
        second = child(server, not_one_of=(first,))
        write_until_compacted(log)
        log.check_read_from_everywhere()
        status = compaction(server)
        assert status["jobs"]["compaction"]["runs"] >= 2
        assert status["engine"]["starts"] == 2
    server.kill()
    eventually(lambda: is_gone(second))
    verified = run_penstock("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_it_ends_with_its_server(server: ServerProcess) -> None:
    pid = child(server)
    assert server.stop() == 0
    assert is_gone(pid)
