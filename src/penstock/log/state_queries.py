"""A log asks the state, whose database may lack the entries that were applied last.

An agent of a cluster has a replica, which holds all that is known here. The agent that writes its
own journal commits to its database later than it answers. A worker that reads another worker's
database asks that worker for a commit.
"""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final, Protocol

from penstock.model.errors import RetryableError, StorageFullError
from penstock.state.orders import LocalJournal
from penstock.state.read.queries import Queries
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

WAIT_MAX_S: Final = 10.0
"""A process that ends must not wait for a thread that waits for another process."""


class StateQueries(Protocol):
    """Connections to the database of the state."""

    def __call__(self) -> Queries:
        """Return the calling thread's own read-only connection."""
        ...

    def caught_up(self) -> Queries:
        """Return the calling thread's connection, which finds all that was applied before the call.

        What decides by it which bytes of a WAL are still needed has to find every run: one that it
        misses would be written over. Call it on threads of the pool, never on the event loop.

        Raises:
            RetryableError: the process that writes the database is away.
        """
        ...

    @property
    def is_behind(self) -> bool:
        """Whether the database may lack something that was applied here."""
        ...

    async def flush(self) -> None:
        """Let queries find all that was applied before the call.

        Raises:
            RetryableError: the process that writes the database is away, or has no space.
        """
        ...


class ReplicaQueries:
    """Queries of an agent's replica, which is committed before anything is delivered."""

    is_behind = False

    def __init__(self, queries: Callable[[], Queries]) -> None:
        self._queries = queries

    def __call__(self) -> Queries:
        """See `StateQueries`."""
        return self._queries()

    def caught_up(self) -> Queries:
        """See `StateQueries`."""
        return self._queries()

    async def flush(self) -> None:
        """See `StateQueries`. Nothing is behind."""


class OwnQueries:
    """Queries of the database that belongs to an agent's own journal."""

    def __init__(
        self, queries: Callable[[], Queries], journal: LocalJournal, pool: Executor
    ) -> None:
        self._queries = queries
        self._journal = journal
        self._pool = pool

    def __call__(self) -> Queries:
        """See `StateQueries`."""
        return self._queries()

    def caught_up(self) -> Queries:
        """See `StateQueries`. Where there is no space the last entries are left out."""
        if self.is_behind:
            try:
                self._journal.commit()
            except StorageFullError as error:
                heard(Cause.DATABASE_FULL, error, logger, "queries find what was before")
        return self._queries()

    @property
    def is_behind(self) -> bool:
        """See `StateQueries`."""
        return self._journal.uncommitted_count > 0

    async def flush(self) -> None:
        """See `StateQueries`. Raises: StorageFullError."""
        if self.is_behind:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._journal.commit)


class SharedQueries:
    """Queries of a database that another process writes."""

    def __init__(
        self,
        queries: Callable[[], Queries],
        *,
        position: Callable[[], int],
        flush: Callable[[], Awaitable[int]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """
        Args:
            position: gives the last entry that is known here.
            flush: has the writer commit, and gives the position of the database then.
            loop: the event loop of `flush`.
        """
        self._queries = queries
        self._position = position
        self._flush = flush
        self._loop = loop
        self._flushed_position = 0
        self._lock = threading.Lock()
        self._asked: set[concurrent.futures.Future[RetryableError | None]] = set()
        """Flushes that threads wait for. Under the lock."""
        self._is_closed = False

    def __call__(self) -> Queries:
        """See `StateQueries`."""
        return self._queries()

    def caught_up(self) -> Queries:
        """See `StateQueries`."""
        if self.is_behind:
            error = self._ask_flush()
            if error is not None:
                raise error
        return self._queries()

    @property
    def is_behind(self) -> bool:
        """See `StateQueries`."""
        return self._position() > self._flushed_position

    async def flush(self) -> None:
        """See `StateQueries`."""
        if self.is_behind:
            self._flushed_position = await self._flush()

    def close(self) -> None:
        """Let go of the threads that wait, now and later: the event loop is about to wait for them.

        Nothing reaches the writer any more. Event loop only.
        """
        with self._lock:
            self._is_closed = True
            asked = list(self._asked)
        for flushed in asked:
            flushed.cancel()

    def _ask_flush(self) -> RetryableError | None:
        with self._lock:
            if self._is_closed:
                return _away()
            flushed = asyncio.run_coroutine_threadsafe(self._try_flush(), self._loop)
            self._asked.add(flushed)
        try:
            return flushed.result(WAIT_MAX_S)
        except (TimeoutError, concurrent.futures.CancelledError):
            flushed.cancel()
            return _away()
        finally:
            with self._lock:
                self._asked.discard(flushed)

    async def _try_flush(self) -> RetryableError | None:
        # The error is the answer: a thread that waits no longer would leave it unheard.
        try:
            await self.flush()
        except RetryableError as error:
            return error
        return None


def _away() -> RetryableError:
    return RetryableError("query", "metadata", "its writer is away")
