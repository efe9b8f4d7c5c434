"""Long work as steps, between which the caller may do something else. Pure.

A generator gives how many items it has done since it gave the last time, and returns its result.
On the event loop `penstock.system.turns.Turns.run` runs it, elsewhere `at_once`.
"""

from collections.abc import Generator
from typing import TypeVar

_T = TypeVar("_T")

Steps = Generator[int, None, _T]
"""Gives numbers of items."""


def at_once(steps: Steps[_T]) -> _T:
    """Run to the end without a pause; gives what the steps return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


def if_short(steps: Steps[_T]) -> _T | None:
    """Run the steps if they pause nowhere.

    Returns:
        Their result; None if they paused: then they go on with `Turns.run`.
    """
    try:
        next(steps)
    except StopIteration as end:
        result: _T = end.value
        return result
    return None
