"""Says by which time ages are measured: nothing is old by one clock alone."""

from collections.abc import Callable

from penstock.ports.clock import AgeClock


class Ages:
    """The time that everything goes by which is deleted or expires by age. Any thread."""

    def __init__(
        self,
        clock: AgeClock,
        *,
        journal_ms: Callable[[], int] | None = None,
        is_doubted: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            journal_ms: journal time, which other clocks have a part in; None: this process's clock
                alone stamps the journal, whose time stands still while nothing is written.
            is_doubted: whether something else speaks against the clocks.
        """
        self._clock = clock
        self._journal_ms = journal_ms
        self._is_doubted = is_doubted

    def now_ms(self) -> int | None:
        """The lesser of journal time and the believed clock; None: the clock is in doubt, and
        nothing may be deleted, condemned or expired by age."""
        now_ms = self.believed_ms()
        if now_ms is None or self._journal_ms is None:
            return now_ms
        return min(now_ms, self._journal_ms())

    def believed_ms(self) -> int | None:
        """Return what this process's clock says, whatever journal time is; None: it is in doubt."""
        return None if self._is_doubted() else self._clock.believed_ms()

    def least_ms(self, journal_ms: int) -> int:
        """The earliest of the times that it may be, for a caller that needs one even in doubt: by
        this time nothing looks older than it is.

        Args:
            journal_ms: journal time as the caller's moment of the state has it.
        """
        least_ms = self._clock.least_ms()
        return least_ms if self._journal_ms is None else min(least_ms, journal_ms)
