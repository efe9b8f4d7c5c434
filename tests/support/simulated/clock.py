"""A clock that stands still until a test moves it."""

from typing import Final

_START_MS: Final = 1_700_000_000_000
"""Some day of 2023: a time of the kind that real clocks give, and far from zero."""


class ManualClock:
    """Implements `penstock.ports.clock.Clock`."""

    def __init__(self, *, now_ms: int = _START_MS) -> None:
        self._now_ms = now_ms
        self._monotonic_s = 0.0

    def now_ms(self) -> int:
        """Wall-clock time, ms since the epoch."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Seconds that were advanced so far."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        assert seconds >= 0
        self._monotonic_s += seconds
        self._now_ms += round(seconds * 1000)

    def set_wall(self, now_ms: int) -> None:
        """Step the wall clock, also backwards; the monotonic one does not notice."""
        self._now_ms = now_ms

    async def wait(self, seconds: float) -> None:
        """Let time pass at once: stands in for a wait on the event loop."""
        self.advance(seconds)
