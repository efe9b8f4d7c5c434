"""Loads of real clients that a test runs by `in_own_process`."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from chaos.checker import check
from chaos.load import LoadRun
from chaos.run import PARTITIONS, TOPIC, chaos, create_topic
from peers.line_clients import franz_go
from support.waiting import eventually
from support.workers import WorkersHost, workers_host

ACKED_MIN = 1000


def checked_chaos(folder: Path, seed: int, seconds: float) -> None:
    """Chaos on a cluster; no anomaly, and no client crashed."""
    report, crashed = chaos(folder, seed=seed, seconds=seconds)
    print(report.text())
    assert report.ok, report.text()
    assert not crashed, crashed
    assert report.counts["client libraries"] == (3 if isinstance(franz_go(), str) else 4)


def workers_killed_and_stopped(folder: Path, seed: int, workers: int, rounds: int) -> None:
    """Each worker of a host is killed once a round, and some worker is stopped for seconds."""
    chance = random.Random(seed)
    with workers_host(folder, workers) as host:
        create_topic(host.address(0))
        load = LoadRun(lambda: host.bootstrap, topic=TOPIC, partitions=PARTITIONS)
        load.start()
        time.sleep(2)
        for _ in range(rounds):
            for index in chance.sample(range(workers), workers):
                before = load.recorder.acked
                host.signal(index, signal.SIGKILL)
                time.sleep(chance.uniform(0.5, 2))
                host.wait_serving()
                stopped = host.signal(chance.randrange(workers), signal.SIGSTOP)
                time.sleep(chance.uniform(0.5, 4))
                stopped.send_signal(signal.SIGCONT)
                time.sleep(1)
                host.wait_serving()
                wait_acked(load, before + 1, host)
        wait_acked(load, ACKED_MIN, host)
        end_and_check(load, host)


def shared_database_lost(folder: Path) -> None:
    """Twice, the database that two workers share is deleted and worker 0 is killed."""
    with workers_host(folder, 2) as host:
        create_topic(host.address(0))
        load = LoadRun(lambda: host.bootstrap, topic=TOPIC, partitions=PARTITIONS)
        load.start()
        for _ in range(2):
            wait_acked(load, load.recorder.acked + 200, host)
            other = host.workers()[1]
            for suffix in ("", "-wal", "-shm"):
                (host.data / f"metadata.sqlite{suffix}").unlink(missing_ok=True)
            host.signal(0, signal.SIGKILL)
            eventually(lambda other=other: not other.is_running(), timeout_seconds=60)
            host.wait_serving()
        wait_acked(load, load.recorder.acked + 200, host)
        end_and_check(load, host)


def wait_acked(load: LoadRun, count: int, host: WorkersHost, seconds: float = 120) -> None:
    """Until so many sends were acknowledged in all."""
    until = time.monotonic() + seconds
    while load.recorder.acked < count:
        assert time.monotonic() < until, host.server.tail(8000)
        time.sleep(0.05)


def end_and_check(load: LoadRun, host: WorkersHost) -> None:
    """End the load and the host; nothing is lost, doubled or reordered."""
    load.finish()
    report = check(load.recorder.history)
    print(report.text())
    said = host.server.tail(20000)
    assert report.ok, report.text() + said
    assert not load.crashed, [*load.crashed, said]
    assert host.stop() == 0, host.server.tail()
