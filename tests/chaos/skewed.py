"""Runs `penstock` with a wall clock that is off by PENSTOCK_TEST_CLOCK_SKEW_MS."""

import os

from penstock.cli import main
from penstock.system.clock import SystemClock

SKEW_MS = int(os.environ["PENSTOCK_TEST_CLOCK_SKEW_MS"])
right_ms = SystemClock.now_ms


def now_ms(clock: SystemClock) -> int:
    """The wrong time."""
    return right_ms(clock) + SKEW_MS


SystemClock.now_ms = now_ms  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
