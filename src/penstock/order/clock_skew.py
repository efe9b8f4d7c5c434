"""Judge how far an agent's wall clock is off the journal's. Pure.

An agent's clock never gets into the state: rows are stamped by the journal. But it decides when
the agent sends and expires, and one that is far off is a machine to be repaired, so such an agent
writes nothing.
"""

from typing import Final

SKEW_MS_MAX: Final = 5_000


class ClockSkew:
    """The last judgement that a reading of the journal's clock allowed."""

    __slots__ = ("skew_ms",)

    def __init__(self) -> None:
        self.skew_ms = 0
        """This agent's clock minus the journal's; 0 while it is within bounds."""

    def judge(self, *, before_ms: int, stamp_ms: int, after_ms: int) -> None:
        """Compare clocks.

        Args:
            before_ms, after_ms: this agent's clock around the reading; the journal's was read
                somewhere between, so that a slow answer proves little.
            stamp_ms: the journal's clock.
        """
        if after_ms < before_ms:
            return  # the clock was set meanwhile: the next reading tells
        uncertain_ms = (after_ms - before_ms) // 2
        skew_ms = before_ms + uncertain_ms - stamp_ms
        if abs(skew_ms) - uncertain_ms > SKEW_MS_MAX:
            self.skew_ms = skew_ms
        elif abs(skew_ms) + uncertain_ms <= SKEW_MS_MAX:
            self.skew_ms = 0

    def describe(self) -> str:
        """Say what is wrong, with numbers; empty: nothing."""
        if not self.skew_ms:
            return ""
        direction = "ahead of" if self.skew_ms > 0 else "behind"
        return (
            f"this host's clock is {abs(self.skew_ms)} ms {direction} the journal's,"
            f" {SKEW_MS_MAX} ms are allowed"
        )
