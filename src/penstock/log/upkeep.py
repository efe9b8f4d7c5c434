"""Upkeep of the journal's file: checkpoints, snapshots, and trimming behind them.

Off the commit lane, in the pool. A snapshot is written beside the database, verified, put into
the store, and only then may the journal be trimmed behind the one before it.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from typing_extensions import Buffer

from penstock.log.limits import LogLimits
from penstock.model.errors import ConflictError, CorruptDataError, NotFoundError
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.replica.snapshot import SnapshotInfo, verify_snapshot

logger = logging.getLogger(__name__)

T = TypeVar("T")

SNAPSHOTS_PREFIX: Final = "snapshots/"
_KEPT: Final = 2
_RETRY_S: Final = 60.0


class Journal(Protocol):
    """What upkeep asks of `penstock.metadata.order.Order`; any thread."""

    @property
    def position(self) -> int:
        """The last entry's position."""
        ...

    @property
    def base_position(self) -> int:
        """The least position of a snapshot that can be made into this state again; 0: none is
        needed."""
        ...

    @property
    def checkpoint_due(self) -> bool:
        """Whether a checkpoint is worth its syncs."""
        ...

    def checkpoint(self) -> int:
        """Make the database durable and move SQLite's WAL into its file."""
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
        self._started_s = clock.monotonic_s()
        self._last: _Last | None = None
        self._not_before_s = self._started_s

    async def run_once(self) -> None:
        """Do what is due.

        Raises:
            FatalStorageError: a checkpoint's sync failed: the process must end.
            PenstockError: to be tried again.
        """
        if self._journal.checkpoint_due:
            await self._in_pool(self._journal.checkpoint)
        if self._last is None:
            self._last = await self._find_last()
        now_s = self._clock.monotonic_s()
        if now_s >= self._not_before_s and self._snapshot_is_due(self._last, now_s):
            # One that fails wrote much for nothing: not again at once.
            self._not_before_s = now_s + _RETRY_S
            await self.snapshot()

    def _snapshot_is_due(self, last: "_Last", now_s: float) -> bool:
        if last.position < self._journal.base_position:
            # Of an older release, restored, or with a hole: until there is one, a lost database
            # can't be made again.
            return True
        entries = self._journal.position - last.position
        age_ms = (now_s - last.made_s) * 1000
        return entries >= self._limits.snapshot_entries or (
            entries > 0 and age_ms >= self._limits.snapshot_interval_ms
        )

    async def snapshot(self) -> SnapshotInfo:
        """Write a snapshot to the store, trim the journal behind the one before it.

        Raises:
            PenstockError: nothing was trimmed; to be tried again.
        """
        self._scratch.mkdir(parents=True, exist_ok=True)
        target = self._scratch / "upkeep-snapshot.sqlite"
        info = await self._in_pool(lambda: self._journal.snapshot(target))
        try:
            await self._put(await self._in_pool(target.read_bytes), info)
        finally:
            target.unlink(missing_ok=True)
        while await self._in_pool(lambda: self._journal.trim_journal(info)):
            pass  # bounded pieces, so that commits go on in between
        self._last = _Last(info.position, self._clock.monotonic_s())
        await self._delete_old(info.position)
        return info

    async def _put(self, data: bytes, info: SnapshotInfo) -> None:
        """Put a snapshot where there is none at its position; one of the same state stays.

        Raises:
            ConflictError: there is one of another state, which stays: the database was put back by
                hand to where it had been, and went on otherwise.
        """
        key = snapshot_key(info.position)
        try:
            await self._store.put(key, [data], if_absent=True)
        except ConflictError as error:
            found = self._scratch / "upkeep-found.sqlite"
            try:
                known = await self._store.get_range(key, 0, await self._store.size(key))
                there = await self._in_pool(partial(_verified, known, found))
            except (CorruptDataError, NotFoundError) as damage:
                logger.warning("replacing a damaged snapshot: %s", damage)
                await self._store.put(key, [data])
                return
            finally:
                found.unlink(missing_ok=True)
            if there.digest != info.digest:
                raise ConflictError(
                    "put snapshot",
                    key,
                    f"there is one of the state {there.digest.hex()}, this is {info.digest.hex()}",
                    "was metadata.sqlite put back to an older one? Snapshots are never written"
                    " over: the next one, of another position, is put beside it",
                ) from error

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _find_last(self) -> "_Last":
        """The newest snapshot of earlier starts: a server that is restarted often makes some, too.

        Its age is that of the object, by the wall clock; where that steps, a snapshot is only
        early or late.
        """
        newest, modified_ms = 0, 0
        async for stored in self._store.list(SNAPSHOTS_PREFIX):
            position = snapshot_position(stored.key)
            # One ahead of the journal is of another history.
            if position is not None and newest < position <= self._journal.position:
                newest, modified_ms = position, stored.modified_ms
        if not newest:
            return _Last(0, self._started_s)
        age_s = max(0, self._clock.now_ms() - modified_ms) / 1000
        return _Last(newest, self._clock.monotonic_s() - age_s)

    async def _delete_old(self, newest: int) -> None:
        keys = []
        async for stored in self._store.list(SNAPSHOTS_PREFIX):
            position = snapshot_position(stored.key)
            if position is not None and position <= newest:
                keys.append(stored.key)
        # In key order, which is that of positions.
        if len(keys) > _KEPT:
            await self._store.delete(keys[:-_KEPT])


def _verified(data: Buffer, path: Path) -> SnapshotInfo:
    path.write_bytes(data)
    return verify_snapshot(path)


@dataclass(frozen=True, slots=True)
class _Last:
    """The newest snapshot: its position, and when it was made, of the monotonic clock."""

    position: int
    made_s: float


def snapshot_key(position: int) -> str:
    """The key of the snapshot at a position; keys sort by position."""
    return f"{SNAPSHOTS_PREFIX}{position:020d}.sqlite"


def snapshot_position(key: str) -> int | None:
    """The position that a key tells; None if it is no snapshot's."""
    digits = key.removeprefix(SNAPSHOTS_PREFIX).removesuffix(".sqlite")
    if not (digits.isascii() and digits.isdigit()):
        return None
    position = int(digits)
    return position if snapshot_key(position) == key else None
