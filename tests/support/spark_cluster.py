"""A standalone Spark cluster on the loopback, of the jars of an environment's pyspark."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.pipeline.java import java_home
from support.ports import free_port
from support.waiting import eventually

READY_S = 120
STOP_S = 30
EXECUTOR_MEMORY = "640m"


def spark_home() -> Path:
    """Where the pyspark of this environment has its jars and scripts."""
    import pyspark

    return Path(pyspark.__file__).parent


@dataclass(frozen=True)
class SparkCluster:
    """One that runs. `logs`: of the master and the workers."""

    master: str
    logs: Path

    def environment(self, python: str = sys.executable, *arguments: str) -> dict[str, str]:
        """What a driver needs to find.

        Args:
            python: of the executors.
            arguments: of spark-submit.
        """
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "SPARK_"))}
        submitted = ["--executor-memory", EXECUTOR_MEMORY, *arguments, "pyspark-shell"]
        return {
            **kept,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": python,
            "PYSPARK_SUBMIT_ARGS": " ".join(submitted),
        }

    def executors_started(self) -> int:
        """How often a worker has launched an executor."""
        return len(re.findall("Launching executor", (self.logs / "master.log").read_text()))


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 2) -> Iterator[SparkCluster]:
    """A master, and workers of one core each."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    cluster = SparkCluster(master, folder)
    with ExitStack() as stack:
        told = folder / "master.log"
        ports = ["--port", str(port), "--webui-port", str(free_port())]
        stack.enter_context(_process(told, "master.Master", *ports))
        eventually(lambda: "ALIVE" in told.read_text(), timeout_seconds=READY_S)
        for number in range(workers):
            arguments = ["--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            arguments += ["--work-dir", str(folder / f"work{number}"), master]
            stack.enter_context(
                _process(folder / f"worker{number}.log", "worker.Worker", *arguments)
            )
        eventually(
            lambda: told.read_text().count("Registering worker") >= workers,
            timeout_seconds=READY_S,
        )
        yield cluster


@contextmanager
def _process(log: Path, name: str, *arguments: str) -> Iterator[None]:
    environment = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
    }
    program = str(spark_home() / "bin" / "spark-class")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *arguments],
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
        assert process.poll() is None, log.read_text()[-3000:]
    finally:
        # A worker that is told to stop stops its executors.
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_S)
