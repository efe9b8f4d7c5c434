"""A clock that doubts its own steps: `penstock.model.believed_time` at the edge.

Three times come of one wall clock. What is written is stamped by the later of the wall clock and
the believed one (`now_ms`), so that a clock in doubt makes nothing look older than it is. What is
deleted by age goes by the believed one, and waits while there is a doubt (`believed_ms`). A caller
that must name a time all the same takes the earlier of the two (`least_ms`).
"""

import logging
import math
import threading
from collections.abc import Callable

from penstock.model.believed_time import STEP_MS, BelievedTime, Reading, Turn
from penstock.ports.clock import Clock

logger = logging.getLogger(__name__)


class BelievedClock:
    """Implements `penstock.ports.clock.AgeClock`. Any thread.

    Args:
        clock: the wall clock that is doubted, and the monotonic one that is given out.
        after_ms: see `BelievedTime`.
        elapsed_s: what the wall clock is compared with; None: the clock's monotonic time. Better
            one that counts while the machine is suspended, which else is a step.
    """

    def __init__(
        self, clock: Clock, *, after_ms: int, elapsed_s: Callable[[], float] | None = None
    ) -> None:
        self.wall = clock
        """The clock that is doubted."""
        self._wall_ms = clock.now_ms
        self._elapsed_s = elapsed_s or clock.monotonic_s
        # Asked for a dozen times per request: without a call between.
        self.monotonic_s = clock.monotonic_s
        self._after_ms = after_ms
        self._lock = threading.Lock()
        self._time = BelievedTime(self._read(), after_ms=after_ms)
        self._base_ms = self._base()
        """The believed time where the elapsed time is 0; NaN while there is a doubt."""

    def start_from(self, known_ms: int) -> None:
        """Say which time was known before this process's start, for example of the journal's last
        entry; 0: none."""
        if known_ms > 0:
            with self._lock:
                self._tell(self._time.start_from(known_ms, self._read()))
                self._base_ms = self._base()

    def look(self) -> None:
        """Compare the clocks, and follow drift. To be called about once a second."""
        self._look()

    def now_ms(self) -> int:
        """The later of the wall clock and the believed one."""
        # Asked for at each request and entry: without the lock where nothing is wrong (0.3 us
        # instead of 1.1). NaN is in no range.
        wall_ms = self._wall_ms()
        if -STEP_MS <= wall_ms - self._base_ms - self._elapsed_s() * 1000 <= STEP_MS:
            return wall_ms
        reading = self._look()
        if self._time.doubt is None:
            return reading.wall_ms
        return max(reading.wall_ms, self._time.anchor.at(reading.elapsed_s))

    def believed_ms(self) -> int | None:
        """See `AgeClock`."""
        reading = self._look()
        return None if self._time.doubt is not None else reading.wall_ms

    def least_ms(self) -> int:
        """See `AgeClock`."""
        reading = self._look()
        if self._time.doubt is None:
            return reading.wall_ms
        return min(reading.wall_ms, self._time.anchor.at(reading.elapsed_s))

    @property
    def doubted_ms(self) -> int:
        """Return how far the wall clock is from the believed one while it is in doubt; else 0."""
        doubt = self._time.doubt
        if doubt is None:
            return 0
        return doubt.reading.wall_ms - self._time.anchor.at(doubt.reading.elapsed_s)

    @property
    def believed_in_s(self) -> float:
        """Return how long the wall clock still has to stand; 0: it is believed."""
        doubt = self._time.doubt
        if doubt is None:
            return 0.0
        return max(0.0, self._after_ms / 1000 - (self._elapsed_s() - doubt.since_s))

    def describe(self) -> str:
        """Return what is in doubt, with numbers; empty: nothing."""
        off_ms = self.doubted_ms
        if not off_ms:
            return ""
        return (
            f"this host's clock is {abs(off_ms) / 1000:.1f} s"
            f" {'ahead of' if off_ms > 0 else 'behind'} what was to be expected"
        )

    def _base(self) -> float:
        anchor = self._time.anchor
        if self._time.doubt is not None:
            return math.nan
        return anchor.wall_ms - anchor.elapsed_s * 1000

    def _read(self) -> Reading:
        return Reading(self._wall_ms(), self._elapsed_s())

    def _look(self) -> Reading:
        with self._lock:
            # Read under the lock: an older reading after a newer one would look like a step.
            reading = self._read()
            turn = self._time.look(reading)
            self._base_ms = self._base()
            if turn is not None:
                self._tell(turn)
        return reading

    def _tell(self, turn: Turn | None) -> None:
        if turn is Turn.DOUBTED:
            logger.warning(
                "%s: nothing is deleted or expired by age before the clock has stood for %g s",
                self.describe(),
                self._after_ms / 1000,
            )
        elif turn is Turn.RETURNED:
            logger.warning("this host's clock is back where it was: it is believed again")
        elif turn is Turn.BELIEVED:
            logger.warning("this host's clock has stood for long enough: it is believed")
