"""A service's snapshots in an object store: an instance that begins needs no old journal.

One instance at a time takes them. The last two are kept, since one may turn out to be damaged, and
the journal since the older one.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.ports.journal import Journal
from penstock.ports.objects import ObjectStore
from penstock.replica.archive import Archive
from penstock.replica.archive_format import ArchiveHeader, SnapshotName
from penstock.replica.bootstrap import bootstrap
from penstock.replica.history import PresentHistory
from penstock.replica.service.hosting import HostedMachine
from penstock.replica.snapshot_process import write_snapshot_apart
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

T = TypeVar("T")

FOLDER: Final = "snapshots"


class ServiceSnapshots:
    """Event loop only; files are written in the executor.

    Args:
        store: of the service's prefix.
        journal_id: of its journal.
        path: of the instance's database.
    """

    def __init__(
        self, store: ObjectStore, *, journal_id: str, path: Path, executor: Executor
    ) -> None:
        self._path = path
        self._scratch = path.parent / FOLDER
        self._executor = executor
        self._archive = Archive(
            store, cluster_id=journal_id, scratch=self._scratch, executor=executor
        )

    async def newest(self, journal: Journal) -> tuple[int, int] | None:
        """Give position and time (ms) of the newest snapshot; None: there is none."""
        usable = await self._usable(journal)
        return (usable[-1][0].position, usable[-1][1].last_ms) if usable else None

    async def take(self, journal: Journal, commit: Callable[[], object]) -> int:
        """Take one, trim the journal up to the one before it, and delete what is older.

        Args:
            commit: lets readers of the database see what is applied.
        Returns:
            Its position.
        Raises:
            PenstockError: to be tried again; nothing was trimmed that a snapshot needs.
        """
        before = await self._usable(journal)
        target = self._scratch / "new"
        self._scratch.mkdir(exist_ok=True)

        try:
            await self._in_executor(commit)
            info = await self._in_executor(partial(write_snapshot_apart, self._path, target))
            taken = await self._archive.put_snapshot(target, info)
        finally:
            target.unlink(missing_ok=True)
        older = [name for name, _ in before if name != taken]
        if older:
            await self._drop_before(journal, older[-1])
        return taken.position

    async def restore(self, journal: Journal, machine: Callable[[], HostedMachine]) -> bool:
        """Make the database of the newest snapshot that is whole; whether there is one.

        Raises:
            CorruptDataError: there are some, and none is whole.
        """
        history = PresentHistory(journal, self._archive, await journal.head())
        made = await bootstrap(
            self._archive, self._path, machine, executor=self._executor, history=history
        )
        if made is not None:
            logger.info("the database is made of the snapshot of position %d", made.position)
        return made is not None

    async def _usable(self, journal: Journal) -> list[tuple[SnapshotName, ArchiveHeader]]:
        """List those of the journal's history, by position."""
        history = PresentHistory(journal, self._archive, await journal.head())
        found = []
        for name in await self._archive.snapshots():
            try:
                header = await self._archive.header(name)
            except (CorruptDataError, NotFoundError) as error:
                heard(Cause.ARCHIVE_OBJECT, error, logger, "passing over a snapshot")
                continue
            lost = await history.lost_snapshot(header)
            if lost:
                logger.error("passing over the snapshot %s: %s", name.key, lost)
                continue
            found.append((name, header))
        return found

    async def _drop_before(self, journal: Journal, older: SnapshotName) -> None:
        try:
            await self._archive.check(older)
        except (CorruptDataError, NotFoundError) as error:
            heard(Cause.TRIM, error, logger, "nothing is trimmed behind a damaged snapshot")
            await self._archive.delete([older])
            return
        while await journal.trim(older.position):
            pass
        names = await self._archive.snapshots()
        await self._archive.delete([name for name in names if name.position < older.position])

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
