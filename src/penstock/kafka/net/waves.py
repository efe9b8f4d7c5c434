"""Produce requests of many connections, taken up together. Event loop only.

Where many producers send little each, a request of every one of them would have caches of its own
to warm, a turn of the log to itself and a sync. While at least CONNECTIONS_MIN connections send
within SPAN_S, what comes of them is left as it came for a moment; then all of it is parsed,
committed in one turn and answered. PostgreSQL's commit_delay with commit_siblings is the model.
Fewer producers never wait, and neither do requests other than Produce.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from penstock.ports.clock import Clock

PRODUCE: Final = memoryview(b"\0\0")
"""How its frames begin: the API's key."""
CONNECTIONS_MIN: Final = 8
SPAN_S: Final = 0.05
BYTES_MAX: Final = 256 << 10
"""A request of this many bytes is worth a sync without waiting. The requests that wait have at most
this many bytes, and one more request."""


class TakesUp(Protocol):
    """A connection."""

    def take_up(self, frames: Iterable[memoryview], arrived_s: float) -> None:
        """Parse whole frames that came at `arrived_s`, and start what may start."""
        ...


class SharesTurns(Protocol):
    """The log."""

    def hold(self) -> None:
        """Begin no turn yet: more than one append may follow."""
        ...

    def settle(self, *, all_came: bool = False) -> None:
        """End the hold: no append follows for now. `all_came`: nor is one to be waited for."""
        ...


class ProduceWaves:
    """Keeps Produces of all connections until the wave breaks.

    Args:
        wait_s: how long the first request of a wave waits; 0: no request waits.
    """

    def __init__(self, wait_s: float, log: SharesTurns, clock: Clock) -> None:
        self._wait_s = wait_s
        self._log = log
        self._clock = clock
        self._recent: deque[tuple[TakesUp, float]] = deque(maxlen=CONNECTIONS_MIN)
        """The last arrivals, while nothing waits for others."""
        self._is_on = False
        self._kept: dict[TakesUp, tuple[float, list[memoryview]]] = {}
        self._kept_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, connection: TakesUp, frames: list[memoryview]) -> bool:
        """Whether these whole frames wait, behind those of their connection that do.

        If not, the connection takes them up; what waited of it has been by then.
        """
        if not self._wait_s:
            return False
        if any(frame[:2] != PRODUCE for frame in frames):
            self.release(connection)
            return False
        now_s = self._clock.monotonic_s()
        if not self._is_on and not self._has_company(connection, now_s):
            return False
        known = self._kept.get(connection)
        if known is None:
            self._kept[connection] = (now_s, frames)
        else:
            known[1].extend(frames)
        self._kept_bytes += sum(map(len, frames))
        if self._kept_bytes >= BYTES_MAX:
            self._break()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._break)
        return True

    def release(self, connection: TakesUp) -> None:
        """Let the connection take up at once what waits of it."""
        known = self._kept.pop(connection, None)
        if known is not None:
            arrived_s, frames = known
            self._kept_bytes -= sum(map(len, frames))
            connection.take_up(frames, arrived_s)

    def _has_company(self, connection: TakesUp, now_s: float) -> bool:
        """Take note of an arrival; whether others send as well, from now on."""
        recent = self._recent
        recent.append((connection, now_s))
        first, first_s = recent[0]
        if first is connection or len(recent) < CONNECTIONS_MIN or now_s - first_s > SPAN_S:
            return False
        self._is_on = len({known for known, _ in recent}) == CONNECTIONS_MIN
        if self._is_on:
            recent.clear()
        return self._is_on

    def _break(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept, self._kept_bytes = self._kept, {}, 0
        # If only one connection waited, stop gathering.
        self._is_on = len(kept) > 1
        self._log.hold()
        try:
            for connection, (arrived_s, frames) in kept.items():
                connection.take_up(frames, arrived_s)
        finally:
            self._log.settle(all_came=True)
