"""Measures how long a peer has said nothing, as far as this process listened."""

import asyncio
from collections.abc import Callable
from typing import Final

_STEPS: Final = 5


class Silence:
    """Calls back once a peer has been silent for `silence_s`; begins at once.

    Time is counted in steps, and a step that comes late counts as one: while the event loop stood
    still nothing could be heard, and its timers may run before what lies in the sockets is read.
    """

    __slots__ = ("_loop", "_on_silent", "_step_s", "_steps", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, silence_s: float, on_silent: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._step_s = silence_s / _STEPS
        self._on_silent = on_silent
        self._steps = 0
        self._timer = loop.call_later(self._step_s, self._step)

    def heard(self) -> None:
        """There was something: the silence begins again."""
        self._steps = 0

    def stop(self) -> None:
        """Call back no more."""
        self._timer.cancel()

    def _step(self) -> None:
        self._steps += 1
        # One more than there are: what was heard in the first one didn't wait for all of it.
        if self._steps > _STEPS:
            self._on_silent()
            return
        self._timer = self._loop.call_later(self._step_s, self._step)
