"""Counts what is done between two turns of an event loop, in calls of functions: other programs on
the machine move a clock, and don't move this."""

from __future__ import annotations

import asyncio
import gc
import sys
import typing
from typing import Any


class Probe:
    """Counts calls of functions between two turns of the loop.

    Nothing is collected meanwhile: what other tests have left may have thousands of finalizers.
    """

    def __init__(self) -> None:
        self.calls = self.total = self.most = self.turns = 0
        self._stopped = False

    def turn(self) -> None:
        self.turns += 1
        self._end_turn()
        if not self._stopped:
            asyncio.get_running_loop().call_soon(self.turn)

    def __enter__(self) -> typing.Self:
        gc.disable()
        self.turn()
        sys.setprofile(self._count)
        return self

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)
        gc.enable()
        self._stopped = True
        self._end_turn()

    def _end_turn(self) -> None:
        self.total += self.calls
        self.most, self.calls = max(self.most, self.calls), 0

    # Each call of what is tested calls it twice: nothing more than has to be.
    def _count(self, _frame: Any, event: str, _argument: Any) -> None:
        if event == "call" or event == "c_call":
            self.calls += 1
