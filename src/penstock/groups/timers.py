"""The timers of one group on an event loop.

A session's deadline moves with each heartbeat, thousands of times before it passes, so a moved
deadline costs a dictionary entry: the loop's own timer stays where it is and, when it fires early,
is set once more for what is left.
"""

import asyncio
from collections.abc import Callable

from penstock.groups.messages import Timer


class GroupTimers:
    """Timers by name. The loop's time is the clock.

    Args:
        fired: called with the name and the delay in ms that the timer was set with.
    """

    __slots__ = ("_deadlines", "_delays", "_fired", "_loop", "_wakes")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fired: Callable[[Timer, int], None]
    ) -> None:
        self._loop = loop
        self._fired = fired
        self._deadlines: dict[Timer, float] = {}
        self._delays: dict[Timer, int] = {}
        # The time at which the loop's timer fires is kept with it: uvloop gives a plain handle,
        # which does not know its time, for one that is due at once.
        self._wakes: dict[Timer, tuple[float, asyncio.Handle]] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, timer: Timer, delay_ms: int) -> None:
        """Set a timer, in place of one of that name."""
        self._delays[timer] = delay_ms
        self.set_again(timer, delay_ms)

    def set_again(self, timer: Timer, delay_ms: int) -> None:
        """Let a timer fire later, as of the delay that it was set with first."""
        deadline = self._loop.time() + delay_ms / 1000
        self._deadlines[timer] = deadline
        wake = self._wakes.get(timer)
        if wake is not None:
            wake_s, handle = wake
            if wake_s <= deadline:
                return
            handle.cancel()
        self._wake_at(deadline, timer)

    def cancel(self, timer: Timer) -> None:
        """Take a timer back, if it is set."""
        if self._deadlines.pop(timer, None) is not None:
            del self._delays[timer]
            _, handle = self._wakes.pop(timer)
            handle.cancel()

    def cancel_all(self) -> None:
        """Take all timers back."""
        for _, handle in self._wakes.values():
            handle.cancel()
        self._wakes.clear()
        self._deadlines.clear()
        self._delays.clear()

    def _wake_at(self, when_s: float, timer: Timer) -> None:
        self._wakes[timer] = (when_s, self._loop.call_at(when_s, self._wake, timer))

    def _wake(self, timer: Timer) -> None:
        deadline = self._deadlines[timer]
        wake_s, _ = self._wakes[timer]
        if deadline > wake_s:
            self._wake_at(deadline, timer)
            return
        del self._deadlines[timer], self._wakes[timer]
        delay_ms = self._delays[timer]
        self._fired(timer, delay_ms)
        if timer not in self._deadlines:
            self._delays.pop(timer, None)
