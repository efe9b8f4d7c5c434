"""Writes of one database: all that wait go into the next entry, one sync for all of them.

A command that changes the policy is an entry of its own, and the next entry waits until readers
have taken over what it changed: between two policies no facts change.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Generic, Protocol, TypeVar

from penstock.authz.state import entries
from penstock.authz.state.entries import Outcome
from penstock.model.errors import OverloadedError, PenstockError, RetryableError
from penstock.ports.clock import Clock
from penstock.replica.applied import Applied
from penstock.replica.replica import Replica
from penstock.replica.upkeep import Upkeep

COMMANDS_MAX: Final = 1_000
CHANGES_MAX: Final = 10_000
"""Changes of one entry; a command that has more is alone in its own."""
WAITING_MAX: Final = 10_000

CommandT = TypeVar("CommandT", bound=entries.Command)
CommandT_contra = TypeVar("CommandT_contra", bound=entries.Command, contravariant=True)


class Writing(Protocol[CommandT_contra]):
    """Takes commands to one database's journal: its own, or one that instances share."""

    def submit(self, command: CommandT_contra, *, weight: int = 1) -> asyncio.Future[Outcome]:
        """Write a command; its answer comes once it is durable, and applied here.

        Args:
            weight: about how many changes it has.
        Raises (by the future):
            RetryableError: nothing changed.
            InDoubtError: no answer in time; it may still be applied.
            FatalStorageError: what is durable is unknown.
        """
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is under way."""
        ...

    async def close(self) -> None:
        """Take nothing more, and end what is under way."""
        ...

    def close_idle(self) -> None:
        """Take nothing more, while nothing is under way."""
        ...


class Writer(Generic[CommandT]):
    """Implements `Writing` on the database's own journal. Event loop only.

    Args:
        environment: what its entries name.
        executor: has the disk's work, one call of this writer at a time.
        applied: is called with each entry before its answers are given out.
        is_alone: whether a command is an entry of its own.
        failed: is called when nothing can be written any more.
        upkeep: is called by the executor after each checkpoint.
    """

    def __init__(
        self,
        replica: Replica[list[Outcome]],
        environment: str,
        *,
        executor: Executor,
        clock: Clock,
        applied: Callable[[Applied[list[Outcome]], list[CommandT]], None],
        is_alone: Callable[[CommandT], bool],
        failed: Callable[[PenstockError], None],
        upkeep: Callable[[], None] = lambda: None,
    ) -> None:
        self._replica = replica
        self._environment = environment
        self._executor = executor
        self._clock = clock
        self._applied = applied
        self._is_alone = is_alone
        self._failed = failed
        self._upkeep = Upkeep(replica, executor, failed=failed, then=upkeep, ended=self._rest)
        self._waiting: deque[tuple[CommandT, int, asyncio.Future[Outcome]]] = deque()
        self._running: asyncio.Future[Applied[list[Outcome]]] | None = None
        self._is_closed = False
        self._idle: asyncio.Future[None] | None = None

    def submit(self, command: CommandT, *, weight: int = 1) -> asyncio.Future[Outcome]:
        """See `Writing`."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_exception(RetryableError("write", self._subject, "the server is stopping"))
        elif len(self._waiting) >= WAITING_MAX:
            detail = f"{WAITING_MAX:,} writes are waiting"
            future.set_exception(OverloadedError("write", self._subject, detail, "try again"))
        else:
            self._waiting.append((command, weight, future))
            if self._running is None:
                # Not at once: what the same turn of the event loop brings shares the sync.
                asyncio.get_running_loop().call_soon(self._next)
        return future

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is under way."""
        return self._running is None and self._upkeep.is_idle and not self._waiting

    async def close(self) -> None:
        """Write what waits, and take nothing more."""
        self._is_closed = True
        if not self.is_idle:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def close_idle(self) -> None:
        """See `Writing`."""
        self._is_closed = True

    @property
    def _subject(self) -> str:
        return f"environment {self._environment}" if self._environment else "the directory"

    def _next(self) -> None:
        if self._running is not None:
            return
        taken: list[tuple[CommandT, asyncio.Future[Outcome]]] = []
        weights = 0
        while self._waiting and len(taken) < COMMANDS_MAX:
            command, weight, future = self._waiting[0]
            is_alone = self._is_alone(command)
            if taken and (is_alone or weights + weight > CHANGES_MAX):
                break
            self._waiting.popleft()
            taken.append((command, future))
            weights += weight
            if is_alone:
                break
        if not taken:
            self._rest()
            return
        commands = [command for command, _ in taken]
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._executor, self._append, commands)
        self._running = running
        running.add_done_callback(lambda done: self._done(done, taken))

    def _append(self, commands: list[CommandT]) -> Applied[list[Outcome]]:
        entry = entries.Entry(self._environment, tuple(commands))
        body = entries.encode(entry)
        return self._replica.append(body, stamp_ms=self._clock.now_ms())

    def _done(
        self,
        running: "asyncio.Future[Applied[list[Outcome]]]",
        taken: list[tuple[CommandT, "asyncio.Future[Outcome]"]],
    ) -> None:
        self._running = None
        error = running.exception()
        if error is None:
            applied = running.result()
            self._applied(applied, [command for command, _ in taken])
            for (_, future), outcome in zip(taken, applied.outcome, strict=True):
                if not future.done():
                    future.set_result(outcome)
        else:
            if isinstance(error, PenstockError) and not isinstance(error, RetryableError):
                self._failed(error)
            for _, future in taken:
                if not future.done():
                    future.set_exception(error)
        self._next()
        if error is None:
            self._upkeep.look()

    def _rest(self) -> None:
        if self.is_idle and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
