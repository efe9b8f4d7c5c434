"""Spark's own Kafka source on our broker, and our connector, give the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import REPOSITORY, ServerProcess
from support.topics import Topics

sys.path.insert(0, str(Path(__file__).parent / "spark_kafka"))

from get_source import JARS, SITE, build  # type: ignore[import-not-found]

BASE_MS = 1_700_000_000_000
SECONDS_MAX = 600


def test_both_give_the_same_rows(tmp_path: Path):
    problem = build()
    if problem:
        pytest.skip(f"no Spark Kafka source: {problem}")
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log")
    server.start()
    try:
        topics = Topics(server.bootstrap)
        topic = topics.make(2)
        for partition, codec in enumerate(("none", "zstd")):
            topics.write(
                topic,
                [None if n % 50 == 0 else b"%d" % n for n in range(300)],
                keys=[None if n % 7 == 0 else b"k%d" % n for n in range(300)],
                timestamps=[BASE_MS + 37 * n % 1000 for n in range(300)],
                headers=[[("h", b"%d" % n), ("null", None)][: n % 3] for n in range(300)],
                partition=partition,
                compression_type=codec,
            )
        paths = [SITE, REPOSITORY / "src"]
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).parent / "spark_kafka" / "read_both.py"),
                server.bootstrap,
                f"http://{server.http}",
                topic,
                str(JARS),
            ],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    finally:
        server.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    compared = json.loads(done.stdout.splitlines()[-1])
    assert compared["batch"] == compared["stream"] == 600
    assert compared["range"] == 7
