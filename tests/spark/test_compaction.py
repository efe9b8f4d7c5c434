"""Compaction on Spark does what it does in threads, also when workers and drivers are killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.compaction import job as compaction
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.job import compact
from penstock.pipeline.compaction.task import CompactionTask
from penstock.pipeline.spark_engine import SparkEngine
from penstock.segment import parse_job_key
from support.compacted_log import CompactedLog, drive
from support.compaction_driver import SPARK_STEPS, KilledOnce
from support.server import ServerProcess, run_penstock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = CompactionSettings(item_partitions_max=1)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log", {"SEGMENT_AGE_MS": "100"})
    server.start()
    yield server
    if server.running():
        server.kill()


@pytest.fixture
def log(server: ServerProcess) -> Iterator[CompactedLog]:
    url = f"http://{server.http}"
    with PipelineClient(ClientOptions(urls=(url,))) as client:
        log = CompactedLog(server.bootstrap, client)
        log.create()
        yield log


def job_objects(server: ServerProcess) -> int:
    root = server.data / "objects"
    keys = [path.relative_to(root).as_posix() for path in root.rglob("*.seg")]
    return sum(parse_job_key(key) is not None for key in keys)


def verify(server: ServerProcess) -> None:
    assert server.stop() == 0
    verified = run_penstock("verify", "--data", str(server.data))
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_records_stay_and_runs_become_few(
    spark: SparkSession, server: ServerProcess, log: CompactedLog
) -> None:
    log.write(5)
    with log.readers() as faults:
        summary = compact(log.client, SparkEngine(spark), SETTINGS)
    assert not faults
    assert (summary.partitions, summary.runs_before, summary.refused) == (3, 15, [])
    assert log.run_counts() == {0: 1, 1: 1, 2: 1}
    log.check_read_from_everywhere()
    verify(server)


@pytest.mark.parametrize("step", ["putting", "put"])
def test_a_killed_worker_leaves_an_orphan_at_most(
    spark: SparkSession,
    server: ServerProcess,
    log: CompactedLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """The process of a task dies before or after its put; another attempt is made."""
    log.write(4)
    marker = str(tmp_path / "killed")
    monkeypatch.setattr(
        compaction,
        "CompactionTask",
        lambda options, job: KilledOnce(CompactionTask(options, job), step, marker),
    )
    summary = compact(log.client, SparkEngine(spark), SETTINGS)
    assert Path(marker).exists()
    assert (summary.partitions, summary.refused, summary.failures) == (3, [], [])
    assert log.run_counts() == {0: 1, 1: 1, 2: 1}
    assert len(log.named_objects()) == 3
    # What was in flight when the worker died may have been put as well, and is named by nothing.
    assert 3 <= job_objects(server) <= 5
    log.check_read()
    verify(server)


def test_killed_drivers_cost_nothing(server: ServerProcess, log: CompactedLog) -> None:
    url = f"http://{server.http}"
    log.write(4)
    for step in SPARK_STEPS:
        killed = drive(url, "spark", step)
        assert killed.returncode == -signal.SIGKILL, (step, killed.stderr)
        log.check_read()
    finished = drive(url)
    assert finished.returncode == 0, finished.stderr
    summary = json.loads(finished.stdout)
    assert (summary["partitions"], summary["refused"]) == (2, [])
    assert log.run_counts() == {0: 1, 1: 1, 2: 1}
    log.check_read_from_everywhere()
    verify(server)
