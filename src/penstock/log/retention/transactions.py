"""Aborts transactions whose time-out has passed, and forgets transactional ids that are not used.

Nothing of it happens by itself in apply: both are proposed as bounded commands, by the agent that
is the keeper now. Apply looks at each transaction again, and at its time-out by the entry's journal
time, so that neither two proposers at once nor a clock that is ahead do any harm.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from penstock.log.settings import LogSettings
from penstock.state.ages import Ages
from penstock.state.answers import TransactionsAborted
from penstock.state.order_types import Committer
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.schema import TRANSACTIONS_LEVEL
from penstock.state.transaction_commands import ITEMS_MAX, AbortTransactions, ExpireTransactions
from penstock.state.transactions import Transaction, TransactionState

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NAMED_MAX: Final = 5
"""Transactional ids that one line of the log names."""


class TransactionKeeper:
    """Makes one pass each time that one of its methods is called. Event loop only."""

    def __init__(
        self,
        *,
        queries: Callable[[], Queries],
        view: StateView,
        committer: Committer,
        ages: Ages,
        pool: Executor,
        limits: LogSettings,
        may_propose: Callable[[], bool],
    ) -> None:
        """
        Args:
            ages: measures time-outs. While the clock is in doubt nothing times out.
            may_propose: returns whether this agent does the work for which one agent is enough.
        """
        self._queries = queries
        self._view = view
        self._committer = committer
        self._ages = ages
        self._pool = pool
        self._expiration_ms = limits.transactional_id_expiration_ms
        self._may_propose = may_propose
        self.timed_out_count = 0
        """Transactions that this agent aborted since it began."""
        self.forgotten_count = 0
        """Transactional ids that this agent proposed to forget since it began."""

    async def abort_timed_out(self) -> int:
        """Abort what has been open for longer than its time-out; returns how many.

        Raises:
            PenstockError: to be tried again at the next pass.
        """
        count = 0
        while (now_ms := self._now_ms()) is not None:
            rows = await self._in_pool(partial(self._timed_out, now_ms))
            aborted = await self._abort(rows)
            count += aborted
            if not aborted:
                break
        return count

    async def forget_unused(self) -> int:
        """Forget transactional ids without a change for `transactional.id.expiration.ms`; returns
        how many were proposed.

        Raises:
            PenstockError: to be tried again at the next pass.
        """
        after = -1
        proposed = 0
        while (now_ms := self._now_ms()) is not None:
            page = await self._in_pool(partial(self._page, after))
            if not page:
                break
            unused = [
                row
                for row in page
                if row.state is not TransactionState.ONGOING
                and row.changed_ms < now_ms - self._expiration_ms
            ]
            if unused:
                items = [
                    (row.transactional_id, row.producer_id, row.epoch, row.changed_ms)
                    for row in unused
                ]
                await self._committer.commit([ExpireTransactions(items=items)])
                proposed += len(unused)
                logger.info(
                    "forgot %d transactional ids without a change in %d ms: %s",
                    len(unused),
                    self._expiration_ms,
                    _names(unused),
                )
            after = page[-1].producer_id
        self.forgotten_count += proposed
        return proposed

    async def _abort(self, rows: list[Transaction]) -> int:
        count = 0
        while rows:
            items = [(row.transactional_id, row.producer_id, row.epoch, row.since) for row in rows]
            command = AbortTransactions(items=items, timed_out=True)
            (answer,) = await self._committer.commit([command])
            assert isinstance(answer, TransactionsAborted), answer
            if answer.aborted:
                logger.info(
                    "aborted %d of %d transactions that were open for longer than their "
                    "transaction.timeout.ms: %s",
                    answer.aborted,
                    answer.looked_at,
                    _names(rows[: answer.looked_at]),
                )
            count += answer.aborted
            rows = rows[answer.looked_at :]
        self.timed_out_count += count
        return count

    def _now_ms(self) -> int | None:
        if self._view.feature_level < TRANSACTIONS_LEVEL or not self._may_propose():
            return None
        return self._ages.now_ms()

    def _timed_out(self, now_ms: int) -> list[Transaction]:
        return self._queries().timed_out_transactions(now_ms, limit=ITEMS_MAX)

    def _page(self, after: int) -> list[Transaction]:
        return self._queries().transactions_page(after, limit=ITEMS_MAX)

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _names(rows: list[Transaction]) -> str:
    names = ", ".join(repr(row.transactional_id) for row in rows[:_NAMED_MAX])
    more = len(rows) - _NAMED_MAX
    return f"{names} and {more} more" if more > 0 else names
