"""Admission limits connections in all and per address, and closes idle ones to make room."""

import heapq
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

ROOM_IDLE_S: Final = 2.0
"""A connection that was used since then is not closed for another one's sake."""
SCAN_AGAIN_S: Final = 0.25
"""10,000 connections take milliseconds to look through: where none was idle, each further client
that is refused costs that only so often."""
UNLIMITED: Final = (1 << 31) - 1


class Admitted(Protocol):
    """A connection."""

    client_host: str

    def idle_since_s(self) -> float | None:
        """Return since when it has been idle, by the clock's monotonic time; None: it isn't."""
        ...

    def end_idle(self, *, for_room: bool) -> None:
        """Close at once: it has been idle for too long, or another one wants its place."""
        ...


AdmittedT = TypeVar("AdmittedT", bound=Admitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """The greatest numbers of connections. `per_address_overrides` replaces `per_address_max` for
    some addresses."""

    connections_max: int
    per_address_max: int = UNLIMITED
    per_address_overrides: Mapping[str, int] = field(default_factory=dict)


class Admission(Generic[AdmittedT]):
    """The connections of one server.

    When all places are taken, idle connections make room: of the address that has the most, the
    one that has been idle for longest. So a client that opens connections and leaves them takes
    no place from others.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self.open: dict[AdmittedT, None] = {}
        """The connections, in the order in which they came."""
        self._by_address: Counter[str] = Counter()
        self._candidates: deque[AdmittedT] = deque()
        self._none_idle_s = float("-inf")

    def refusal(self, connection: AdmittedT, now_s: float) -> str:
        """Count a new connection in, unless a limit is reached.

        Returns:
            The name of the setting that refuses it; "": it is admitted.
        """
        limits, address = self._limits, connection.client_host
        most = limits.per_address_overrides.get(address, limits.per_address_max)
        if self._by_address[address] >= most:
            return "max_connections_per_ip"
        if len(self.open) >= limits.connections_max and not self._make_room(now_s):
            return "connections_max"
        self.open[connection] = None
        self._by_address[address] += 1
        return ""

    def leave(self, connection: AdmittedT) -> bool:
        """Count a connection out; whether it was in."""
        if connection not in self.open:
            return False
        del self.open[connection]
        address = connection.client_host
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        return True

    def end_idle(self, now_s: float, idle_s_max: float) -> None:
        """Close connections that have been idle for longer than that."""
        for connection in list(self.open):
            since_s = connection.idle_since_s()
            if since_s is not None and now_s - since_s >= idle_s_max:
                connection.end_idle(for_room=False)

    def _make_room(self, now_s: float) -> bool:
        for _ in range(2):
            while self._candidates:
                candidate = self._candidates.popleft()
                since_s = candidate.idle_since_s() if candidate in self.open else None
                if since_s is not None and now_s - since_s >= ROOM_IDLE_S:
                    candidate.end_idle(for_room=True)
                    return True
            if now_s - self._none_idle_s < SCAN_AGAIN_S:
                return False
            self._find_candidates(now_s)
        return False

    def _find_candidates(self, now_s: float) -> None:
        """Find the next to go: a hundredth of all at a time, so that making room for many stays
        cheap."""
        idle = []
        for number, connection in enumerate(self.open):
            since_s = connection.idle_since_s()
            if since_s is not None and now_s - since_s >= ROOM_IDLE_S:
                held = self._by_address[connection.client_host]
                idle.append((-held, since_s, number, connection))
        self._candidates.extend(
            found[-1] for found in heapq.nsmallest(max(1, len(self.open) // 100), idle)
        )
        if not idle:
            self._none_idle_s = now_s
