"""Tasks of the event loop that any number of callers may wait for, none included."""

import asyncio
from typing import Any


def take_error(task: "asyncio.Future[Any]") -> None:
    """Take an ended task's error, which those who wait for it have all the same.

    A done callback of what is loaded once for many: started ahead, or after all of those who waited
    are gone, it has no waiter, and asyncio would report its error as one that was never retrieved.
    The error shows again where the bytes are needed.
    """
    if not task.cancelled():
        task.exception()
