"""Upkeep of the journal's file: checkpoints, snapshots, and trimming behind them.

Off the commit lane, in the pool. A snapshot is written beside the database, verified, put into
the store, and only then may the journal be trimmed behind the one before it.
"""

import asyncio
import logging
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol

from penstock.log.limits import LogLimits
from penstock.model.errors import FatalStorageError, PenstockError
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.replica.snapshot import SnapshotInfo

logger = logging.getLogger(__name__)

SNAPSHOTS_PREFIX: Final = "snapshots/"
_KEPT: Final = 2
_CHECK_S: Final = 1.0


class Journal(Protocol):
    """What upkeep asks of `penstock.metadata.order.Order`; any thread."""

    @property
    def position(self) -> int: ...
    @property
    def checkpoint_due(self) -> bool: ...
    def checkpoint(self) -> None:
        """Move committed pages from SQLite's WAL into the database file."""
        ...

    def snapshot(self, target: Path) -> SnapshotInfo:
        """Write a verified snapshot."""
        ...

    def trim_journal(self, snapshot: SnapshotInfo) -> int:
        """Delete some entries behind the snapshot before this one; 0 when there are none."""
        ...


class Upkeep:
    """One task on the event loop.

    Args:
        scratch: a folder for the snapshot on its way to the store.
        on_fatal: called when a checkpoint's sync failed.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        store: ObjectStore,
        scratch: Path,
        clock: Clock,
        pool: Executor,
        limits: LogLimits,
        on_fatal: "OnFatal",
    ) -> None:
        self._journal = journal
        self._store = store
        self._scratch = scratch
        self._clock = clock
        self._pool = pool
        self._limits = limits
        self._on_fatal = on_fatal
        self._task: asyncio.Task[None] | None = None
        self._snapshot_position = journal.position
        self._snapshot_s = clock.monotonic_s()

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="upkeep")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_CHECK_S)
            try:
                if self._journal.checkpoint_due:
                    await loop.run_in_executor(self._pool, self._journal.checkpoint)
                if self._snapshot_is_due():
                    await self.snapshot()
            except FatalStorageError as error:
                self._on_fatal(error)
                return
            except PenstockError as error:
                logger.warning("upkeep will be tried again: %s", error)
                await asyncio.sleep(10 * _CHECK_S)

    def _snapshot_is_due(self) -> bool:
        entries = self._journal.position - self._snapshot_position
        age_ms = (self._clock.monotonic_s() - self._snapshot_s) * 1000
        return entries >= self._limits.snapshot_entries or (
            entries > 0 and age_ms >= self._limits.snapshot_interval_ms
        )

    async def snapshot(self) -> SnapshotInfo:
        """Write a snapshot to the store, trim the journal behind the one before it."""
        loop = asyncio.get_running_loop()
        self._scratch.mkdir(parents=True, exist_ok=True)
        target = self._scratch / "upkeep-snapshot.sqlite"
        info = await loop.run_in_executor(self._pool, self._journal.snapshot, target)
        try:
            data = await loop.run_in_executor(self._pool, target.read_bytes)
            await self._store.put(snapshot_key(info.position), [data])
        finally:
            target.unlink(missing_ok=True)
        while await loop.run_in_executor(self._pool, self._journal.trim_journal, info):
            await asyncio.sleep(0)
        self._snapshot_position = info.position
        self._snapshot_s = self._clock.monotonic_s()
        await self._delete_old()
        return info

    async def _delete_old(self) -> None:
        keys = [stored.key async for stored in self._store.list(SNAPSHOTS_PREFIX)]
        if len(keys) > _KEPT:
            await self._store.delete(sorted(keys)[:-_KEPT])


class OnFatal(Protocol):
    """Ends the process."""

    def __call__(self, error: BaseException, /) -> None: ...


def snapshot_key(position: int) -> str:
    """The key of the snapshot at a position; keys sort by position."""
    return f"{SNAPSHOTS_PREFIX}{position:020d}.sqlite"
