"""A real `penstock serve --workers N` with its worker processes, which may be killed one by one."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from support.ports import adjacent_ports
from support.server import (
    READY_SECONDS_MAX,
    ServerFailedError,
    ServerProcess,
    answers,
    answers_metadata,
)
from support.waiting import eventually

END_SECONDS_MAX = 60.0


class WorkersHost:
    """The parent and its workers; each worker's ports are the parent's plus its index.

    Args:
        folder: of the data directory and the log of all processes.
        settings: as of `ServerProcess`.
    """

    def __init__(self, folder: Path, count: int, settings: dict[str, str] | None = None) -> None:
        self.count = count
        self.server = ServerProcess(folder / "data", folder / "workers.log", dict(settings or {}))
        self.server.kafka_port = adjacent_ports(2 * count)
        self.server.http_port = self.server.kafka_port + count

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.server.data

    @property
    def bootstrap(self) -> str:
        """Every worker's listener."""
        return ",".join(self.address(index) for index in range(self.count))

    def address(self, index: int) -> str:
        """One worker's listener."""
        return f"127.0.0.1:{self.server.kafka_port + index}"

    def http(self, index: int) -> str:
        """URL of one worker's HTTP port, once it listens."""
        port = self.server.http_port + index
        eventually(lambda: answers(port), timeout_seconds=READY_SECONDS_MAX)
        return f"http://127.0.0.1:{port}"

    def start(self, count: int | None = None) -> None:
        """Start the parent, and wait until each worker serves.

        Args:
            count: another number of workers than before.
        """
        if count is not None:
            self.count = count
        self.server.settings["WORKERS"] = str(self.count)
        self.server.start()
        try:
            self.wait_serving()
        except ServerFailedError:
            self.end_all()
            raise

    def wait_serving(self, seconds: float = 2 * READY_SECONDS_MAX) -> None:
        """Until every worker answers. Raises: ServerFailedError."""
        until = time.monotonic() + seconds
        for index in range(self.count):
            while not answers_metadata("127.0.0.1", self.server.kafka_port + index):
                if not self.server.running() or time.monotonic() > until:
                    raise ServerFailedError(f"worker {index} is away\n{self.server.tail(8000)}")
                time.sleep(0.05)

    def workers(self) -> dict[int, psutil.Process]:
        """The worker processes that there are now, by index."""
        assert self.server.process is not None
        found = {}
        for child in psutil.Process(self.server.process.pid).children():
            with contextlib.suppress(psutil.Error):
                line = child.cmdline()
                if "--worker" in line:
                    found[int(line[line.index("--worker") + 1].partition(":")[0])] = child
        return found

    def signal(self, index: int, number: signal.Signals) -> psutil.Process:
        """Send a signal to one worker, which must be there."""
        until = time.monotonic() + END_SECONDS_MAX
        while index not in (found := self.workers()):
            if time.monotonic() > until:
                raise ServerFailedError(f"no worker {index}\n{self.server.tail(8000)}")
            time.sleep(0.02)
        found[index].send_signal(number)
        return found[index]

    def kill_parent(self) -> list[psutil.Process]:
        """SIGKILL the parent alone; gives the workers that it had."""
        workers = list(self.workers().values())
        self.server.kill()
        return workers

    def stop(self) -> int:
        """SIGTERM to the parent; its exit status."""
        return self.server.stop()

    def end_all(self) -> None:
        """Nothing of it runs afterwards."""
        if self.server.process is None:
            return
        workers = list(self.workers().values()) if self.server.running() else []
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.send_signal(signal.SIGCONT)
        if self.server.running():
            self.server.kill()
        self.server.process = None
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


@contextlib.contextmanager
def workers_host(
    folder: Path, count: int, settings: dict[str, str] | None = None
) -> Iterator[WorkersHost]:
    """A started host; whatever is left of it is ended."""
    host = WorkersHost(folder, count, settings)
    host.start()
    try:
        yield host
    finally:
        host.end_all()
