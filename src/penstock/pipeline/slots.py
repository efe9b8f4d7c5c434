"""Places for tasks that several jobs share, in the order in which they ask."""

import threading
from typing import Final

FREE_SHARE: Final = 4
"""One of so many places is left to jobs that can't wait, and at least one where there are two."""


class Slots:
    """Counts places. Any thread; who asks first is served first.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        assert count > 0
        self.count = count
        self._free = count
        self._changed = threading.Condition()
        self._next_ticket = 0
        self._served = 0

    def take(self, most: int, *, waits: bool) -> int:
        """Take up to so many places, one at least.

        Args:
            waits: whether to wait for one; else 0 is returned where none is free, or others wait.
        """
        assert most > 0
        with self._changed:
            if not waits:
                if not self._free or self._next_ticket != self._served:
                    return 0
            else:
                ticket = self._next_ticket
                self._next_ticket += 1
                self._changed.wait_for(lambda: ticket == self._served and self._free > 0)
                self._served += 1
            taken = min(most, self._free)
            self._free -= taken
            self._changed.notify_all()
            return taken

    def release(self, count: int) -> None:
        """Give places back."""
        with self._changed:
            self._free += count
            assert self._free <= self.count
            self._changed.notify_all()


def bulk_slots(parallelism: int) -> int:
    """Return how many of so many places bulk jobs may have. Pure."""
    return max(1, parallelism - max(1, parallelism // FREE_SHARE))
