"""The real clock."""

import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Final


class SystemClock:
    """Implements `penstock.ports.clock.Clock` by the operating system's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the Unix epoch, UTC."""
        return time.time_ns() // 1_000_000

    # Asked for a dozen times per request: without a call between.
    monotonic_s = staticmethod(time.monotonic)
    """Seconds since an arbitrary origin."""


def _clock_through_sleep() -> Callable[[], float]:
    # macOS: `time.monotonic` stands still while the machine sleeps, its CLOCK_MONOTONIC goes on.
    # Linux: CLOCK_MONOTONIC stands still, CLOCK_BOOTTIME goes on.
    name = "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME"
    clock = getattr(time, name, None)
    if clock is not None:
        # Not every kernel or sandbox has what Python names.
        with contextlib.suppress(OSError):
            time.clock_gettime(clock)
            return partial(time.clock_gettime, clock)
    return time.monotonic


elapsed_s: Final = _clock_through_sleep()
"""Seconds of a clock that never steps, and that goes on while the machine is suspended: after a
sleep of three weeks the wall clock is where it was to be expected."""
