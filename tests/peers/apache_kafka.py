"""A running broker of Apache Kafka, to ask what it answers; or a sentence why there is none.

What starts it is not part of this repository: `kafka/start PORT DATADIR` in the folder that
PENSTOCK_PEERS names (docs/benchmarks.md).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.ports import adjacent_ports
from support.server import answers_metadata
from support.waiting import eventually

REPOSITORY = Path(__file__).resolve().parents[2]
STOP_SECONDS_MAX = 120
HEAP = "-Xmx512m -Xms128m"


@contextmanager
def running_kafka(folder: Path, **configs: str) -> Iterator[int]:
    """A started one with its data and log in a folder: its port. Skips the test without Kafka.

    Args:
        configs: of the broker; `_` stands for a dot.
    """
    named = os.environ.get("PENSTOCK_PEERS")
    start = (Path(named) if named else REPOSITORY.parent / "shared" / "peers") / "kafka" / "start"
    home = Path(os.environ.get("PEERS_HOME", Path.home() / ".peers" / "kafka"))
    if not start.is_file():
        pytest.skip(f"there is no {start}: PENSTOCK_PEERS names the folder with kafka/start")
    if not (home / "libs").is_dir():
        pytest.skip(f"there are no jars of Kafka in {home}/libs: {start.parent}/install gets them")
    port = adjacent_ports(2)
    lines = [f"{name.replace('_', '.')}={value}" for name, value in configs.items()]
    environment = {**os.environ, "FOREGROUND": "1", "KAFKA_HEAP_OPTS": HEAP}
    log = folder / "kafka.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [start, str(port), str(folder / "data"), *lines],
            env=environment,
            stdout=output,
            stderr=output,
        )
        try:
            eventually(
                lambda: process.poll() is not None or answers_metadata("127.0.0.1", port),
                lambda is_ready: is_ready,
            )
            assert process.poll() is None, log.read_text()[-4000:]
            yield port
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
