"""From a produce request to the append paths of its topics, within one budget.

A path makes batches durable and has them ordered. `Path.WAL` is a WAL of this agent's: the commit
lane's (`penstock.log.wals.lane_wal`), or one whose frames are ordered elsewhere
(`penstock.log.wals.cluster_wal`). `Path.OBJECT` is a flusher of objects.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.log.append.group_commit import AppendRequest
from penstock.log.append.plan import PartitionAppend, batches_length
from penstock.log.append.split import Joint
from penstock.log.routing import Path, Routes
from penstock.log.settings import LogSettings
from penstock.model.errors import OverloadedError, PenstockError, RetryableError
from penstock.model.ids import TopicKey, topic_key_of
from penstock.ports.clock import Clock
from penstock.state.read.view import StateView


class AppendPath(Protocol):
    """One way for batches into the log. Event loop only."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed in whose outcome isn't known yet."""
        ...

    def submit(self, request: AppendRequest, *, wait_s: float) -> None:
        """Take a request's batches.

        Args:
            wait_s: how long batches of objects may wait for others that share their flush.
        """
        ...

    def refuse(self, appends: Sequence[PartitionAppend], source: int) -> None:
        """Take note of batches that were refused retriably before they got here."""
        ...

    def let_go(self, error: RetryableError | None) -> None:
        """See `Appends.let_go`."""
        ...

    def give_up(self, error: RetryableError) -> None:
        """See `Appends.give_up`."""
        ...

    def holds_topic(self, topic_key: TopicKey) -> bool:
        """Whether batches of a topic are on their way here."""
        ...


class Appends:
    """The append paths of a log. Event loop only."""

    def __init__(
        self,
        *,
        wal: AppendPath,
        objects: AppendPath,
        view: StateView,
        clock: Clock,
        limits: LogSettings,
    ) -> None:
        self._wal = wal
        self._objects = objects
        self._routes = Routes(
            view=view,
            default=Path(limits.durability),
            is_under_way=lambda path, topic_key: self._path(path).holds_topic(topic_key),
        )
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
        """See `Log.append`."""
        limits = self._limits
        length = batches_length(appends)
        waiting = self._wal.waiting_bytes + self._objects.waiting_bytes
        if waiting + length > limits.waiting_bytes_max:
            # A shorter batch that the producer sent after these may fit, and must wait for them.
            self.refuse(appends, source=source)
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
            self._path(path).submit(request, wait_s=flush_s)
            return
        joint = Joint(len(parts), done)
        for path, part in parts.items():
            length = batches_length(part)
            request = AppendRequest(part, length, deadline_s, joint.part(part), source)
            self._path(path).submit(request, wait_s=flush_s)

    def refuse(self, appends: Sequence[PartitionAppend], *, source: int) -> None:
        """See `Log.refuse`. On either path: a topic's may change before its batches come again."""
        self._wal.refuse(appends, source)
        self._objects.refuse(appends, source)

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed in whose outcome isn't known yet."""
        return self._wal.waiting_bytes + self._objects.waiting_bytes

    def let_go(self, error: RetryableError | None) -> None:
        """Fail appends that are not submitted, and those that come, until it is called with
        None: the journal is away from this agent alone."""
        self._objects.let_go(error)
        self._wal.let_go(error)

    def give_up(self, error: RetryableError) -> None:
        """Answer appends that were submitted: this agent's epoch is over, so that no copy of them
        that is still on its way will be applied."""
        self._objects.give_up(error)
        self._wal.give_up(error)

    def _path(self, path: Path) -> AppendPath:
        return self._wal if path is Path.WAL else self._objects

    def _split(
        self, appends: list[PartitionAppend]
    ) -> tuple[dict[Path, list[PartitionAppend]], float]:
        """Return appends by path, and how many seconds those of objects may wait."""
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
