"""`penstock pipeline run` on Spark whose Java, engine process or scheduler is killed in mid-job.

The table goes on, nothing is doubled, and nothing is left over.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.api_server import ApiServer, serve_in_thread
from support.ports import free_port
from support.server import REPOSITORY
from support.tables import Lake
from support.topics import Topics
from support.waiting import eventually

PARTITIONS = 2
END_S = 120


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with serve_in_thread(tmp_path / "server") as found:
        yield found


class Run:
    """The command, and what it says over HTTP."""

    def __init__(self, api: ApiServer, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.errors = folder / "errors"
        environment = {key: value for key, value in os.environ.items() if "PENSTOCK_" not in key}
        environment["PYTHONPATH"] = str(REPOSITORY / "src")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "pipeline", "run", "--master", "local[2]",
                 "--memory", "512m", "--url", str(api.server.http_address),
                 "--warehouse", str(folder / "warehouse"), "--table-interval", "0.1",
                 "--compaction-interval", "1", "--http", f"127.0.0.1:{self.port}", *arguments],
                env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    def get(self, path: str) -> tuple[int, str]:
        """Status and body; 0: nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def status(self) -> dict[str, Any]:
        """What /v1/status answers."""
        code, body = self.get("/v1/status")
        return (
            json.loads(body) if code == 200 else {"engine": {"pids": [], "starts": 0}, "jobs": {}}
        )

    def pids_in_mid_job(self, job: str) -> list[int]:
        """Of the engine process and of Java, while a job runs."""
        # They take many seconds to start, a job a few hundredths of one.
        eventually(lambda: len(self.status()["engine"]["pids"]) == 2, timeout_seconds=END_S)

        def found() -> list[int]:
            status = self.status()
            pids: list[int] = status["engine"]["pids"]
            return pids if len(pids) == 2 and status["jobs"].get(job, {}).get("running") else []

        return eventually(found, timeout_seconds=END_S, pause_seconds=0.002)

    def shown(self) -> str:
        """Its standard error so far."""
        return self.errors.read_text()


@contextmanager
def running(api: ApiServer, folder: Path, *arguments: str) -> Iterator[Run]:
    run = Run(api, folder, *arguments)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.wait()


@contextmanager
def writing(topics: Topics, name: str) -> Iterator[list[int]]:
    """Records that never end come; the list holds how many each partition has got so far."""
    written, over = [0] * PARTITIONS, threading.Event()

    def write() -> None:
        while not over.is_set():
            for partition in range(PARTITIONS):
                values = [b"%d" % (written[partition] + n) for n in range(500)]
                topics.write(name, values, partition=partition)
                written[partition] += len(values)
            over.wait(0.2)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


def is_gone(pid: int) -> bool:
    """Whether it has ended; it may wait for an init that takes its time."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_a_table_goes_on_after_java_and_the_engine_process_were_killed(
    api: ApiServer, tmp_path: Path
) -> None:
    topics = Topics(str(api.server.kafka_address))
    name = topics.make(PARTITIONS, penstock_table="iceberg")
    job = f"table of {name}"
    with running(api, tmp_path) as run:
        with writing(topics, name) as written:
            for number, victim in enumerate(("java", "engine"), start=1):
                pids = run.pids_in_mid_job(job)
                os.kill(pids[victim == "java"], signal.SIGKILL)
                ill = eventually(lambda: run.get("/health"), lambda found: found[0] == 503)
                assert "engine: " in ill[1]
                eventually(
                    lambda number=number: run.status()["engine"]["starts"] == number + 1,
                    timeout_seconds=END_S,
                )
                eventually(lambda pids=pids: all(map(is_gone, pids)), timeout_seconds=END_S)
                well = eventually(
                    lambda: run.get("/health"),
                    lambda found: found[0] == 200,
                    timeout_seconds=END_S,
                )
                assert well[1].startswith("ok\nengine: ready\n")
                done = run.status()["jobs"][job]["runs"]
                eventually(
                    lambda done=done: run.status()["jobs"][job]["runs"] > done,
                    timeout_seconds=END_S,
                )
        lake = Lake(tmp_path / "warehouse")
        due = [
            (partition, offset, b"%d" % offset)
            for partition in range(PARTITIONS)
            for offset in range(written[partition])
        ]
        eventually(
            lambda: (
                [end for _, end in api.client.tables(topics_id(api, name))[0].offsets] == written
            ),
            timeout_seconds=END_S,
        )
        assert lake.rows(name.replace("-", "_"), "partition", "offset", "value") == due
        text = run.get("/metrics")[1]
        assert "penstock_pipeline_engine_up 1.0" in text
        assert "penstock_pipeline_engine_starts_total 3.0" in text
        pids = run.status()["engine"]["pids"]
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(END_S) == 0, run.shown()
        eventually(lambda: all(map(is_gone, pids)))


def topics_id(api: ApiServer, name: str) -> str:
    return api.client.topics(names=[name]).topics[0].topic_id


def test_the_schedulers_death_ends_the_engine_process_and_java(
    api: ApiServer, tmp_path: Path
) -> None:
    topics = Topics(str(api.server.kafka_address))
    name = topics.make(PARTITIONS, penstock_table="iceberg")
    with running(api, tmp_path) as run, writing(topics, name):
        pids = run.pids_in_mid_job(f"table of {name}")
        run.process.kill()
        eventually(lambda: all(map(is_gone, pids)), timeout_seconds=END_S)


def test_ctrl_c_ends_all_in_order_and_twice_at_once(api: ApiServer, tmp_path: Path) -> None:
    topics = Topics(str(api.server.kafka_address))
    name = topics.make(PARTITIONS, penstock_table="iceberg")
    with writing(topics, name):
        with running(api, tmp_path) as run:
            pids = run.pids_in_mid_job(f"table of {name}")
            run.process.send_signal(signal.SIGINT)
            assert run.process.wait(END_S) == 0, run.shown()
            assert all(map(is_gone, pids))
            assert "failed" not in run.shown()
        with running(api, tmp_path) as run:
            pids = run.pids_in_mid_job(f"table of {name}")
            os.kill(pids[1], signal.SIGSTOP)  # Java hangs, and so does the job
            run.process.send_signal(signal.SIGINT)
            run.process.send_signal(signal.SIGINT)
            run.process.send_signal(signal.SIGTERM)
            assert run.process.wait(END_S) == 1, run.shown()
            assert all(map(is_gone, pids))
