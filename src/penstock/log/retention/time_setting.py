"""Sets journal time back that stands ahead of the clocks, and the times that it left in the state.

One clock that was ahead is enough for that on an embedded server; in a cluster it takes two. While
journal time is ahead nothing is deleted too early, since ages go by the lesser of it and the
believed clock; but what was written meanwhile would never come of age.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from penstock.state.ages import Ages
from penstock.state.answers import JournalTimeSet, Refused
from penstock.state.apply.journal_clock import ROWS_PER_COMMAND
from penstock.state.commands import SetJournalTime
from penstock.state.journal_time import AGREEMENT_MS
from penstock.state.order_types import Committer
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.schema import INTEGRITY_LEVEL

logger = logging.getLogger(__name__)


class TimeSetting:
    """Sets journal time back for the keeper, before the keeper measures ages. Event loop only."""

    def __init__(
        self,
        *,
        queries: Callable[[], Queries],
        view: StateView,
        committer: Committer,
        ages: Ages,
        journal_ms: Callable[[], int],
        pool: Executor,
    ) -> None:
        """
        Args:
            journal_ms: journal time as this process knows it.
        """
        self._queries = queries
        self._view = view
        self._committer = committer
        self._ages = ages
        self._journal_ms = journal_ms
        self._pool = pool

    def ahead_ms(self) -> int:
        """Return how far journal time stands ahead of the believed clock; 0: it doesn't, or the
        clock is in doubt."""
        now_ms = self._ages.believed_ms()
        return 0 if now_ms is None else max(0, self._journal_ms() - now_ms)

    async def run_once(self) -> int:
        """Set journal time back if it is ahead, and go on with what an earlier setting left.

        Returns: in how many rows times were lowered.
        """
        if self._view.feature_level < INTEGRITY_LEVEL or self._ages.believed_ms() is None:
            return 0
        ahead_ms = self.ahead_ms()
        begins = ahead_ms > AGREEMENT_MS
        if begins:
            logger.warning(
                "journal time is %.1f s ahead of the clocks: setting it back", ahead_ms / 1000
            )
        elif not await self._is_walking():
            return 0
        rows = 0
        while (now_ms := self._ages.believed_ms()) is not None:
            command = SetJournalTime(time_ms=now_ms, rows_max=ROWS_PER_COMMAND, begins=begins)
            (answer,) = await self._committer.commit([command])
            if isinstance(answer, Refused):
                # Another agent's clock, or the database's: tried again at the next pass.
                logger.warning("journal time can't be set back: %s", answer.detail)
                return rows
            assert isinstance(answer, JournalTimeSet), answer
            begins = False
            rows += answer.rows
            if answer.is_done:
                logger.warning("journal time is right again; times in %d rows were ahead", rows)
                break
        return rows

    async def _is_walking(self) -> bool:
        def look() -> bool:
            return self._queries().is_time_walked()

        return await asyncio.get_running_loop().run_in_executor(self._pool, look)
