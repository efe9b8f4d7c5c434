"""Wait for a fact with a deadline, instead of sleeping and hoping: on a thread, or on a loop."""

from __future__ import annotations

import asyncio
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


async def until(
    holds: Callable[[], object], *, timeout_s: float = 60.0, pause_s: float = 0.005
) -> float:
    """Wait on an event loop until something holds, in the loop's own time.

    Returns: for how long it was waited, in seconds.
    Raises: AssertionError, when the deadline has passed.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    while not holds():
        assert loop.time() - started_s < timeout_s, f"not so within {timeout_s} s"
        await asyncio.sleep(pause_s)
    return loop.time() - started_s


async def turns(count: int = 20) -> None:
    """Let the loop do what is ready, sockets included."""
    for _ in range(count):
        await asyncio.sleep(0)
