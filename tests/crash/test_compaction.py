"""Drivers of compaction that are killed at every step leave what nothing names, and no more."""

from __future__ import annotations

import json
import signal

import psutil

from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.segment import parse_job_key
from support.compacted_log import CompactedLog, drive, start_driver, stored_segments
from support.compaction_driver import STEPS
from support.server import ServerProcess, run_penstock
from support.waiting import eventually


def job_objects(server: ServerProcess) -> set[str]:
    return {key for key in stored_segments(server) if parse_job_key(key) is not None}


def test_killed_drivers_cost_nothing(server: ServerProcess) -> None:
    url = f"http://{server.http}"
    with PipelineClient(ClientOptions(urls=(url,))) as client:
        log = CompactedLog(server.bootstrap, client)
        log.create()
        log.write(4)
        for step in STEPS:
            before = log.run_counts()
            killed = drive(url, step=step)
            assert killed.returncode == -signal.SIGKILL, (step, killed.stderr)
            changed = [p for p, count in log.run_counts().items() if count != before[p]]
            assert len(changed) == (1 if step == "committed" else 0), step
            log.check_read()
        finished = drive(url)
        assert finished.returncode == 0, finished.stderr
        summary = json.loads(finished.stdout)
        assert (summary["partitions"], summary["refused"]) == (2, [])
        assert log.run_counts() == dict.fromkeys(range(log.partitions), 1)
        log.check_read_from_everywhere()
        # The leases of the killed are over, their objects are condemned, and deleted after the
        # grace.
        eventually(lambda: job_objects(server), lambda found: found == log.named_objects())
        log.check_read()
    assert server.stop() == 0
    verified = run_penstock("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "OK: no problems found" in verified.stdout


def test_a_driver_that_was_away_commits_nothing(server: ServerProcess) -> None:
    """It stalls between its puts and its commit until its lease is over, its job is closed and what
    it has put is deleted. Then it goes on, and must not name what is gone."""
    url = f"http://{server.http}"
    with PipelineClient(ClientOptions(urls=(url,))) as client:
        log = CompactedLog(server.bootstrap, client)
        log.create()
        log.write(4)
        before = log.run_counts()
        driver = start_driver(url, step="stalled")
        try:
            has_put: set[str] = set()

            def has_stopped() -> bool:
                has_put.update(job_objects(server))
                return psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED

            eventually(has_stopped, timeout_seconds=300)
            assert has_put
            eventually(lambda: not job_objects(server))
            driver.send_signal(signal.SIGCONT)
            _, errors = driver.communicate(timeout=300)
        finally:
            driver.kill()
            driver.communicate()
        assert driver.returncode == 1
        assert "FencedError" in errors
        assert log.run_counts() == before
        log.check_read_from_everywhere()


def test_consumers_notice_nothing(server: ServerProcess) -> None:
    """A real consumer reads at all offsets, while runs come, are replaced, and are deleted."""
    url = f"http://{server.http}"
    with PipelineClient(ClientOptions(urls=(url,))) as client:
        log = CompactedLog(server.bootstrap, client)
        log.create()
        log.write(4)
        with log.readers() as faults:
            for _ in range(2):
                assert drive(url).returncode == 0
                log.write(4)
            replaced = log.named_objects()
            assert drive(url).returncode == 0
            eventually(
                lambda: {key for key in replaced if (server.data / "objects" / key).exists()},
                lambda left: left <= log.named_objects(),
            )
        assert not faults
        log.check_read()
        log.check_read_from_everywhere()
