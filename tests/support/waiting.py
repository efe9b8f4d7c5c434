"""Wait for a fact with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    read: Callable[[], T],
    holds: Callable[[T], bool] = bool,
    *,
    timeout_seconds: float = 60.0,
    pause_seconds: float = 0.05,
) -> T:
    """Read until the fact holds.

    Args:
        read: gets the present value.
        holds: whether that value is the one waited for.
    Returns: the first value that holds.
    Raises: AssertionError with the last value, when the deadline has passed.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = read()
        if holds(value):
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {timeout_seconds} s; last seen: {value!r}")
        time.sleep(pause_seconds)
