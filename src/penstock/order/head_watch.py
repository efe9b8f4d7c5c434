"""Watches since when the journal has answered this agent without a break. Pure.

Whatever is concluded from silence (an agent is gone, a session has ended) counts only while the
journal answers, and has answered for as long: a journal that was away, or a process that was
stopped, looks like everybody's silence.
"""


class HeadWatch:
    """Fed at least four times per `break_s`; all times are seconds of one monotonic clock."""

    __slots__ = ("_break_s", "_looked_s", "since_s")

    def __init__(self, break_s: float) -> None:
        """
        Args:
            break_s: how old the last answer may be before the journal counts as away.
        """
        self._break_s = break_s
        self._looked_s: float | None = None
        self.since_s: float | None = None
        """Since when it has answered; None while it does not."""

    def look(self, now_s: float, confirmed_s: float) -> None:
        """Take note of the time and of when the journal answered last.

        A look that comes late is a break as well: the process was stopped, and what it
        takes for the present may be old.
        """
        late = self._looked_s is not None and now_s - self._looked_s > self._break_s
        self._looked_s = now_s
        if now_s - confirmed_s > self._break_s:
            self.since_s = None
        elif late or self.since_s is None:
            self.since_s = now_s

    def answered_for_s(self, now_s: float) -> float:
        """Return for how long it has answered without a break; 0 while it does not."""
        return 0.0 if self.since_s is None else max(0.0, now_s - self.since_s)
