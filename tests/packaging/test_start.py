"""`penstock serve` as a process: what it imports, how soon it answers, how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NEVER_IMPORTED = ("confluent_kafka", "numba", "numpy", "pandas", "pyarrow", "pyspark")
RESIDENT_MB_MAX = 120
START_CPU_S_MAX = 5.0
"""Of the processor, which other processes hardly change. The target of 0.7 s is for benchmarks."""

# Runs the console script's own code, and tells what it had imported when it ended.
TELL_MODULES = """
import atexit, sys
def tell():
    print("modules:", *sorted(sys.modules), file=sys.stderr)
atexit.register(tell)
from penstock.cli import main
main()
"""


@contextmanager
def serving(data: Path, *arguments: str) -> "Iterator[tuple[subprocess.Popen[str], str, str]]":
    """(process, Kafka address, HTTP address) of a server that is ready."""
    environment = {key: value for key, value in os.environ.items() if "PENSTOCK_" not in key}
    environment["PYTHONPATH"] = str(REPOSITORY / "src")
    addresses = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")
    process = subprocess.Popen(
        [sys.executable, "-c", TELL_MODULES, "serve", "--data", str(data), *addresses, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        banner = ""
        while "Ctrl-C" not in banner:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            banner += line
        kafka = re.search(r"Kafka clients +(\S+)", banner)
        http = re.search(r"HTTP +(\S+)", banner)
        assert kafka is not None
        assert http is not None
        yield process, kafka[1], http[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_ends_with_status_0(number: signal.Signals, tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _, _):
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "draining" in errors
        assert "Traceback" not in errors


def test_a_server_imports_nothing_heavy_and_stays_small(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, kafka, http):
        host, _, port = kafka.rpartition(":")
        socket.create_connection((host, int(port)), timeout=60).close()
        with urllib.request.urlopen(f"{http}/metrics", timeout=60) as response:
            assert b"penstock_build_info" in response.read()
        status = Path(f"/proc/{process.pid}/status")
        if status.exists():
            resident = re.search(r"VmRSS:\s+(\d+) kB", status.read_text())
            assert resident is not None
            assert int(resident[1]) < RESIDENT_MB_MAX * 1024
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    modules = set(re.search(r"modules: (.*)", errors)[1].split())  # type: ignore[index]
    assert "penstock.kafka.net.server" in modules
    assert not {name for name in NEVER_IMPORTED if name in modules}


def test_a_server_does_little_until_it_is_ready(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _, _):
        spent = psutil.Process(process.pid).cpu_times()
        assert spent.user + spent.system < START_CPU_S_MAX


def test_a_second_server_is_refused_with_one_line_and_status_1(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, _, _):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
        second = subprocess.run(
            [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path), "--http", "",
             "--kafka", "127.0.0.1:0"],
            env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert f"process {process.pid} is using this data directory" in second.stderr
        assert second.stderr.count("\n") == 1


def test_listening_beyond_loopback_needs_allow_insecure_and_is_warned_of(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    refused = subprocess.run(
        [sys.executable, "-m", "penstock", "serve", "--data", str(tmp_path),
         "--kafka", "0.0.0.0:0", "--advertised", "localhost:9092"],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "allow_insecure" in refused.stderr
    assert not list(tmp_path.iterdir())
