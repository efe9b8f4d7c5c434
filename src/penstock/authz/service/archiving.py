"""Sets of snapshots in an object store: an instance that begins needs no old journal.

One instance at a time takes them. The last two are kept, since one may turn out to be damaged, and
the journal since the older one.
docs/formats/authz.md has the order of the steps, and what a crash leaves.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from penstock.authz.state import environment as environment_state
from penstock.authz.state import shard as shard_state
from penstock.authz.state import snapshot_sets
from penstock.authz.state.snapshot_sets import SETS_PREFIX, SetName, SnapshotSet
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    RetryableError,
)
from penstock.objects.prefixed import Prefixed
from penstock.ports.journal import Journal
from penstock.ports.objects import ObjectStore
from penstock.replica.archive import Archive
from penstock.replica.archive_format import SnapshotName
from penstock.replica.bootstrap import drop_replica, restore_archived
from penstock.replica.database import connect_reader
from penstock.replica.marks import RowMark
from penstock.replica.snapshot import SnapshotInfo, write_snapshot
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHARD_FILE: Final = "shard.sqlite"
SNAPSHOTS_FOLDER: Final = "fetched"
WriteSnapshot = Callable[[Path, Path], SnapshotInfo]
"""Writes a verified snapshot of a live database to a path; blocking."""


class Snapshotted(Protocol):
    """An open environment."""

    path: Path

    async def arrive(self, position: int) -> None:
        """Return once a position is applied. Raises: RetryableError: it takes too long."""
        ...


class SetArchive:
    """The sets of one service. Event loop only; files are written in the executor.

    Args:
        store: of the service's prefix.
        cluster_id: the journal's.
        folder: the instance's directory.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        cluster_id: str,
        folder: Path,
        executor: Executor,
        write: WriteSnapshot = write_snapshot,
    ) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._folder = folder
        self._scratch = folder / SNAPSHOTS_FOLDER
        self._executor = executor
        self._write = write

    # -- what there is ---------------------------------------------------------------------------

    async def names(self) -> list[SetName]:
        """All sets, by position."""
        found = [SetName.parse(info.key) async for info in self._store.list(SETS_PREFIX)]
        return sorted(name for name in found if name is not None)

    async def newest(self, journal: Journal) -> tuple[int, int] | None:
        """Give position and time of the newest set of the journal's history; None: none."""
        sets = await self.usable(journal)
        return (sets[-1].shard[0], sets[-1].time_ms) if sets else None

    async def read(self, name: SetName) -> SnapshotSet:
        """Read a set; its snapshots are not read.

        Raises:
            CorruptDataError: it is damaged.
            NotFoundError: another instance has deleted it.
            InvalidRequestError: it is of another journal.
        """
        size = await self._store.size(name.key)
        body = bytes(await self._store.get_range(name.key, 0, size))
        found = snapshot_sets.decode(body, key=name.key)
        if found.cluster_id != self._cluster_id:
            raise InvalidRequestError(
                "read set of snapshots",
                name.key,
                f"it is of journal {found.cluster_id}, this is {self._cluster_id}",
                "give each service a prefix of its own",
            )
        return found

    async def usable(self, journal: Journal) -> list[SnapshotSet]:
        """Read the sets of the journal's history, by position. Raises: InvalidRequestError."""
        usable = []
        for name in await self.names():
            try:
                found = await self.read(name)
            except (CorruptDataError, NotFoundError) as error:
                heard(Cause.ARCHIVE_OBJECT, error, logger, "passing over a set of snapshots")
                continue
            lost = await _lost(found, journal)
            if lost:
                logger.error("passing over the set of snapshots %s: %s", name.key, lost)
                continue
            usable.append(found)
        return usable

    # -- taking ----------------------------------------------------------------------------------

    async def take(
        self,
        journal: Journal,
        *,
        position: Callable[[], int],
        use: Callable[[str], Snapshotted],
        let_go: Callable[[str], None],
    ) -> SnapshotSet:
        """Take a set, trim the journal behind the one before, and delete what is older.

        Args:
            position: gives the journal's position that is applied here.
            use: opens an environment, which stays open until `let_go`.
        Raises:
            PenstockError: to be tried again; nothing was trimmed that a set needs.
        """
        before = await self.usable(journal)
        known = before[-1].snapshots if before else {}
        target = self._scratch / SHARD_FILE
        try:
            info = await self._taken(self._folder / SHARD_FILE, target)
            streams = await self._in_executor(partial(_streams, target))
            shard = await self._archive().put_snapshot(target, info)
        finally:
            target.unlink(missing_ok=True)
        environments = []
        for name, needed in streams:
            snapshot = await self._still_whole(name, needed, known.get(name))
            if snapshot is None:
                opened = use(name)
                try:
                    snapshot = await self._take_environment(name, needed, opened)
                finally:
                    let_go(name)
            environments.append((name, snapshot.position, snapshot.digest_hex))
        found = SnapshotSet(
            self._cluster_id,
            info.time_ms,
            (shard.position, shard.digest_hex),
            await _mark(journal, position()),
            environments,
        )
        try:
            await self._store.put(found.name.key, [snapshot_sets.encode(found)], if_absent=True)
        except ConflictError:
            # Of the same state, by another instance; a damaged one is replaced.
            try:
                await self.read(found.name)
            except CorruptDataError as error:
                heard(Cause.ARCHIVE_OBJECT, error, logger, "replacing a damaged object")
                await self._store.put(found.name.key, [snapshot_sets.encode(found)])
        older = [each for each in before if each.shard != found.shard]
        if older:
            await self._drop_older(journal, older[-1], found)
        return found

    async def _still_whole(
        self, name: str, needed: int, known: SnapshotName | None
    ) -> SnapshotName | None:
        """Give an environment's last snapshot, if it is far enough and can be read."""
        if known is None or known.position < needed:
            return None
        try:
            await self._archive(name).check(known)
        except (CorruptDataError, NotFoundError) as error:
            heard(Cause.ARCHIVE_OBJECT, error, logger, "a snapshot is taken again")
            return None
        return known

    async def _take_environment(
        self, name: str, needed: int, environment: Snapshotted
    ) -> SnapshotName:
        await environment.arrive(needed)
        target = self._scratch / f"{name}.sqlite"
        try:
            info = await self._taken(environment.path, target)
            return await self._archive(name).put_snapshot(target, info)
        finally:
            target.unlink(missing_ok=True)

    async def _taken(self, live: Path, target: Path) -> SnapshotInfo:
        self._scratch.mkdir(exist_ok=True)
        return await self._in_executor(partial(self._write, live, target))

    async def _drop_older(self, journal: Journal, older: SnapshotSet, newer: SnapshotSet) -> None:
        """Trim the journal up to the older of two sets, and delete what is before it. Snapshots
        after it may belong to a set that another instance is taking."""
        try:
            await self._archive().check(older.shard_snapshot)
            for name, snapshot in older.snapshots.items():
                if newer.snapshots.get(name) != snapshot:
                    await self._archive(name).check(snapshot)
        except (CorruptDataError, NotFoundError) as error:
            heard(Cause.TRIM, error, logger, "nothing is trimmed behind a damaged snapshot")
            await self._store.delete([older.name.key])
            return
        while await journal.trim(older.shard[0]):
            pass
        await self._store.delete(
            [name.key for name in await self.names() if name.position < older.shard[0]]
        )
        await self._drop_snapshots(self._archive(), older.shard[0])
        for name, snapshot in older.snapshots.items():
            await self._drop_snapshots(self._archive(name), snapshot.position)

    async def _drop_snapshots(self, archive: Archive, position: int) -> None:
        doomed = [name for name in await archive.snapshots() if name.position < position]
        await archive.delete(doomed)

    # -- beginning -------------------------------------------------------------------------------

    async def restore(self, journal: Journal) -> SnapshotSet | None:
        """Make this instance's databases of the newest set that is whole; shard last, so that a
        crash before leaves none.

        Returns:
            None: there is no set, and there are no databases.
        Raises:
            CorruptDataError: there are sets, and none is whole.
        """
        damaged: PenstockError | None = None
        for found in reversed(await self.usable(journal)):
            try:
                for name, snapshot in found.snapshots.items():
                    await self._restore(
                        self._archive(name),
                        snapshot,
                        self._folder / "environments" / f"{name}.sqlite",
                        environment_state.APPLICATION_ID,
                        environment_state.FORMAT_VERSION,
                    )
                await self._restore(
                    self._archive(),
                    found.shard_snapshot,
                    self._folder / SHARD_FILE,
                    shard_state.APPLICATION_ID,
                    shard_state.FORMAT_VERSION,
                )
            except (CorruptDataError, NotFoundError) as error:
                heard(Cause.ARCHIVE_OBJECT, error, logger, "passing over a set of snapshots")
                damaged = damaged or error
                continue
            logger.info(
                "the databases are made of the snapshots of position %d, with %d environments",
                found.shard[0],
                len(found.environments),
            )
            return found
        if damaged is not None:
            raise damaged
        return None

    async def _restore(
        self,
        archive: Archive,
        name: SnapshotName,
        path: Path,
        application_id: int,
        format_version: int,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_replica(path)
        await restore_archived(
            archive,
            name,
            path,
            application_id=application_id,
            format_version=format_version,
            executor=self._executor,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _archive(self, environment: str = "") -> Archive:
        prefix = f"environments/{environment}/" if environment else "shard/"
        return Archive(
            Prefixed(self._store, prefix),
            cluster_id=self._cluster_id,
            scratch=self._scratch,
            executor=self._executor,
        )

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


async def _lost(found: SnapshotSet, journal: Journal) -> str:
    """Return why a set is of a history that the journal has lost, or can't lead to its head; "":
    it can."""
    mark = found.row
    row = await journal.row(mark.position)
    if row is not None and RowMark.of(row) != mark:
        return f"the journal holds another row at position {mark.position}"
    head = await journal.head()
    if head.position < mark.position:
        return f"the journal ends at position {head.position}, before {mark.position}"
    if row is None and mark.position >= head.first:
        return f"the journal holds no row at position {mark.position}"
    if found.shard[0] + 1 < head.first:
        return f"the journal begins with position {head.first}, after it"
    return ""


async def _mark(journal: Journal, position: int) -> tuple[int, int, int]:
    row = await journal.row(position)
    if row is None:
        raise RetryableError("take snapshots", "journal", f"no row is at position {position}")
    mark = RowMark.of(row)
    return (mark.position, mark.stamp_ms, mark.crc)


def _streams(snapshot: Path) -> list[tuple[str, int]]:
    """Environments, and the positions that a shard's snapshot has for them."""
    try:
        with closing(connect_reader(snapshot)) as connection:
            return connection.execute("SELECT * FROM stream ORDER BY environment").fetchall()
    except sqlite3.Error as error:
        raise CorruptDataError("read snapshot", str(snapshot), str(error)) from error
