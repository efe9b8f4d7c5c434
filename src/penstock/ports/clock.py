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


class AgeClock(Protocol):
    """Says by which time ages may be measured: `penstock.system.BelievedClock`."""

    def believed_ms(self) -> int | None:
        """Wall-clock time as it is believed; None: it is in doubt, and nothing may be deleted or
        expired by age."""
        ...

    def least_ms(self) -> int:
        """The earliest of the times that it may be."""
        ...
