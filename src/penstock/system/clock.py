"""The real clock."""

import time


class SystemClock:
    """Implements `penstock.ports.clock.Clock` by the operating system's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary origin."""
        return time.monotonic()
