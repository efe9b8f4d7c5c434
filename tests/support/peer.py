"""Another broker in the server's place, to show that a test expects what Kafka does.

PENSTOCK_TEST_PEER names a program that is called with PORT and DATADIR, starts the broker there,
prints its pid as the last line and returns.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from support.ports import free_port
from support.server import STOP_SECONDS_MAX, ServerFailedError, answers_metadata


class PeerProcess:
    """The same face as `support.server.ServerProcess`."""

    def __init__(self, data: Path, command: list[str]) -> None:
        self.data = data
        self.command = command
        self.kafka_port = free_port()
        self.environment = {**os.environ, "CONTROLLER_PORT": str(free_port())}
        self.pid: int | None = None

    @property
    def bootstrap(self) -> str:
        """host:port of its listener."""
        return f"127.0.0.1:{self.kafka_port}"

    def start(self) -> float:
        """Start it and wait for a metadata answer; the seconds that took."""
        started = time.monotonic()
        deadline = started + 90
        # A killed broker's port may stay taken for a moment.
        while True:
            done = subprocess.run(
                [*self.command, str(self.kafka_port), str(self.data)],
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                break
            if time.monotonic() > deadline:
                raise ServerFailedError(done.stderr)
            time.sleep(0.2)
        self.pid = int(done.stdout.split()[-1])
        while not answers_metadata("127.0.0.1", self.kafka_port):
            if time.monotonic() > deadline:
                raise ServerFailedError("no metadata answer")
            time.sleep(0.05)
        return time.monotonic() - started

    def _gone(self) -> bool:
        assert self.pid is not None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{self.pid}/stat")
        return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z"

    def running(self) -> bool:
        """Whether it is alive."""
        return self.pid is not None and not self._gone()

    def _end(self, number: signal.Signals) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while not self._gone() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.pid = None

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it cleanly; its status isn't known, so 0."""
        self._end(signal.SIGTERM)
        return 0

    def tail(self, bytes_max: int = 4000) -> str:
        """The end of its log."""
        log = self.data / "server.log"
        return log.read_bytes()[-bytes_max:].decode(errors="replace") if log.exists() else ""
