"""A watch measures a run's CPU seconds and memory: of the server, of this process, of all others.

The watch needs psutil (`pip install "penstock[bench]"`); without psutil it measures only the CPU of
this process.
"""

from __future__ import annotations

import os
import threading
import time
from types import ModuleType, TracebackType
from typing import Any, Final, Self

import msgspec

from penstock.model.errors import NotFoundError

SAMPLE_S: Final = 0.2
"""The seconds between two samples. A child of the server that lives for a shorter time may be
missed, with its CPU."""
_BUSY: Final = ("user", "nice", "system", "irq", "softirq")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one measured window. A figure that could not be measured is None."""

    window_s: float
    client_cpu_s: float
    server_cpu_s: float | None = None
    """User and system time of the server's process and its children."""
    server_rss_start_mb: float | None = None
    server_rss_peak_mb: float | None = None
    server_rss_end_mb: float | None = None
    server_written_mb: float | None = None
    """Megabytes that the server's processes caused to be written to disks; measured on Linux
    only."""
    noise_percent: float | None = None
    """The share of all CPUs that other processes used. Figures with much noise prove nothing."""


class Watch:
    """Measures what happens within its `with` block, and then has the result in `usage`.

    Args:
        server_pid: the id of the server's process; its children count, too.

    Raises:
        NotFoundError: `server_pid` is given and psutil is not installed, or no such process runs.
    """

    def __init__(self, server_pid: int | None = None) -> None:
        self._psutil: Any = _psutil()
        self._root: Any = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._firsts: dict[tuple[int, float], tuple[float, int]] = {}
        self._lasts: dict[tuple[int, float], tuple[float, int]] = {}
        self._rss_bytes_max = 0
        self.usage = Usage(window_s=0, client_cpu_s=0)
        if server_pid is None:
            return
        if self._psutil is None:
            raise NotFoundError(
                "measure",
                f"process {server_pid}",
                "psutil is not installed",
                'pip install "penstock[bench]"',
            )
        try:
            self._root = self._psutil.Process(server_pid)
        except self._psutil.Error as error:
            raise NotFoundError(
                "measure", f"process {server_pid}", str(error), "--server-pid takes a server's pid"
            ) from error

    def __enter__(self) -> Self:
        self._rss_start = self._sample(is_first=True) if self._root else 0
        self._machine_start_s = self._machine_s()
        self._client_start_s = _own_cpu_s()
        self._start_s = time.monotonic()
        if self._root:
            self._thread = threading.Thread(target=self._loop, name="watch", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        window_s = max(time.monotonic() - self._start_s, 1e-9)
        client_s = _own_cpu_s() - self._client_start_s
        server_s = 0.0
        self.usage = Usage(window_s=round(window_s, 3), client_cpu_s=round(client_s, 3))
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            rss_end = self._sample()
            server_s = self._sum(0)
            self.usage = msgspec.structs.replace(
                self.usage,
                server_cpu_s=round(server_s, 3),
                server_rss_start_mb=_mb(self._rss_start),
                server_rss_peak_mb=_mb(self._rss_bytes_max),
                server_rss_end_mb=_mb(rss_end),
                server_written_mb=_mb(self._sum(1)),
            )
        if self._psutil is not None:
            other_s = max(0.0, self._machine_s() - self._machine_start_s - server_s - client_s)
            share = 100 * other_s / window_s / (os.cpu_count() or 1)
            self.usage = msgspec.structs.replace(self.usage, noise_percent=round(share, 1))

    def _loop(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            self._sample()

    def _sample(self, *, is_first: bool = False) -> int:
        """Note the CPU of each process of the server; return their resident bytes together."""
        rss_bytes = 0
        for process in self._processes():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss_bytes += process.memory_info().rss
                    identity = (process.pid, process.create_time())
            except self._psutil.Error:
                continue  # the process has ended: its usage until the last sample counts
            figures = (times.user + times.system, self._written(process))
            # A process's usage from before the window doesn't count. A process that started within
            # the window has no such usage.
            self._firsts.setdefault(identity, figures if is_first else (0.0, 0))
            self._lasts[identity] = figures
        self._rss_bytes_max = max(self._rss_bytes_max, rss_bytes)
        return rss_bytes

    def _processes(self) -> list[Any]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except self._psutil.Error:
            return []

    def _written(self, process: Any) -> int:
        # macOS doesn't count a process's I/O, and Linux may hide the count from other users.
        try:
            return int(process.io_counters().write_bytes)
        except (AttributeError, self._psutil.Error):
            return 0

    def _sum(self, figure: int) -> float:
        return sum(self._lasts[of][figure] - self._firsts[of][figure] for of in self._lasts)

    def _machine_s(self) -> float:
        if self._psutil is None:
            return 0.0
        times = self._psutil.cpu_times()
        return float(sum(getattr(times, name, 0.0) for name in _BUSY))


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _mb(size_bytes: float) -> float:
    return round(size_bytes / 1e6, 1)


def _psutil() -> ModuleType | None:
    try:
        import psutil
    except ImportError:
        return None
    module: ModuleType = psutil
    return module
