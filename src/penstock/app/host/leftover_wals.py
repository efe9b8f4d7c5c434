"""Worker 0 empties WALs of workers that the host no longer has, and serves their records
meanwhile."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.log.layout import DataLayout
from penstock.log.wals.names import read_wal_id
from penstock.model.errors import ConflictError, PenstockError
from penstock.ports.device import Device
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.system.files import PosixDevice
from penstock.system.heard import Cause, heard
from penstock.system.lock import DirectoryLock

logger = logging.getLogger(__name__)


def has_had_workers(layout: DataLayout) -> bool:
    """Whether several workers have served a data directory, or the one that it was restored from.
    Then WALs of other workers may hold records, and groups have owners."""
    if layout.workers():
        return True
    if not layout.metadata.is_file():
        return False
    try:
        with closing(Queries(layout.metadata)) as queries:
            return bool(queries.wals() or queries.shards())
    except PenstockError:
        return False  # opening the directory says what is wrong


@dataclass(slots=True, kw_only=True)
class LeftoverWals:
    """See the module. `run_once` is a job.

    Args:
        count: the number of workers that the host has now.
        me: the id of the agent that empties.
        take_over: moves the records in a directory's WAL to the store; returns their bytes.
    """

    layout: DataLayout
    count: int
    me: int
    view: StateView
    queries: Callable[[], Queries]
    take_over: Callable[[Device], Awaitable[int]]

    async def run_once(self) -> None:
        """Empty the leftover WALs, one after the other. A WAL whose process still runs, or whose
        agent isn't fenced yet, is left to the next run."""
        for folder in self.layout.workers():
            if int(folder.name) >= self.count:
                try:
                    await self._empty(folder)
                except ConflictError as error:
                    saying = f"the WAL in {folder} is not taken over yet"
                    heard(Cause.TAKEOVER, error, logger, saying, logging.INFO)
                except PenstockError as error:
                    saying = f"the WAL in {folder} is not taken over yet"
                    heard(Cause.TAKEOVER, error, logger, saying)

    async def _empty(self, folder: Path) -> None:
        device = PosixDevice(folder)
        if not self._is_to_be_had(read_wal_id(device)):
            return
        with DirectoryLock.acquire(folder):
            moved = await self.take_over(device)
        logger.info("moved %d bytes of records out of the WAL in %s", moved, folder)

    def _is_to_be_had(self, wal_id: bytes | None) -> bool:
        queries = self.queries()
        for wal in queries.wals():
            if wal.wal_id == wal_id and queries.wal_generations(wal.wal_key):
                owner = self.view.agent(wal.agent)
                return wal.agent == self.me or owner is None or not owner.live
        return False
