"""Checkpoints of a database, in an executor, one at a time, whenever one is due."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from penstock.model.errors import PenstockError, RetryableError
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)


class Checkpointed(Protocol):
    """The part of a replica that is needed, or of an order that has one."""

    @property
    def checkpoint_due(self) -> bool:
        """Enough was written that a checkpoint is worth its syncs."""
        ...

    def checkpoint(self) -> int:
        """See `Replica.checkpoint`."""
        ...


class Upkeep:
    """Event loop only.

    Args:
        failed: is called when nothing can be written any more.
        then: is called by the executor after each checkpoint.
        stored: is called with the position up to which a power cut takes nothing any more.
        ended: is called once none is under way any more.
    """

    def __init__(
        self,
        database: Checkpointed,
        executor: Executor,
        *,
        failed: Callable[[PenstockError], None],
        then: Callable[[], None] = lambda: None,
        stored: Callable[[int], None] = lambda _: None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._executor = executor
        self._failed = failed
        self._then = then
        self._stored = stored
        self._ended = ended
        self._running: asyncio.Future[int] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no checkpoint is under way."""
        return self._running is None

    def look(self) -> None:
        """Begin a checkpoint if one is due."""
        if self._database.checkpoint_due and self._running is None:
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._executor, self._maintain)
            self._running.add_done_callback(self._done)

    async def wait(self) -> None:
        """Wait for the one that is under way."""
        if self._running is not None:
            await asyncio.wait([self._running])

    def _maintain(self) -> int:
        position = self._database.checkpoint()
        self._then()
        return position

    def _done(self, ended: "asyncio.Future[int]") -> None:
        self._running = None
        error = ended.exception()
        if isinstance(error, RetryableError):
            saying = "no checkpoint, or no snapshot, of a database"
            heard(Cause.DATABASE_FULL, error, logger, saying)
        elif isinstance(error, PenstockError):
            self._failed(error)
        elif error is not None:
            raise error
        else:
            self._stored(ended.result())
        self._ended()
