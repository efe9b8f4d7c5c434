"""Confirmed heads: that this replica is at a journal head which was read after a caller asked.

All that wait share one read: those who ask while one is under way are served by the next, since
that one began before they asked.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.errors import InDoubtError, JournalOlderError, PenstockError, RetryableError
from penstock.ports.clock import Clock
from penstock.ports.journal import Journal, JournalHead


@dataclass(frozen=True, slots=True)
class HeadReading:
    """A head, and this agent's wall clock right before and after it was read, ms."""

    head: JournalHead
    before_ms: int
    after_ms: int


@dataclass(slots=True)
class _Round:
    """Callers that share one reading; `began_s`: monotonic time before it."""

    target: int
    began_s: float
    askers: list["asyncio.Future[None]"]


class ConfirmedHeads:
    """Reads heads for those who ask, and every `interval_s` without being asked."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        interval_s: float,
        position: Callable[[], int],
        is_same: Callable[[], bool],
        wanted: Callable[[], None],
        answered: Callable[[RetryableError | None], None],
        on_reading: Callable[[HeadReading], None],
    ) -> None:
        """
        Args:
            position: the last one that is applied and delivered here.
            is_same: whether the journal is known to hold what is applied here. Nothing is confirmed
                before; the caller that finds it out calls `moved`.
            wanted: called when the replica is to reach a head soon.
            answered: called after each read of the journal, with its error or None.
            on_reading: called with each reading.
        """
        self._journal = journal
        self._clock = clock
        self._interval_s = interval_s
        self._position = position
        self._is_same = is_same
        self._wanted = wanted
        self._answered = answered
        self._on_reading = on_reading
        self._askers: list[asyncio.Future[None]] = []
        self._asked = asyncio.Event()
        self._rounds: deque[_Round] = deque()
        self._failure: PenstockError | None = None
        self.confirmed_s = float("-inf")
        """Monotonic time before the last reading up to which this replica has applied."""

    async def confirm(self, timeout_s: float) -> None:
        """Return once the replica is at a head that was read after this call.

        Raises:
            RetryableError: the journal does not answer, or not in time.
            PenstockError: this replica follows no more.
        """
        if self._failure is not None:
            raise self._failure
        asker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._askers.append(asker)
        self._asked.set()
        try:
            async with asyncio.timeout(timeout_s):
                await asker
        except TimeoutError as error:
            raise RetryableError(
                "confirm head", "journal", f"position {self._position()} after {timeout_s} s"
            ) from error

    @property
    def awaited(self) -> bool:
        """A caller waits for the replica to reach a head."""
        return any(round_.askers for round_ in self._rounds)

    def moved(self, position: int) -> None:
        """The replica has reached a position: answer those who wait for it."""
        while self._is_same() and self._rounds and self._rounds[0].target <= position:
            self._confirm(self._rounds.popleft())

    def read_all(self, began_s: float) -> None:
        """A read that began at `began_s` found nothing that is not applied: as good as a head,
        unless the journal was doubted since."""
        if self._is_same():
            self.confirmed_s = max(self.confirmed_s, began_s)

    def fail(self, error: PenstockError) -> None:
        """Nothing will be confirmed any more; the first reason stays."""
        self._failure = self._failure or error
        waiting = self._askers
        self._askers = []
        for round_ in self._rounds:
            waiting += round_.askers
        self._rounds.clear()
        for asker in waiting:
            _refuse(asker, error)

    async def run(self) -> None:
        """Read heads until cancelled.

        Raises:
            JournalOlderError: the head is before what is applied here.
        """
        while True:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._asked.wait()
            except TimeoutError:
                pass
            self._asked.clear()
            askers, self._askers = self._askers, []
            try:
                await self._read(askers)
            except RetryableError as error:
                self._answered(error)
                for asker in askers:
                    _refuse(asker, error)
            except PenstockError as error:
                # As it is: who opens a replica must learn that it is to be dropped.
                for asker in askers:
                    _refuse(asker, error)
                raise
            except BaseException as error:
                for asker in askers:
                    _refuse(asker, InDoubtError("confirm head", "journal", str(error)))
                raise

    async def _read(self, askers: "list[asyncio.Future[None]]") -> None:
        position = self._position()
        began_s = self._clock.monotonic_s()
        before_ms = self._clock.now_ms()
        head = await self._journal.head()
        reading = HeadReading(head, before_ms, self._clock.now_ms())
        if head.position < position:
            raise journal_older(position, f"its head is {head.position}")
        self._answered(None)
        self._on_reading(reading)
        self._rounds.append(_Round(head.position, began_s, askers))
        self.moved(self._position())
        if self._rounds:
            self._wanted()

    def _confirm(self, round_: _Round) -> None:
        self.confirmed_s = max(self.confirmed_s, round_.began_s)
        for asker in round_.askers:
            if not asker.done():
                asker.set_result(None)


def journal_older(position: int, found: str) -> JournalOlderError:
    """The error of a journal that lost what was applied."""
    return JournalOlderError(
        "follow journal",
        f"position {position}",
        f"the journal came back older: {found}, and {position} is applied here",
        "nothing is served from this replica; the next start sets it aside and makes another",
    )


def _refuse(asker: "asyncio.Future[None]", error: PenstockError) -> None:
    if not asker.done():
        asker.set_exception(error)
        # The caller may have gone away meanwhile: the loop's handler needn't hear of the error.
        asker.exception()
