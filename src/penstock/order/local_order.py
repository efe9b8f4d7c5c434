"""The order of an agent that writes its own journal: `LocalJournal` gives the positions.

A lane makes entries durable and applies them, one turn at a time: the log's holds batches too
(`penstock.log.append.lane`). The owner of the lane reports here what each turn has applied.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from penstock.model.errors import RetryableError
from penstock.order.local_journal import LocalJournal
from penstock.order.port import AppliedEntry, OnApplied
from penstock.ports.clock import Clock

CommandT = TypeVar("CommandT")
CommandT_contra = TypeVar("CommandT_contra", contravariant=True)
AnswerT = TypeVar("AnswerT")
ChangeT = TypeVar("ChangeT")


class Lane(Protocol[CommandT_contra, AnswerT]):
    """Takes commands to the journal. Event loop only."""

    def submit_commands(self, commands: Sequence[CommandT_contra]) -> asyncio.Future[list[AnswerT]]:
        """Journal and apply commands in the order of the calls. One call may be refused for a full
        disk, and the next be taken."""
        ...

    @property
    def hidden_position(self) -> int:
        """The position of the last entry with commands that the database had no space for when it
        was applied; 0: there was none."""
        ...


class LocalOrder(Generic[CommandT, AnswerT, ChangeT]):
    """Implements `penstock.order.port.Order`. Never behind: nothing else writes the journal."""

    def __init__(
        self,
        journal: LocalJournal[CommandT, AnswerT, ChangeT],
        lane: Lane[CommandT, AnswerT],
        *,
        clock: Clock,
    ) -> None:
        self._journal = journal
        self._lane = lane
        self._clock = clock
        self._on_applied: OnApplied[AnswerT, ChangeT] = lambda _: None
        self._on_answered: OnApplied[AnswerT, ChangeT] = lambda _: None
        self._queue: deque[tuple[Sequence[CommandT], asyncio.Future[list[AnswerT]]]] = deque()
        """Submitted calls that are not resolved; the first is in the lane."""
        self.agent_id, self.epoch = journal.agent_id, journal.epoch
        self.position, self.time_ms = journal.position, journal.time_ms

    def start(
        self,
        *,
        on_applied: OnApplied[AnswerT, ChangeT] | None = None,
        on_answered: OnApplied[AnswerT, ChangeT] | None = None,
    ) -> None:
        """Report applied entries from now on; see `penstock.order.port`."""
        self._on_applied = on_applied or self._on_applied
        self._on_answered = on_answered or self._on_answered

    # -- the port --------------------------------------------------------------------------------

    async def commit(self, commands: Sequence[CommandT]) -> list[AnswerT]:
        """See `Committer`."""
        return await self._lane.submit_commands(commands)

    def submit(self, commands: Sequence[CommandT]) -> asyncio.Future[list[AnswerT]]:
        """See `Order`. One call is in the lane at a time: the lane may refuse a call for a full
        disk and take the next, which must not overtake it. A turn takes less than a millisecond."""
        future: asyncio.Future[list[AnswerT]] = asyncio.get_running_loop().create_future()
        self._queue.append((commands, future))
        if len(self._queue) == 1:
            self._next()
        return future

    async def confirm_head(self) -> None:
        """See `Heads`. The writer of a journal is at its head."""

    @property
    def head_confirmed_s(self) -> float:
        """See `Heads`."""
        return self._clock.monotonic_s()

    @property
    def shows_answers(self) -> bool:
        """See `Order`."""
        return not self.hidden_position

    @property
    def hidden_position(self) -> int:
        """The position of the last answered command that queries of the database can't find yet,
        since there was no space for it; 0: they find all of them."""
        position = self._lane.hidden_position
        return position if position > self._journal.committed_position else 0

    # -- what the lane has applied ---------------------------------------------------------------

    def applied(self, entry: AppliedEntry[AnswerT, ChangeT]) -> None:
        """Report an entry, before its answers are given out."""
        self.position, self.time_ms = entry.position, entry.time_ms
        self._on_applied([entry])

    def answered(self, entry: AppliedEntry[AnswerT, ChangeT], *, has_commands: bool) -> None:
        """Report that the lane has given out the answers of an entry.

        Args:
            has_commands: commands are among what was answered: their callers may be those of
                `submit`, whose futures are done by callbacks that are queued by now.
        """
        if has_commands:
            asyncio.get_running_loop().call_soon(self._on_answered, [entry])
        else:
            self._on_answered([entry])

    # -- inside ----------------------------------------------------------------------------------

    def _next(self) -> None:
        self._lane.submit_commands(self._queue[0][0]).add_done_callback(self._done)

    def _done(self, answered: asyncio.Future[list[AnswerT]]) -> None:
        _, future = self._queue.popleft()
        error = (
            RetryableError("append", "journal", "the server is shutting down")
            if answered.cancelled()
            else answered.exception()
        )
        if error is None:
            future.set_result(answered.result())
            if self._queue:
                self._next()
            return
        later = [waiting for _, waiting in self._queue]
        self._queue.clear()
        for one in (future, *later):
            one.set_exception(error)
