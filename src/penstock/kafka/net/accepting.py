"""The position of the journal that a new connection is known to have seen.

A connection that is accepted now has been opened after this agent applied its present position,
unless it waited in the listener's backlog. While the loop runs that takes a turn of it. A process
that was stopped finds connections there whose clients may be gone, and their requests late ones
(docs/transactions.md, "Late requests"). So the loop notes the position a few times a second; after
a stall new connections count, for as long as a stall is, as opened before it.
"""

from collections.abc import Callable
from typing import Final

from penstock.ports.clock import Clock

STALL_S: Final = 1.0
NOTE_S: Final = 0.25
"""How often `note` is to be called."""


class AcceptedPositions:
    """Says what a new connection has seen. Event loop only.

    Args:
        position: returns the last entry that is applied here.
    """

    def __init__(self, position: Callable[[], int], clock: Clock) -> None:
        self._position = position
        self._clock = clock
        self._noted_s = clock.monotonic_s()
        self._noted = position()
        self._old_until_s = 0.0

    def note(self) -> None:
        """Take note that the loop runs."""
        now_s = self._clock.monotonic_s()
        self._look(now_s)
        self._noted_s = now_s
        if now_s >= self._old_until_s:
            self._noted = self._position()

    def of_new(self) -> int:
        """Return the position that a connection which is accepted now has seen."""
        now_s = self._clock.monotonic_s()
        self._look(now_s)
        return self._noted if now_s < self._old_until_s else self._position()

    def _look(self, now_s: float) -> None:
        if now_s - self._noted_s >= STALL_S:
            self._noted_s = now_s
            self._old_until_s = now_s + STALL_S
