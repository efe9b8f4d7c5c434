"""One timer for deadlines that follow one another and are mostly taken back before they come."""

import asyncio
from collections.abc import Callable
from typing import Final

KEPT_S: Final = 2.0
"""A timer that its owner no longer wants stays for at most this many seconds."""
_EARLY_S: Final = 0.001
"""Loops round to milliseconds."""


class Alarm:
    """Rings once at each deadline that isn't taken back.

    A consumer's fetches wait half a second each and are answered after a millisecond: making and
    cancelling a timer for each cost more than this, which lets one timer run and looks, when it is
    due, what it is wanted for by then.
    """

    __slots__ = ("_due_s", "_loop", "_ring", "_timer", "_timer_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ring: Callable[[], None] | None = None
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def set(self, due_s: float, ring: Callable[[], None]) -> None:
        """Call `ring` at `due_s` by the loop's time, instead of what was set before."""
        self._ring = ring
        self._due_s = due_s
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._start()

    def hurry(self) -> None:
        """Ring at once, if for anything."""
        if self._ring is not None:
            self.set(self._loop.time(), self._ring)

    def clear(self) -> None:
        """Ring for nothing."""
        self._ring = None
        if self._timer is not None and self._timer_s - self._loop.time() > KEPT_S:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._timer_s = self._due_s
        self._timer = self._loop.call_at(self._due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        ring = self._ring
        if ring is None:
            return
        if self._loop.time() < self._due_s - _EARLY_S:
            self._start()
            return
        self._ring = None
        ring()
