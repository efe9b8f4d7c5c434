"""The timers of one group on an event loop.

A session's deadline moves with each heartbeat, thousands of times before it passes, so a moved
deadline costs a dictionary entry: the loop's own timer stays where it is and, when it fires early,
is set once more for what is left.
"""

import asyncio
from collections.abc import Callable

from penstock.groups.messages import Timer


class GroupTimers:
    """Timers by name; `fired` is called with the name. The loop's time is the clock."""

    __slots__ = ("_deadlines", "_fired", "_handles", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, fired: Callable[[Timer], None]) -> None:
        self._loop = loop
        self._fired = fired
        self._deadlines: dict[Timer, float] = {}
        self._handles: dict[Timer, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, timer: Timer, delay_ms: int) -> None:
        """Set a timer, in place of one of that name."""
        deadline = self._loop.time() + delay_ms / 1000
        self._deadlines[timer] = deadline
        handle = self._handles.get(timer)
        if handle is not None:
            if handle.when() <= deadline:
                return
            handle.cancel()
        self._handles[timer] = self._loop.call_at(deadline, self._wake, timer)

    def cancel(self, timer: Timer) -> None:
        """Take a timer back, if it is set."""
        if self._deadlines.pop(timer, None) is not None:
            self._handles.pop(timer).cancel()

    def cancel_all(self) -> None:
        """Take all timers back."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()
        self._deadlines.clear()

    def _wake(self, timer: Timer) -> None:
        deadline = self._deadlines[timer]
        if deadline > self._handles[timer].when():
            self._handles[timer] = self._loop.call_at(deadline, self._wake, timer)
            return
        del self._deadlines[timer], self._handles[timer]
        self._fired(timer)
