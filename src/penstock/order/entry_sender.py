"""Sends an agent's entries to the journal until applying them has resolved them.

The shell around `entry_window.EntryWindow`. It never guesses: a failed append is sent again under
its number, and the answer is what this agent's replica made of whichever copy came first.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from penstock.model.errors import (
    ConflictError,
    FatalStorageError,
    FencedError,
    InDoubtError,
    PenstockError,
    RetryableError,
)
from penstock.order.entry_window import Call, EntryWindow, Sending, WindowEntry
from penstock.order.outcome import Outcome, Standing
from penstock.order.protocol import CommandProtocol, Levels
from penstock.ports.clock import Clock
from penstock.replica.applied import Applied
from penstock.system import background
from penstock.system.backoff import Backoff
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

CommandT = TypeVar("CommandT")
AnswerT = TypeVar("AnswerT")


class Appends(Protocol):
    """The part of `penstock.ports.journal.Journal` that a sender uses."""

    async def append(self, body: bytes) -> int:
        """Append an entry; its position.

        Raises:
            RetryableError: the entry is not appended, or the outcome is unknown: it is sent again.
            Exception: no retry mends it, and the agent stops.
        """
        ...


class EntrySender(Generic[CommandT, AnswerT]):
    """The entries of one agent and epoch. Event loop only."""

    def __init__(
        self,
        journal: Appends,
        *,
        agent: int,
        epoch: int,
        clock: Clock,
        protocol: CommandProtocol[CommandT, AnswerT],
        levels: Levels[CommandT, Any],
        position: Callable[[], int],
        appended: Callable[[], None],
        stopped: Callable[[PenstockError], None],
        backoff: Backoff,
        doubted: Callable[[], None] = lambda: None,
        is_same: Callable[[], bool] = lambda: True,
        wanted: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            protocol: the functions of the commands and answers.
            levels: what of feature levels is applied here; commands above it are not sent.
            position: gives the last position that is applied here.
            appended: called when an entry has got its place in the journal.
            stopped: called once when nothing more can be sent: FencedError (the epoch was ended,
                or is another process's), or the error of the journal that sending again does not
                mend.
            backoff: pauses before entries are sent again whose sending failed; each entry counts.
            doubted: called when one has failed: the journal may be another when it answers again.
            is_same: whether it was looked since that the journal holds what is applied here. What
                an entry says may have been planned on a history that the journal has lost (a trim
                by records that others have put elsewhere), so it isn't sent again before.
        """
        self.agent = agent
        self.epoch = epoch
        self._journal = journal
        self._protocol = protocol
        self._weigh = protocol.weigh
        self._clock = clock
        self._levels = levels
        self._position = position
        self._appended = appended
        self._stopped = stopped
        self._backoff = backoff
        self._failures = 0
        self._doubted = doubted
        self._is_same = is_same
        self._wanted = wanted
        self._window: EntryWindow[CommandT, AnswerT] = EntryWindow(
            agent=agent, epoch=epoch, encode=protocol.encode
        )
        self.failure: PenstockError | None = None
        """Why nothing is sent any more."""
        self._is_ending = False
        self._appends: set[asyncio.Task[None]] = set()
        self._resending: asyncio.TimerHandle | None = None

    def submit(
        self, commands: Sequence[CommandT], *, refused: RetryableError | None = None
    ) -> Call[CommandT, AnswerT]:
        """Queue commands; errors come by the call's future.

        Args:
            refused: why they may not be written now, if so.
        """
        assert commands, "nothing to commit"
        future: asyncio.Future[list[AnswerT]] = asyncio.get_running_loop().create_future()
        call = Call(commands, future, self._weigh(commands))
        failure = self.failure or refused or self._levels.refusal(commands)
        if failure is None and self._is_ending:
            failure = InDoubtError("commit", f"agent {self.agent}", "this agent is ending")
        if failure is not None:
            _fail_calls([call], failure)
            return call
        try:
            self._window.add(call)
        except RetryableError as error:
            _fail_calls([call], error)
        else:
            self.pump()
        return call

    def withdraw(self, call: Call[CommandT, AnswerT]) -> bool:
        """Take a call back; False: it may have been sent."""
        return self._window.withdraw(call)

    async def end_epoch(self, timeout_s: float) -> None:
        """Have this epoch's end as its last entry, after all that was submitted. What is submitted
        later fails. Where the levels don't allow it nothing is sent, and the others fence this
        agent once it has been silent.

        Raises:
            PenstockError: the end is not known to be applied.
        """
        if not self._levels.ends_epochs:
            return
        call = self.submit([self._protocol.ending(self.agent, self.epoch)])
        self._is_ending = True
        done, _ = await asyncio.wait([call.future], timeout=timeout_s)
        if not done:
            self.withdraw(call)
            raise RetryableError(
                "end epoch", f"agent {self.agent}", f"no answer of the journal in {timeout_s:g} s"
            )
        (answer,) = call.future.result()
        refusal = self._protocol.refusal(answer)
        if refusal is not None:
            raise ConflictError(
                "end epoch", f"agent {self.agent}", f"{refusal.reason}: {refusal.detail}"
            )

    def let_go(self, error: RetryableError) -> int:
        """Fail what was never sent, beats excepted: it was not applied, and won't be.

        What is in an entry already stays, since a copy of it may be in the journal.

        Returns:
            How many calls it were.
        """
        calls = self._window.take_unsent(self._is_more_than_a_beat)
        _fail_calls(calls, error)
        return len(calls)

    def give_up_groups(self, error: RetryableError) -> None:
        """Fail what was sent of commands that may be given up (`CommandProtocol.is_given_up`): they
        may be applied, and a client that has to look for its coordinator sends them again there.
        For records the flusher answers, whose bytes may yet be named."""
        for entry in self._window.unresolved:
            _fail_calls([call for call in entry.calls if self._is_given_up(call)], error)

    def settle(self, n: int, applied: Applied[Outcome[AnswerT, Any]]) -> None:
        """A copy of this epoch's entry `n` was applied here, with this outcome."""
        entry = self._window.find(n)
        if entry is None:
            return  # a further copy of one that is resolved
        outcome = applied.outcome
        if applied.body != entry.body:
            # An entry is sent again as it is: another process opened this epoch.
            self._end_epoch("it was opened by another process")
        elif outcome.standing is not Standing.REFUSED:
            self._window.resolve(entry)
            _answer(entry, outcome.answers)
        else:
            refusal = self._protocol.refusal(outcome.answers[0])
            assert refusal is not None, outcome
            # Where it came out of order `due` tells, now that this position is applied.
            if refusal.ends_epoch:
                self._end_epoch(refusal.detail)

    def pump(self) -> None:
        """Send what may be sent. To be called when the position has moved."""
        if self.failure is not None or self._resending is not None:
            return
        unresolved = self._window.unresolved
        due = self._window.due(self._position())
        if due:
            has_failed = any(entry.sending is Sending.FAILED for entry in due)
            # Out of order alone: the journal answers, so there is nothing to wait for.
            # At least one pause, though another entry's success may have reset the count: without
            # it, entries that wait for a look at the journal would keep the loop busy.
            delay_s = self._backoff.after(max(1, self._failures)) if has_failed else 0
            self._resending = asyncio.get_running_loop().call_later(delay_s, self._resend)
        elif not any(entry.sending is Sending.FAILED for entry in unresolved):
            while (entry := self._window.next_entry(self._clock.now_ms())) is not None:
                self._send(entry)

    def fail(self, error: PenstockError) -> None:
        """Send nothing more; all that wait get this error."""
        if self.failure is None:
            self.failure = error
            _fail_calls(self._window.drain(), error)

    async def close(self) -> None:
        """End what is under way; `fail` comes first."""
        assert self.failure is not None, "closed without a reason"
        if self._resending is not None:
            self._resending.cancel()
        for task in self._appends:
            task.cancel()
        if self._appends:
            await asyncio.wait(self._appends)

    # -- inside ----------------------------------------------------------------------------------

    def _is_given_up(self, call: Call[CommandT, AnswerT]) -> bool:
        return all(map(self._protocol.is_given_up, call.commands))

    def _is_more_than_a_beat(self, call: Call[CommandT, AnswerT]) -> bool:
        return not all(map(self._protocol.is_beat, call.commands))

    def _end_epoch(self, detail: str) -> None:
        if self.failure is None:
            error = FencedError(
                "commit", f"agent {self.agent}", f"epoch {self.epoch}: {detail}", "restart it"
            )
            self.fail(error)
            self._stopped(error)

    def _stop(self, error: Exception) -> None:
        """Sending failed as no retry mends: a bug, or a journal that refuses. What waits is in
        doubt, since an earlier copy of an entry may be in the journal."""
        if self.failure is not None:
            return
        subject = f"agent {self.agent}"
        logger.error("%s of epoch %d can't append: %r", subject, self.epoch, error, exc_info=error)
        if not isinstance(error, PenstockError):
            error = FatalStorageError("append", "journal", repr(error))
        self.fail(InDoubtError("commit", subject, str(error)))
        self._stopped(error)

    def _resend(self) -> None:
        self._resending = None
        try:
            due = self._window.due(self._position())
            if any(entry.sending is Sending.FAILED for entry in due) and not self._is_same():
                self._wanted()  # the follower may be pausing for longer than this waits
                self.pump()  # with another wait
                return
            for entry in due:
                self._send(entry)
            self.pump()
        except Exception as error:  # noqa: BLE001 - the agent ends of it, loudly
            self._stop(error)

    def _send(self, entry: WindowEntry[CommandT, AnswerT]) -> None:
        entry.sending = Sending.IN_FLIGHT
        task = background.start(background.APPEND_ENTRY, partial(self._append, entry))
        self._appends.add(task)
        task.add_done_callback(self._appends.discard)

    async def _append(self, entry: WindowEntry[CommandT, AnswerT]) -> None:
        # Nothing awaits this task: an exception that left it would stay unseen, the entry would
        # count as in flight for ever, and every commit after it would hang.
        try:
            try:
                entry.position = await self._journal.append(entry.body)
            except RetryableError as error:
                entry.sending = Sending.FAILED
                self._doubted()
                self._failures += 1
                saying = f"entry {entry.n} of epoch {self.epoch} is sent again"
                heard(Cause.APPEND_ENTRY, error, logger, saying)
            else:
                entry.sending = Sending.ACKED
                self._failures = 0
                self._appended()
            self.pump()
        except Exception as error:  # noqa: BLE001 - the agent ends of it, loudly
            self._stop(error)


def _answer(entry: WindowEntry[Any, AnswerT], answers: list[AnswerT]) -> None:
    first = 0
    for call in entry.calls:
        end = first + len(call.commands)
        if not call.future.done():
            call.future.set_result(answers[first:end])
        first = end


def _fail_calls(calls: Sequence[Call[Any, Any]], error: PenstockError) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error)
            # Who submitted may not look any more, and the loop's handler needn't hear of it.
            call.future.exception()
