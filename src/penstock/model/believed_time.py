"""Decides when to believe a wall clock that doesn't go as the monotonic clock does. Pure.

A wall clock that steps is either set right or set wrong, and nothing at hand tells which. What
goes by age would delete by a wrong one, so a step is believed only once the clock has stood where
it stepped to; until then the time goes on from the last believed reading by the monotonic clock.
docs/decisions/0008-* has the reasons, docs/operations.md what an operator sees.
"""

import enum
from typing import Final, NamedTuple

STEP_MS: Final = 5_000
"""A wall clock that is further off than this has stepped; less is drift, which is followed."""
START_GAP_MS: Final = 3_600_000
"""How far the clock at a process's start may be from the last time that the process knows."""
FOLLOW_S: Final = 60.0
"""How often drift is followed: a clock that gains more than a step in this time is in doubt. 8 % is
more than what time daemons slew by."""


class Reading(NamedTuple):
    """The wall clock, and the monotonic clock at that moment."""

    wall_ms: int
    elapsed_s: float

    def at(self, elapsed_s: float) -> int:
        """Return what the wall clock shows later, if nothing is wrong."""
        return self.wall_ms + round((elapsed_s - self.elapsed_s) * 1000)


class Doubt(NamedTuple):
    """A clock that isn't believed yet. `since_s`: monotonic, from when it has stood there."""

    reading: Reading
    since_s: float


class Turn(enum.Enum):
    """A turn says what a reading changed."""

    DOUBTED = enum.auto()
    """The clock stands where it is not believed, or has stepped again."""
    RETURNED = enum.auto()
    """It is back where it was believed."""
    BELIEVED = enum.auto()
    """It has stood for long enough."""


class BelievedTime:
    """Given readings of both clocks, says which wall-clock time is believed.

    Args:
        after_ms: how long a clock must stand where it stepped to before it is believed.
    """

    __slots__ = ("_after_s", "anchor", "doubt")

    def __init__(self, first: Reading, *, after_ms: int) -> None:
        self._after_s = after_ms / 1000
        self.anchor = first
        """The last reading that was believed and noted."""
        self.doubt: Doubt | None = None

    def start_from(self, known_ms: int, reading: Reading) -> Turn | None:
        """Compare the clock at the start with the last time that this process knows of."""
        if abs(reading.wall_ms - known_ms) <= START_GAP_MS:
            return None
        self.anchor = Reading(known_ms, reading.elapsed_s)
        self.doubt = None
        return self.look(reading)

    def look(self, reading: Reading) -> Turn | None:
        """Take a reading; what it changed, if anything."""
        wall_ms, elapsed_s = reading
        doubt = self.doubt
        if abs(wall_ms - self.anchor.at(elapsed_s)) <= STEP_MS:
            if elapsed_s - self.anchor.elapsed_s >= FOLLOW_S:
                self.anchor = reading
            self.doubt = None
            return None if doubt is None else Turn.RETURNED
        if doubt is None or abs(wall_ms - doubt.reading.at(elapsed_s)) > STEP_MS:
            self.doubt = doubt = Doubt(reading, elapsed_s)
            if self._after_s > 0:
                return Turn.DOUBTED
        if elapsed_s - doubt.since_s >= self._after_s:
            self.anchor, self.doubt = reading, None
            return Turn.BELIEVED
        if elapsed_s - doubt.reading.elapsed_s >= FOLLOW_S:
            self.doubt = Doubt(reading, doubt.since_s)
        return None
