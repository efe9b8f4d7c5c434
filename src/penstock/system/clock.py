"""The real clock."""

import time


class SystemClock:
    """Implements `penstock.ports.clock.Clock` by the operating system's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000

    # Asked for a dozen times per request: without a call between.
    monotonic_s = staticmethod(time.monotonic)
    """Seconds since an arbitrary origin."""
