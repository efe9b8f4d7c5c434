"""An environment's database follows the order that a shard gives, and its writes get their answers.

It has the interface of `writer.Writer`, whose place it takes where instances share a journal. Small
entries are applied on the event loop: nothing is synced, and a hop between threads takes longer.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final

from penstock.authz.service.shard import WRITE_WAIT_S, Shard
from penstock.authz.state import entries
from penstock.authz.state.entries import DirectoryCommand, EnvironmentCommand, Outcome
from penstock.authz.state.shard import Streamed
from penstock.authz.state.shard_entries import Placed
from penstock.model.errors import InDoubtError, PenstockError, RetryableError, StorageFullError
from penstock.replica.applied import Applied
from penstock.replica.replica import Replica
from penstock.replica.upkeep import Upkeep
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

INLINE_BYTES_MAX: Final = 4_096
"""Entries of fewer bytes are applied on the event loop."""
BATCH_ENTRIES: Final = 128
FULL_AGAIN_S: Final = 1.0
"""How long to wait before a full disk is tried again."""
_OUTCOMES_KEPT: Final = 1_024

_Batch = list[tuple[Streamed, bool]]
_Followed = tuple[list[Applied[list[Outcome]]], RetryableError | None]


class StreamFollower:
    """Implements `Writing` and `Fed`. Event loop only.

    Args:
        executor: has the work of large entries, one call of this follower at a time.
        applied: is called with each entry once readers of the database see it, before its answers
            are given out.
        failed: is called when nothing can be applied any more.
        upkeep: is called by the executor after each checkpoint.
    """

    def __init__(
        self,
        shard: Shard,
        name: str,
        replica: Replica[list[Outcome]],
        *,
        executor: Executor,
        applied: Callable[[Applied[list[Outcome]], list[EnvironmentCommand]], None],
        failed: Callable[[PenstockError], None],
        upkeep: Callable[[], None] = lambda: None,
    ) -> None:
        self._shard = shard
        self._name = name
        self._replica = replica
        self._executor = executor
        self._applied = applied
        self._failed = failed
        self._upkeep = Upkeep(
            replica,
            executor,
            failed=failed,
            then=upkeep,
            stored=lambda position: shard.stored(name, position),
        )
        self._queue: deque[tuple[Streamed, bool]] = deque()
        self._running: asyncio.Future[_Followed] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._submitted_count = 0
        self._is_closed = False
        self._fed = replica.position
        """The last position that is applied or queued."""
        self._delivered = replica.position
        """The last position that readers have taken over."""
        self._outcomes: OrderedDict[int, list[Outcome]] = OrderedDict()
        """Outcomes of this instance's entries, by position, until their writers have read them."""
        self._waiting: dict[int, list[asyncio.Future[list[Outcome]]]] = {}
        shard.attach(name, self)
        self._upkeep.look()

    # -- as a writer -----------------------------------------------------------------------------

    def submit(self, command: EnvironmentCommand, *, weight: int = 1) -> asyncio.Future[Outcome]:  # noqa: ARG002
        """See `Writing`."""
        return asyncio.get_running_loop().create_task(self._submitted(command))

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and nothing is under way."""
        return not (
            self._queue
            or self._running is not None
            or not self._upkeep.is_idle
            or self._submitted_count
        )

    async def close(self) -> None:
        """Apply no more. What is left is pending in the shard's database."""
        self._end()
        if self._running is not None:
            await asyncio.wait([self._running])
        await self._upkeep.wait()

    def close_idle(self) -> None:
        """Apply no more, while nothing is under way; what is applied is made durable."""
        self._end()
        self._shard.stored(self._name, self._replica.sync())

    async def _submitted(self, command: EnvironmentCommand) -> Outcome:
        self._submitted_count += 1
        try:
            answer = await self._shard.order(self._name, command)
            if not isinstance(answer, Placed):
                return answer
            outcomes = await self._outcome(answer.position)
            return outcomes[answer.place]
        finally:
            self._submitted_count -= 1

    async def _outcome(self, position: int) -> list[Outcome]:
        known = self._outcomes.get(position)
        if known is not None:
            return known
        detail = f"entry {position} is applied, and its outcome isn't known here any more"
        if position > self._delivered and not self._is_closed:
            future: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(position, [])
            waiting.append(future)
            try:
                async with asyncio.timeout(WRITE_WAIT_S):
                    return await future
            except TimeoutError:
                detail = f"entry {position} is in the journal, and isn't applied here yet"
            finally:
                waiting.remove(future)
                if not waiting and self._waiting.get(position) is waiting:
                    del self._waiting[position]
        raise self._in_doubt(detail)

    def _in_doubt(self, detail: str) -> InDoubtError:
        return InDoubtError("write", f"environment {self._name}", detail, "read it, or try again")

    # -- following -------------------------------------------------------------------------------

    def feed(self, streamed: Streamed, *, is_own: bool) -> None:
        """See `Fed`."""
        if streamed.position <= self._fed:
            # The shard committed it before the database was opened, which has caught up with it.
            return
        self._fed = streamed.position
        self._queue.append((streamed, is_own))
        if self._running is None and self._again is None:
            self._next()

    def _next(self) -> None:
        """Apply what is queued: here while it is little."""
        while self._queue and self._running is None and self._again is None:
            batch: _Batch = []
            size = 0
            for streamed, is_own in self._queue:
                batch.append((streamed, is_own))
                size += len(streamed.body)
                if streamed.is_alone or len(batch) == BATCH_ENTRIES:
                    break
            if size <= INLINE_BYTES_MAX and not self._replica.is_busy:
                try:
                    followed = self._apply(batch)
                except PenstockError as error:
                    self._fail(error)
                    return
                self._deliver(batch, followed)
            else:
                loop = asyncio.get_running_loop()
                self._running = loop.run_in_executor(self._executor, self._apply, batch)
                self._running.add_done_callback(partial(self._ran, batch))

    def _apply(self, batch: _Batch) -> _Followed:
        """Apply entries and commit them. What was applied stays so, also where the disk is full."""
        followed: list[Applied[list[Outcome]]] = []
        replica = self._replica
        try:
            for streamed, _ in batch:
                followed.append(
                    replica.apply(
                        streamed.body, stamp_ms=streamed.time_ms, position=streamed.position
                    )
                )
            replica.commit()
        except StorageFullError as error:
            return followed, error
        return followed, None

    def _ran(self, batch: _Batch, done: "asyncio.Future[_Followed]") -> None:
        self._running = None
        error = done.exception()
        if isinstance(error, PenstockError):
            self._fail(error)
        elif error is not None:
            raise error
        elif not self._is_closed:
            self._deliver(batch, done.result())
            self._next()

    def _deliver(self, batch: _Batch, found: _Followed) -> None:
        followed, full = found
        if full is not None:
            # Applied, perhaps, and not seen by readers before it is committed.
            self._wait_for_space(full, followed)
            return
        for (streamed, is_own), applied in zip(batch, followed, strict=False):
            self._queue.popleft()
            commands: list[EnvironmentCommand] = []
            if streamed.is_alone:
                commands = list(entries.decode(streamed.body).commands)  # type: ignore[arg-type]
            self._applied(applied, commands)
            self._delivered = applied.position
            if is_own:
                self._keep(applied)
        self._upkeep.look()

    def _wait_for_space(self, full: RetryableError, followed: list[Applied[list[Outcome]]]) -> None:
        heard(Cause.DATABASE_FULL, full, logger, f"environment {self._name} waits for space")
        again = partial(self._try_again, followed)
        self._again = asyncio.get_running_loop().call_later(FULL_AGAIN_S, again)

    def _try_again(self, followed: list[Applied[list[Outcome]]]) -> None:
        self._again = None
        try:
            self._replica.commit()
        except StorageFullError as error:
            self._wait_for_space(error, followed)
        except PenstockError as error:
            self._fail(error)
        else:
            self._deliver(list(self._queue)[: len(followed)], (followed, None))
            self._next()

    def _keep(self, applied: Applied[list[Outcome]]) -> None:
        self._outcomes[applied.position] = applied.outcome
        if len(self._outcomes) > _OUTCOMES_KEPT:
            self._outcomes.popitem(last=False)
        for future in self._waiting.get(applied.position, ()):
            if not future.done():
                future.set_result(applied.outcome)

    def _fail(self, error: PenstockError) -> None:
        """Nothing more can be applied: what this copy holds from here on is unknown."""
        self._end()
        self._failed(error)

    def _end(self) -> None:
        """Apply nothing more, and let nothing wait for it."""
        self._is_closed = True
        self._shard.detach(self._name)
        self._queue.clear()
        if self._again is not None:
            self._again.cancel()
            self._again = None
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    detail = "its entry is in the journal, and this instance ends"
                    future.set_exception(self._in_doubt(detail))


class SharedDirectoryWriter:
    """Implements `Writing` for the directory, whose tables the shard's own database has."""

    def __init__(self, shard: Shard, changed: Callable[[], None]) -> None:
        self._shard = shard
        self._submitted: set[asyncio.Task[Outcome]] = set()
        shard.on_directory = changed

    def submit(self, command: DirectoryCommand, *, weight: int = 1) -> asyncio.Future[Outcome]:  # noqa: ARG002
        """See `Writing`."""
        task = asyncio.get_running_loop().create_task(self._order(command))
        self._submitted.add(task)
        task.add_done_callback(self._submitted.discard)
        return task

    @property
    def is_idle(self) -> bool:
        """See `Writing`."""
        return not self._submitted

    async def close(self) -> None:
        """See `Writing`."""
        self.close_idle()
        if self._submitted:
            await asyncio.wait(self._submitted)

    def close_idle(self) -> None:
        """See `Writing`."""
        self._shard.on_directory = lambda: None

    async def _order(self, command: DirectoryCommand) -> Outcome:
        answer = await self._shard.order("", command)
        assert not isinstance(answer, Placed), command
        return answer
