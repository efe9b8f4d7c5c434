"""Log lines that strangers can cause: one per kind and minute, with the count of those left out."""

from typing import Final

from penstock.ports.clock import Clock

INTERVAL_S: Final = 60.0
KINDS_MAX: Final = 1_000


class Seldom:
    """Says which of many equal events is worth a line.

    A kind may hold what strangers send: of more than `KINDS_MAX` the one whose line is oldest is
    forgotten, and may have a line early.
    """

    __slots__ = ("_clock", "_counts", "_said_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_s: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def due(self, kind: str) -> int:
        """Count one event.

        Returns:
            How many there were since the last line of this kind, this one included; 0: the last
            line is less than a minute old, so say nothing.
        """
        count = self._counts.get(kind, 0) + 1
        now_s = self._clock.monotonic_s()
        said_s = self._said_s.get(kind)
        if said_s is not None and now_s - said_s < INTERVAL_S:
            self._counts[kind] = count
            return 0
        # Last in the order of lines.
        self._said_s.pop(kind, None)
        self._said_s[kind] = now_s
        self._counts[kind] = 0
        if len(self._said_s) > KINDS_MAX:
            oldest = next(iter(self._said_s))
            del self._said_s[oldest], self._counts[oldest]
        return count
