"""Runs `penstock` with a wall clock that jumps: it is off by the milliseconds that the file
PENSTOCK_TEST_CLOCK_FILE says at that time."""

import os
from pathlib import Path

from penstock.cli import main
from penstock.system.clock import SystemClock

FILE = Path(os.environ["PENSTOCK_TEST_CLOCK_FILE"])
right_ms = SystemClock.now_ms


def now_ms(clock: SystemClock) -> int:
    """The time of this host, as somebody set it."""
    return right_ms(clock) + int(FILE.read_text())


SystemClock.now_ms = now_ms  # type: ignore[method-assign, assignment]

if __name__ == "__main__":
    main()
