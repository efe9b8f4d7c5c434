"""Counts of bytes in hand, which decide who is read from: back-pressure by bytes."""

from typing import Protocol


class Waiter(Protocol):
    """Somebody who stopped since the budget was spent."""

    def budget_freed(self) -> None:
        """There may be room now, or the caller may have been chosen to go on; look again."""
        ...


class ByteBudget:
    """A counter with a limit. Taking never fails: bytes that are there are there; the limit
    says when to stop making more of them.

    One of the waiters may be *elected*: it goes on above the limit. Without that, many requests
    that are each received in part could hold the whole budget with none of them ever complete.
    """

    __slots__ = ("_elected", "_waiters", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiters: dict[Waiter, None] = {}
        self._elected: Waiter | None = None

    @property
    def spent(self) -> bool:
        """Whether the limit is reached."""
        return self.used_bytes >= self.limit_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes below the limit; 0 above it."""
        return max(0, self.limit_bytes - self.used_bytes)

    def take(self, byte_count: int) -> None:
        """Count bytes that came into being; negative ones are given back."""
        self.used_bytes += byte_count
        if byte_count < 0 and self._waiters and not self.spent:
            self._wake()

    def wait(self, waiter: Waiter) -> None:
        """Call `waiter.budget_freed` once there is room."""
        self._waiters[waiter] = None

    def elect(self, waiter: Waiter) -> bool:
        """Let `waiter` go on above the limit if nobody else does already.

        Returns:
            Whether it may.
        """
        if self._elected is None:
            self._elected = waiter
        return self._elected is waiter

    def release(self, waiter: Waiter) -> None:
        """`waiter` neither waits nor goes on above the limit any longer."""
        self._waiters.pop(waiter, None)
        if self._elected is waiter:
            self._elected = None
            self._wake()

    def _wake(self) -> None:
        # In the order in which they began to wait; whoever still finds no room waits again.
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter.budget_freed()
