"""From a produce request to the append paths of its topics, within one budget. Event loop only."""

from collections.abc import Callable
from typing import Protocol

from penstock.log.append.lane import AppendRequest
from penstock.log.append.plan import PartitionAppend, batches_length
from penstock.log.append.split import Joint
from penstock.log.routing import Path, Routes
from penstock.log.settings import LogSettings
from penstock.model.errors import OverloadedError, PenstockError
from penstock.model.ids import topic_key_of
from penstock.ports.clock import Clock


class Paths(Protocol):
    """The append paths of a log."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed in whose outcome isn't known yet."""
        ...

    def submit(self, path: Path, request: AppendRequest, *, wait_s: float) -> None:
        """Take a request's batches; `wait_s`: how long those of objects may wait for company."""
        ...

    def refuse(self, appends: list[PartitionAppend], *, source: int) -> None:
        """See `ServingLog.refuse`."""
        ...


class Dispatcher:
    """See the module."""

    def __init__(self, paths: Paths, *, routes: Routes, clock: Clock, limits: LogSettings) -> None:
        self._paths = paths
        self._routes = routes
        self._clock = clock
        self._limits = limits

    def append(
        self,
        appends: list[PartitionAppend],
        *,
        timeout_ms: int,
        done: Callable[[PenstockError | None], None],
        source: int,
    ) -> None:
        """See `ServingLog.append`."""
        limits = self._limits
        length = batches_length(appends)
        waiting = self._paths.waiting_bytes
        if waiting + length > limits.waiting_bytes_max:
            # A shorter batch that the producer sent after these may fit, and must wait for them.
            self._paths.refuse(appends, source=source)
            done(
                OverloadedError(
                    "append",
                    "log",
                    f"{waiting} bytes wait already, {limits.waiting_bytes_max} may",
                    "try again later",
                )
            )
            return
        wait_ms = min(max(timeout_ms, 0), limits.append_wait_ms_max)
        deadline_s = self._clock.monotonic_s() + wait_ms / 1000
        parts, flush_s = self._split(appends)
        if len(parts) == 1:
            (path,) = parts
            request = AppendRequest(appends, length, deadline_s, done, source)
            self._paths.submit(path, request, wait_s=flush_s)
            return
        joint = Joint(len(parts), done)
        for path, part in parts.items():
            length = batches_length(part)
            request = AppendRequest(part, length, deadline_s, joint.part(part), source)
            self._paths.submit(path, request, wait_s=flush_s)

    def _split(
        self, appends: list[PartitionAppend]
    ) -> tuple[dict[Path, list[PartitionAppend]], float]:
        """Appends by path, and how many seconds those of objects may wait."""
        routes = self._routes
        flush_ms = self._limits.flush_interval_ms
        parts: dict[Path, list[PartitionAppend]] = {}
        last: Path | None = None
        for append in appends:
            route = routes.of(topic_key_of(append.partition_key))
            # A topic that is gone is refused on any path.
            path = route.path if route is not None else routes.default
            if route is not None and 0 <= route.flush_interval_ms < flush_ms:
                flush_ms = route.flush_interval_ms
            if path is not last:  # to hash one costs more than all of this
                part = parts.setdefault(path, [])
                last = path
            part.append(append)
        return parts, flush_ms / 1000
