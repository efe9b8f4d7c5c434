"""A WAL's next file, made before it is needed."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from penstock.model.errors import PenstockError, StorageFullError
from penstock.system.heard import Cause, heard
from penstock.wal import WalWriter

logger = logging.getLogger(__name__)


class SpareFile:
    """Has the pool make a spare file whenever a writer needs one. Event loop only."""

    def __init__(
        self, writer: WalWriter, pool: Executor, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._writer = writer
        self._pool = pool
        self._on_fatal = on_fatal
        self._making: asyncio.Future[None] | None = None

    def prepare(self) -> None:
        """Begin to make a spare file, if one is needed."""
        if (self._making is None or self._making.done()) and self._writer.needs_spare():
            self._making = asyncio.get_running_loop().run_in_executor(self._pool, self._make)

    async def close(self) -> None:
        """Wait for the file that is being made."""
        if self._making is not None:
            await asyncio.gather(self._making, return_exceptions=True)

    def _make(self) -> None:
        try:
            self._writer.prepare_spare()
        except StorageFullError as error:
            # The writer makes its own file, or finds the WAL full and says so.
            heard(Cause.WAL_SPACE, error, logger, "no spare WAL file")
        except PenstockError as error:
            self._on_fatal(error)
