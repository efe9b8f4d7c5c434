"""Start, watch, kill and stop a real server process on free loopback ports.

What it is not: a fixture. Each folder of tests has its own conftest.py that decides how long a
server lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from support import forked
from support.ports import adjacent_ports, free_port

REPOSITORY = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 120.0
METADATA_API_KEY = 3


class ServerFailedError(Exception):
    """The server ended, or did not become ready; carries the end of its log."""


def answers(port: int) -> bool:
    """Whether something listens on a port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def answers_metadata(host: str, port: int, timeout_seconds: float = 1.0) -> bool:
    """Whether a broker at host:port answers one Metadata request (version 1, no topics).

    A listening socket is not enough: only an answered request means that a client is served.
    """
    # Header version 1 (key, version, correlation id, client id), then an empty array of topics,
    # which in version 1 means "none", so that the answer is small whatever the broker holds.
    body = struct.pack(">hhih5si", METADATA_API_KEY, 1, 7, 5, b"probe", 0)
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = b""
            while len(answer) < 8:
                chunk = connection.recv(65536)
                if not chunk:
                    return False
                answer += chunk
            correlation_id: int = struct.unpack(">i", answer[4:8])[0]
            return correlation_id == 7
    except OSError:
        return False


class ServerProcess:
    """One `penstock serve` process, which may be killed and started again on the same data.

    A process of a module (`-m`) is forked by a fork server, unless it has a `python`.

    Args:
        data: the data directory; made by the server.
        log: where the server's output goes; appended to at each start.
        settings: further `PENSTOCK_*` variables, without the prefix.
        environment: further variables.
        launcher: what is run instead of `-m penstock`, with the same arguments.
        arguments: further ones of `penstock serve`, which go before those of the fixture.
        python: the interpreter that is started; "": none.
    """

    def __init__(
        self,
        data: Path,
        log: Path,
        settings: dict[str, str] | None = None,
        *,
        environment: dict[str, str] | None = None,
        launcher: tuple[str, ...] = ("-m", "penstock"),
        arguments: tuple[str, ...] = (),
        python: str = "",
    ) -> None:
        self.data = data
        self.log = log
        self.settings = settings or {}
        self.environment = environment or {}
        self.launcher = launcher
        self.arguments = arguments
        self.python = python
        self.kafka_port = free_port()
        # The next one is where an agent of a cluster serves the others.
        self.http_port = adjacent_ports(2)
        self.process: forked.Process | None = None

    @property
    def bootstrap(self) -> str:
        """host:port of the Kafka listener."""
        return f"127.0.0.1:{self.kafka_port}"

    @property
    def http(self) -> str:
        """host:port of the HTTP port, once it listens, a moment after clients are served."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while self.running() and not answers(self.http_port) and time.monotonic() < deadline:
            time.sleep(0.02)
        return f"127.0.0.1:{self.http_port}"

    def start(self) -> float:
        """Start the process and wait until it answers a client.

        Returns: seconds from the process's start to its first Metadata answer.
        Raises: ServerFailedError.
        """
        started = time.monotonic()
        process = self.launch()
        while not answers_metadata("127.0.0.1", self.kafka_port):
            if process.poll() is not None:
                status, self.process = process.returncode, None
                raise ServerFailedError(f"ended with {status} before it was ready\n{self.tail()}")
            if time.monotonic() - started > READY_SECONDS_MAX:
                self.kill()
                raise ServerFailedError(f"not ready in {READY_SECONDS_MAX} s\n{self.tail()}")
            time.sleep(0.02)
        return time.monotonic() - started

    def launch(self) -> forked.Process:
        """Start the process, and wait for nothing."""
        assert self.process is None
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        environment["PYTHONPATH"] = str(REPOSITORY / "src")
        environment["PYTHONUNBUFFERED"] = "1"
        environment.update({f"PENSTOCK_{k}": v for k, v in self.settings.items()})
        environment.update(self.environment)
        arguments = ["serve", "--data", str(self.data), "--kafka", self.bootstrap]
        arguments += ["--http", f"127.0.0.1:{self.http_port}", *self.arguments]
        # A session of its own, so that an interrupt of the test run doesn't reach the server
        # before the test has stopped it.
        with self.log.open("ab") as output, Path(os.devnull).open("rb") as nothing:
            # What is forked has imported this release: another one takes an interpreter.
            is_this_release = "PYTHONPATH" not in self.environment
            if self.launcher[0] == "-m" and not self.python and is_this_release:
                self.process = forked.start(
                    self.launcher[1],
                    arguments,
                    environment=environment,
                    folder=self.log.parent,
                    stdin=nothing,
                    stdout=output,
                    stderr=output,
                )
            else:
                self.process = subprocess.Popen(
                    [self.python or sys.executable, *self.launcher, *arguments],
                    cwd=self.log.parent,
                    env=environment,
                    stdin=nothing,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        return self.process

    def running(self) -> bool:
        """Whether the process is alive."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def stop(self) -> int:
        """Drain and end the process (SIGTERM).

        Returns: its exit status; negative when it had to be killed.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.process = None
        return status

    def tail(self, bytes_max: int = 4000) -> str:
        """The end of the server's log."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[-bytes_max:].decode(errors="replace")


@contextlib.contextmanager
def running_server(folder: Path, settings: dict[str, str]) -> Iterator[ServerProcess]:
    """A started one with its data and log in a folder; a test may kill or stop it."""
    server = ServerProcess(folder / "data", folder / "server.log", settings)
    server.start()
    try:
        yield server
    finally:
        if server.running():
            server.kill()


def run_penstock(*arguments: str, timeout_seconds: float = 180) -> subprocess.CompletedProcess[str]:
    """Run one `penstock` command of this checkout and wait for it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    environment["PYTHONPATH"] = str(REPOSITORY / "src")
    return forked.run("penstock", arguments, environment=environment, timeout_s=timeout_seconds)
