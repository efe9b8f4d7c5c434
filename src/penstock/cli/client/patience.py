"""A command that reads until Ctrl-C bears passing errors for a limited time."""

import time
from collections.abc import Callable
from typing import Final

from penstock.model.errors import RetryableError

PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.5


class Patience:
    """The patience of one command, which ends `most_s` after a failure if nothing succeeded since.

    Args:
        tell: called with a line about the first failure of several in a row.
    """

    def __init__(
        self, tell: Callable[[str], None], *, most_s: float = PATIENCE_S, pause_s: float = PAUSE_S
    ) -> None:
        self._tell = tell
        self._most_s = most_s
        self._pause_s = pause_s
        self._end_s: float | None = None

    def succeeded(self) -> None:
        """Count the next error as the first of its failure."""
        self._end_s = None

    def bear(self, error: RetryableError) -> None:
        """Pause, so that the caller can try the same again.

        Raises:
            RetryableError: `error` itself, once patience has ended.
        """
        now_s = time.monotonic()
        if self._end_s is None:
            self._end_s = now_s + self._most_s
            self._tell(f"penstock: {error}; trying again for {self._most_s:g} s")
        elif now_s >= self._end_s:
            raise error
        time.sleep(self._pause_s)
