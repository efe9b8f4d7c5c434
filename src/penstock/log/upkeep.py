"""Upkeep of the journal's file: checkpoints, snapshots, and trimming behind them.

Off the commit lane, in the pool. A snapshot is written beside the database, verified, put into
the store, and only then may the journal be trimmed behind the one before it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from penstock.log.limits import LogLimits
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.replica.snapshot import SnapshotInfo

T = TypeVar("T")

SNAPSHOTS_PREFIX: Final = "snapshots/"
_KEPT: Final = 2


class Journal(Protocol):
    """What upkeep asks of `penstock.metadata.order.Order`; any thread."""

    @property
    def position(self) -> int:
        """The last entry's position."""
        ...

    @property
    def checkpoint_due(self) -> bool:
        """Whether a checkpoint is worth its syncs."""
        ...

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
    """Does what is due each time that `run_once` is called.

    Args:
        scratch: a folder for the snapshot on its way to the store.
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
    ) -> None:
        self._journal = journal
        self._store = store
        self._scratch = scratch
        self._clock = clock
        self._pool = pool
        self._limits = limits
        self._snapshot_position = journal.position
        self._snapshot_s = clock.monotonic_s()

    async def run_once(self) -> None:
        """Do what is due.

        Raises:
            FatalStorageError: a checkpoint's sync failed: the process must end.
            PenstockError: to be tried again.
        """
        if self._journal.checkpoint_due:
            await self._in_pool(self._journal.checkpoint)
        if self._snapshot_is_due():
            await self.snapshot()

    def _snapshot_is_due(self) -> bool:
        entries = self._journal.position - self._snapshot_position
        age_ms = (self._clock.monotonic_s() - self._snapshot_s) * 1000
        return entries >= self._limits.snapshot_entries or (
            entries > 0 and age_ms >= self._limits.snapshot_interval_ms
        )

    async def snapshot(self) -> SnapshotInfo:
        """Write a snapshot to the store, trim the journal behind the one before it."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        target = self._scratch / "upkeep-snapshot.sqlite"
        info = await self._in_pool(lambda: self._journal.snapshot(target))
        try:
            data = await self._in_pool(target.read_bytes)
            await self._store.put(snapshot_key(info.position), [data])
        finally:
            target.unlink(missing_ok=True)
        while await self._in_pool(lambda: self._journal.trim_journal(info)):
            pass  # bounded pieces, so that commits go on in between
        self._snapshot_position = info.position
        self._snapshot_s = self._clock.monotonic_s()
        await self._delete_old()
        return info

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _delete_old(self) -> None:
        keys = [stored.key async for stored in self._store.list(SNAPSHOTS_PREFIX)]
        if len(keys) > _KEPT:
            await self._store.delete(sorted(keys)[:-_KEPT])


def snapshot_key(position: int) -> str:
    """The key of the snapshot at a position; keys sort by position."""
    return f"{SNAPSHOTS_PREFIX}{position:020d}.sqlite"
