"""The real clock."""

import sys
import time
from functools import partial


class SystemClock:
    """Implements `penstock.ports.clock.Clock` by the operating system's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000

    # Asked for a dozen times per request: without a call between.
    monotonic_s = staticmethod(time.monotonic)
    """Seconds since an arbitrary origin."""


elapsed_s = (
    # macOS: `time.monotonic` stands still while the machine sleeps, this clock goes on.
    partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    if sys.platform == "darwin"
    # Linux: its monotonic clock stands still, this one goes on.
    else partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
"""Seconds of a clock that never steps, and that goes on while the machine is suspended: after a
sleep of three weeks the wall clock is where it was to be expected."""
