"""Tasks for engines' tests: here, so that processes and executors can import them."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.model.errors import InvalidRequestError, RetryableError


def squared(value: int) -> int:
    """The square."""
    return value * value


def dies_once(path: str) -> int:
    """Ends its process at the first try for a path."""
    marker = Path(path)
    if not marker.exists():
        marker.write_text("seen")
        os._exit(9)
    return 1


def always_dies(_: int) -> int:
    """Ends its process."""
    os._exit(9)


def fails_once(path: str) -> int:
    """Fails retriably at the first try for a path."""
    marker = Path(path)
    if not marker.exists():
        marker.write_text("seen")
        raise RetryableError("read", path, "the store is away")
    return 1


def refuses_seven(value: int) -> int:
    """Fails for good for one item."""
    if value == 7:
        raise InvalidRequestError("read", "item 7", "never")
    return value


def notes_and_waits(item: tuple[str, str]) -> int:
    """Writes the first path, then waits for the second."""
    import time

    mine, other = (Path(path) for path in item)
    mine.write_text("here")
    deadline = time.monotonic() + 300
    while other and not other.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return 1
