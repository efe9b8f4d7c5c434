"""The two servers that are compared: how each is started, measured, drained and stopped.

Not a benchmark itself. A server's CPU seconds and resident memory are those of its process and its
children. Penstock answers a producer once its bytes are in the WAL, and moves them into segments
later: that work belongs to the produce, so `Running.drain` waits for it and its CPU is counted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
START_SECONDS_MAX = 120
DRAIN_SECONDS_MAX = 120
STOP_SECONDS_MAX = 60
DRAIN_POLL_S = 0.5
"""An answer of /v1/status costs 0.5 ms of the CPU that is counted."""


def named_peers() -> Path:
    """PENSTOCK_PEERS, else ../shared/peers; needed only where a peer really runs."""
    named = os.environ.get("PENSTOCK_PEERS")
    return Path(named) if named else ROOT.parent / "shared" / "peers"


def peers_folder() -> Path:
    """Where what starts Apache Kafka is.

    Raises: SystemExit when they aren't.
    """
    folder = named_peers()
    if not (folder / "kafka" / "start").is_file():
        raise SystemExit(f"no kafka/start in {folder}; set PENSTOCK_PEERS to the folder of peers")
    return folder


def evict(folder: Path) -> None:
    """Drop a folder's files, and nothing else, from the page cache; Linux alone can.

    Raises: SystemExit, on another system: a cold reading there would be a warm one.
    """
    if not hasattr(os, "posix_fadvise"):
        raise SystemExit("consume-cold needs Linux: this system can't drop a file's cached pages")
    for path in folder.rglob("*"):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue  # deleted by the server meanwhile
        try:
            if path.is_file():
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def install_kafka() -> None:
    """Install Apache Kafka (Maven, JDK 17) unless it is there."""
    home = Path(os.environ.get("PEERS_HOME", Path.home() / ".peers" / "kafka"))
    if not (home / "libs").is_dir():
        subprocess.run([str(peers_folder() / "kafka" / "install")], check=True)


@dataclass(frozen=True, slots=True)
class Contender:
    """A server that can be started: `command PORT DATADIR`, and what differs in its environment."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    drains: bool = False
    """Whether it works on after the last answer, and tells on HTTP (PORT + 1) when it is done."""


def contenders() -> dict[str, Contender]:
    """Kafka at its defaults (no fsync); Penstock with fsync (its default) and without."""
    kafka = Contender("kafka", (str(named_peers() / "kafka" / "start"),))
    ours = (str(BENCH / "start-penstock"),)
    return {
        "kafka": kafka,
        "penstock": Contender("penstock", ours, drains=True),
        "penstock-nofsync": Contender("penstock-nofsync", ours, {"FSYNC": "0"}, drains=True),
    }


def free_ports() -> int:
    """A port that is free and whose successor is free too (Kafka's controller, Penstock's HTTP)."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def answers_metadata(port: int, timeout_s: float = 1.0) -> bool:
    """Whether a Metadata request (version 1, no topics) is answered."""
    body = struct.pack(">hhih5si", 3, 1, 1, 5, b"bench", 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            return len(connection.recv(8)) > 0
    except OSError:
        return False


class Running:
    """A server that runs; a context manager that ends it and removes its data."""

    def __init__(self, contender: Contender, data: Path, *, keep_data: bool = False) -> None:
        self.contender = contender
        self.data = data
        self.keep_data = keep_data
        self.port = free_ports()
        self.pid = 0
        self.start()

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it on its data and port; ready when it answers a client."""
        done = subprocess.run(
            [*self.contender.command, str(self.port), str(self.data)],
            env={**os.environ, **self.contender.environment},
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{self.contender.name} did not start: {done.stderr[-2000:]}")
        self.pid = int(done.stdout.split()[-1])
        deadline = time.monotonic() + START_SECONDS_MAX
        while not answers_metadata(self.port):
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.contender.name} answers no metadata request")
            time.sleep(0.05)

    def _processes(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.Error:
            return []

    def cpu_s(self) -> float:
        """CPU seconds used since its start, of the process and its children."""
        return float(sum(sum(p.cpu_times()[:2]) for p in self._processes()))

    def rss_mb(self) -> float:
        """Resident memory in MB (1e6 bytes)."""
        return float(sum(p.memory_info().rss for p in self._processes())) / 1e6

    def status(self) -> dict[str, object]:
        """What /v1/status says; Penstock only."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port + 1}/v1/status", timeout=5
        ) as got:
            answer: dict[str, object] = json.load(got)
            return answer

    def drain(self) -> float:
        """Wait until all acknowledged bytes are where they stay; the seconds that took.

        Raises: SystemExit when they aren't after two minutes: a figure would be a lie.
        """
        if not self.contender.drains:
            return 0.0
        started = time.monotonic()
        while True:
            wal = self.status()["wal"]
            assert isinstance(wal, dict)
            if wal["drained"]:
                return time.monotonic() - started
            if time.monotonic() - started > DRAIN_SECONDS_MAX:
                raise SystemExit(f"the WAL isn't drained after {DRAIN_SECONDS_MAX} s: {wal}")
            time.sleep(DRAIN_POLL_S)

    def stop(self) -> float:
        """SIGTERM, and SIGKILL after a minute; the seconds that took."""
        started = time.monotonic()
        try:
            process = psutil.Process(self.pid)
            process.send_signal(signal.SIGTERM)
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                if time.monotonic() - started > STOP_SECONDS_MAX:
                    process.kill()
                    break
                time.sleep(0.02)
        except psutil.NoSuchProcess:
            pass
        return time.monotonic() - started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()
        if not self.keep_data:
            shutil.rmtree(self.data, ignore_errors=True)
