"""The states of a lost history, as databases: of its archived snapshots and replicas, and of the
last one with the archived rows past it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.ports.journal import Journal, JournalRow
from penstock.replica.archive import Archive
from penstock.replica.archive_format import SnapshotName, StretchName
from penstock.replica.bootstrap import bootstrap
from penstock.replica.replica import Replica
from penstock.replica.snapshot import restore_snapshot
from penstock.state.apply.machine import LogMachine
from penstock.state.rows import LostHistory

T = TypeVar("T")

logger = logging.getLogger(__name__)

_PAGE_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LostStates:
    """`lost`: databases, the one that goes furthest first. `common`: of the last position before
    the histories parted, or of an earlier one where rows between are missing; None: there is
    neither a snapshot so old nor the first rows. `end`: the last position that is held."""

    lost: list[Path]
    common: Path | None
    end: int


async def lost_states(
    archive: Archive,
    journal: Journal,
    history: LostHistory,
    *,
    folder: Path,
    executor: Executor | None,
) -> LostStates:
    """Make the databases in `folder`, which is empty.

    Raises:
        PenstockError: journal or store don't answer.
    """
    work = _Work(archive, journal, history, folder, executor)
    common = folder / "common.sqlite"
    made = await bootstrap(
        archive, common, LogMachine, executor=executor, at_most=history.start - 1
    )
    # Up to where they part: what retention has taken since of the rows between would else look
    # lost. Without a snapshot the journal mostly has its first rows: it is trimmed behind one.
    common_end = await work.extend_common(common)
    names = await archive.lost(history.history)
    snapshots = sorted((name for name in names if isinstance(name, SnapshotName)), reverse=True)
    stretches = [name for name in names if isinstance(name, StretchName)]
    found: list[tuple[int, Path]] = []
    newest: SnapshotName | None = None
    for index, name in enumerate(snapshots):
        path = folder / f"lost-{index}.sqlite"
        try:
            await work.fetch(name, path)
        except (CorruptDataError, NotFoundError) as error:
            logger.error("a snapshot of lost history %d: %s", history.history, error)  # noqa: TRY400
            continue
        found.append((name.position, path))
        newest = newest or name
    reached = found[0][0] if found else 0
    if stretches and max(name.last for name in stretches) > reached:
        base = newest or (None if made is None else made.snapshot)
        path = folder / "rows.sqlite"
        if base is not None:
            await work.fetch(base, path)
        reached = await work.extend(path, stretches)
        found.insert(0, (reached, path))
    return LostStates(
        lost=[path for _, path in found], common=common if common_end else None, end=reached
    )


@dataclass(slots=True)
class _Work:
    archive: Archive
    journal: Journal
    history: LostHistory
    folder: Path
    executor: Executor | None

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def fetch(self, name: SnapshotName, path: Path) -> None:
        fetched = path.with_name(path.name + ".snapshot")
        await self.archive.fetch_snapshot(name, fetched)

        def make() -> None:
            restore_snapshot(
                fetched,
                path,
                application_id=LogMachine.application_id,
                format_version=LogMachine.format_version,
                is_verified=True,
            )
            # Of this release's format version from here on.
            Replica.open(path, LogMachine(), fsync=False, keeps_journal=False).close()

        await self.run(make)

    async def extend_common(self, path: Path) -> int:
        """Apply the rows that both histories have, as far as they can be read; the position that
        was reached."""
        try:
            return await self.extend(path, [])
        except (CorruptDataError, NotFoundError) as error:
            detail = "lost history %d: not all rows before it can be read: %s"
            logger.error(detail, self.history.history, error)  # noqa: TRY400 - the error says where
        replica = await self.run(
            partial(Replica.open, path, LogMachine(), fsync=False, keeps_journal=False)
        )
        try:
            return replica.position
        finally:
            replica.close()

    async def extend(self, path: Path, stretches: Sequence[StretchName]) -> int:
        """Apply rows up to the lost history's end; the position that was reached."""
        replica = await self.run(
            partial(Replica.open, path, LogMachine(), fsync=False, keeps_journal=False)
        )
        try:

            def apply(rows: Sequence[JournalRow]) -> None:
                for row in rows:
                    replica.apply(row.body, stamp_ms=row.stamp_ms, position=row.position)
                replica.commit()

            async for rows in self._rows(replica.position, stretches):
                await self.run(partial(apply, rows))
            return replica.position
        finally:
            replica.close()

    async def _rows(
        self, position: int, stretches: Sequence[StretchName]
    ) -> AsyncIterator[list[JournalRow]]:
        start = self.history.start
        while position < start - 1:
            # Common to both histories: the journal has these rows, or has trimmed and archived
            # them.
            limit = min(_PAGE_ROWS, start - 1 - position)
            try:
                page = await self.journal.read(position, limit)
            except NotFoundError:
                head = await self.journal.head()
                until = min(start, head.first) - 1
                async for rows in self.archive.rows(after=position, until=until):
                    yield rows
                    position = rows[-1].position
                continue
            page = [row for row in page if row.position < start]
            if not page:
                return
            yield page
            position = page[-1].position
        while True:
            holding = [name for name in stretches if name.first <= position + 1 <= name.last]
            if not holding:
                return
            name = max(holding, key=lambda name: name.last)
            rows = await self.archive.read_stretch(name)
            yield [row for row in rows if row.position > position]
            position = name.last
