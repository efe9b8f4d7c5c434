"""Upkeep of the journal's file makes checkpoints and snapshots, and trims entries before them.

It runs in the pool, off the commit lane. A snapshot is written next to the database and verified;
if that is due, it is compared with the journal's entries since an earlier snapshot; then it is put
into the store. Only then may the journal be trimmed before the second newest snapshot.
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

from penstock.log.settings import LogSettings
from penstock.model.errors import ConflictError, CorruptDataError, NotFoundError
from penstock.ports.clock import Clock
from penstock.ports.objects import ObjectStore
from penstock.replica.snapshot import SnapshotInfo, verify_snapshot
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

T = TypeVar("T")

SNAPSHOTS_PREFIX: Final = "snapshots/"
_KEPT: Final = 2
_RETRY_S: Final = 60.0


class Journal(Protocol):
    """The part of `penstock.order.local_journal.LocalJournal` that upkeep uses; any thread."""

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

    def trim_journal(self, snapshot: SnapshotInfo, *, until: int | None = None) -> int:
        """Delete some entries behind the snapshot before this one, and not past `until`; 0 when
        there are none."""
        ...


class Checker(Protocol):
    """Compares the state with the journal: `penstock.log.opening.state_check.StateChecker`."""

    def check(self, snapshot: Path, *, base: int, position: int) -> None:
        """Compare a new snapshot with what the journal gives from the stored one at `base` on."""
        ...

    def check_structure(self) -> None:
        """Have SQLite check the database."""
        ...


class Upkeep:
    """Does what is due each time that `run_once` is called.

    Args:
        scratch: a folder for the snapshot on its way to the store.
        checker: None: the state is not checked.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        store: ObjectStore,
        scratch: Path,
        clock: Clock,
        pool: Executor,
        limits: LogSettings,
        checker: Checker | None = None,
    ) -> None:
        self._checker = checker if limits.state_check_interval_ms else None
        self._journal = journal
        self._store = store
        self._scratch = scratch
        self._clock = clock
        self._pool = pool
        self._limits = limits
        self._started_s = clock.monotonic_s()
        self._last: _Last | None = None
        self._base: _Last | None = None
        """The oldest snapshot that is kept: what the next check goes on from."""
        self._is_checkpointing = False
        self.check_count = 0
        self.failed_check_count = 0
        """How often a check found a damaged snapshot or damaged entries, so that it couldn't judge
        the state."""
        self._not_before_s = self._started_s

    async def run_once(self) -> None:
        """Do what is due.

        Raises:
            FatalStorageError: a checkpoint's sync failed, or the state is damaged: the process
                must end.
            PenstockError: to be tried again.
        """
        await self.checkpoint()
        if self._last is None:
            self._base, self._last = await self._find_kept()
        now_s = self._clock.monotonic_s()
        if now_s >= self._not_before_s and (
            self._snapshot_is_due(self._last, now_s) or self._check_is_due(now_s, 0)
        ):
            # One that fails wrote much for nothing: not again at once.
            self._not_before_s = now_s + _RETRY_S
            await self.snapshot()

    async def checkpoint(self) -> None:
        """Make the database durable, if enough was written to it. A job of its own: a snapshot or a
        check may take minutes, and a commit that finds 64 MiB would have to do it.

        Raises: as `run_once`.
        """
        if self._journal.checkpoint_due and not self._is_checkpointing:
            self._is_checkpointing = True
            try:
                await self._in_pool(self._journal.checkpoint)
            finally:
                self._is_checkpointing = False

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

    def _check_is_due(self, now_s: float, entries: int) -> bool:
        """Args: entries: past the base, of the snapshot that would be checked; 0: of none yet."""
        base = self._base
        if self._checker is None or base is None or not self._can_check(base.position):
            return False
        return (
            entries >= self._limits.state_check_entries
            or (now_s - base.made_s) * 1000 >= self._limits.state_check_interval_ms
        )

    def _can_check(self, base: int) -> bool:
        """Whether the journal leads on from a snapshot, or from nothing (0)."""
        return base >= self._journal.base_position

    async def snapshot(self) -> SnapshotInfo:
        """Write a snapshot to the store, trim the journal behind the one before it.

        Raises:
            PenstockError: nothing was trimmed; to be tried again.
        """
        if self._base is None:
            self._base, self._last = await self._find_kept()
        self._scratch.mkdir(parents=True, exist_ok=True)
        target = self._scratch / "upkeep-snapshot.sqlite"
        try:
            info = await self._in_pool(lambda: self._journal.snapshot(target))
        except CorruptDataError:
            # The copy, or what it was made of: SQLite copies trees of equal tables as they are.
            if self._checker is not None:
                await self._in_pool(self._checker.check_structure)
            raise
        base, now_s = self._base, self._clock.monotonic_s()
        try:
            if self._check_is_due(now_s, info.position - base.position):
                await self._check(target, base.position, info.position)
                base = _Last(info.position, now_s)
            await self._put(await self._in_pool(target.read_bytes), info)
        finally:
            target.unlink(missing_ok=True)
        self._last = _Last(info.position, self._clock.monotonic_s())
        if self._checker is None or not self._can_check(base.position):
            base = self._last
        self._base = base
        until = await self._delete_old(info.position, base.position)
        while await self._in_pool(lambda: self._journal.trim_journal(info, until=until)):
            pass  # bounded pieces, so that commits go on in between
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
                heard(Cause.SNAPSHOT, damage, logger, "replacing a damaged snapshot")
                await self._store.put(key, [data])
                return
            finally:
                found.unlink(missing_ok=True)
            if there.digest != info.digest:
                raise ConflictError(
                    "put snapshot",
                    key,
                    f"the store's has state {there.digest.hex()}, this one {info.digest.hex()}",
                    "was metadata.sqlite put back to an older one? Snapshots are never written"
                    " over: the next one, of another position, is put next to it",
                ) from error

    async def _check(self, snapshot: Path, base: int, position: int) -> None:
        checker = self._checker
        assert checker is not None
        try:
            await self._in_pool(lambda: checker.check(snapshot, base=base, position=position))
        except CorruptDataError as error:
            # Tried again it gives the same, and nothing would be trimmed any more.
            logger.error(  # noqa: TRY400 - not a bug: the error says all there is
                "the state can't be checked from position %d on; the next check begins at %d: %s",
                base,
                position,
                error,
            )
            self.failed_check_count += 1
        else:
            self.check_count += 1

    @property
    def checked_position(self) -> int:
        """Return up to where the state is known to be what the journal gives; 0: nowhere."""
        return self._base.position if self._base is not None else 0

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def _find_kept(self) -> "tuple[_Last, _Last]":
        """The oldest and the newest snapshot of earlier starts: a server that is restarted often
        makes some, too.

        Their age is that of the object, by the wall clock; where that steps, a snapshot is only
        early or late.
        """
        found = []
        async for stored in self._store.list(SNAPSHOTS_PREFIX):
            position = snapshot_position(stored.key)
            # One ahead of the journal is of another history.
            if position is not None and position <= self._journal.position:
                found.append((position, stored.modified_ms))
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        kept = [_Last(at, now_s - max(0, now_ms - made_ms) / 1000) for at, made_ms in sorted(found)]
        newest = kept[-1] if kept else _Last(0, self._started_s)
        usable = [one for one in kept if self._can_check(one.position)]
        oldest = usable[0] if usable else _Last(0, self._started_s)
        if not self._journal.base_position:
            # The journal begins with its first entry: from nothing, then.
            oldest = _Last(0, oldest.made_s)
        return oldest, newest

    async def _delete_old(self, newest: int, base: int) -> int:
        """Keep the newest two, and what the next check goes on from. Returns the position up to
        which nothing needs the journal."""
        keys = []
        async for stored in self._store.list(SNAPSHOTS_PREFIX):
            position = snapshot_position(stored.key)
            if position is not None and position <= newest:
                keys.append(stored.key)
        # In key order, which is that of positions.
        kept = keys[-_KEPT:]
        if snapshot_key(base) in keys and snapshot_key(base) not in kept:
            kept.insert(0, snapshot_key(base))
        if len(kept) < len(keys):
            await self._store.delete([key for key in keys if key not in kept])
        return min(base, snapshot_position(kept[0]) or 0) if len(kept) >= _KEPT else 0


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
    """Return the position in a snapshot's key; None: the key is not a snapshot's."""
    digits = key.removeprefix(SNAPSHOTS_PREFIX).removesuffix(".sqlite")
    if not (digits.isascii() and digits.isdigit()):
        return None
    position = int(digits)
    return position if snapshot_key(position) == key else None
