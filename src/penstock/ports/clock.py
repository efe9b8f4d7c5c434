"""Time as a port, so that simulation and tests own it."""

from typing import Protocol


class Clock(Protocol):
    """Reads time. Implementations: `penstock.system.SystemClock`, a virtual one in tests."""

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the Unix epoch, UTC. May step backwards."""
        ...

    def monotonic_s(self) -> float:
        """Seconds of a clock that never steps backwards, from an arbitrary origin."""
        ...
