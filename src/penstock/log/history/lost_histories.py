"""An agent's part in lost histories: noting what it finds, keeping what it holds of them.

Found are they by a replica that is newer than the journal (set aside at the start,
`penstock.log.opening.cluster`), and by the archiver. An operator closes them
(`penstock repair --history`; docs/operations.md, "A database that failed over to an older state").
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from penstock.log.history.archived_loss import first_unproven
from penstock.model.errors import CorruptDataError
from penstock.ports.journal import Journal
from penstock.replica.archive import Archive
from penstock.replica.archive_format import SnapshotName
from penstock.replica.aside import AsideReplica, drop_aside, find_aside, find_damaged
from penstock.replica.replica import Replica
from penstock.replica.snapshot import SnapshotInfo, write_snapshot
from penstock.state.answers import HistoryNoted
from penstock.state.apply.machine import LogMachine
from penstock.state.commands import NoteLostHistory
from penstock.state.levels import LevelNotOnError
from penstock.state.order_types import Order
from penstock.state.read.queries import Queries
from penstock.state.read.view import StateView
from penstock.state.rows import LostHistory, LostReason

T = TypeVar("T")

logger = logging.getLogger(__name__)

ASIDE_WAL: Final = "lost-wal-"
"""Begins the name of a copy of this agent's WAL, before the number of the lost history and the
position of the replica that was set aside (0: none was)."""
_WAL: Final = "wal"


class LostHistories:
    """Event loop only. `run_once` before the agent's WAL is opened, and now and then."""

    def __init__(
        self,
        *,
        journal: Journal,
        archive: Archive,
        order: Order,
        view: StateView,
        queries: Callable[[], Queries],
        folder: Path,
        scratch: Path,
        executor: Executor | None,
    ) -> None:
        """
        Args:
            folder: the agent's directory: of its replica and of its WAL.
        """
        self._journal = journal
        self._archive = archive
        self._order = order
        self._view = view
        self._queries = queries
        self._folder = folder
        self._scratch = scratch
        self._executor = executor
        self._said = ""
        self._unreadable: set[Path] = set()
        self.kept: list[str] = []
        """Names of the replicas that are set aside here, as of the last `run_once`."""

    async def note(self, command: NoteLostHistory) -> int:
        """Journal a lost history.

        Returns:
            Its number.

        Raises:
            LevelNotOnError: an agent of an older release is in the cluster.
            PenstockError: to be tried again.
        """
        before = set(self._view.open_histories)
        (answer,) = await self._order.commit([command])
        assert isinstance(answer, HistoryNoted), answer
        if answer.history not in before:
            logger.error(
                "the journal came back older: it has lost positions %d to %d, which were applied"
                " or archived (lost history %d). What those rows alone name is kept;"
                " penstock repair --history lists it, appends it again or gives it up",
                command.start,
                command.end,
                answer.history,
            )
        return answer.history

    async def prepare(self) -> None:
        """Note what was set aside here, and copy the WAL while a lost history is open, before the
        WAL is opened. Frames that only that history orders would be cut, and their files used
        again.

        Raises:
            PenstockError: to be tried again.
        """
        await self.run_once()
        if self._view.open_histories:
            # An agent may meet a second loss while the first is open: its own replica tells.
            aside = await self._in_executor(partial(find_aside, self._folder))
            position = max((replica.mark.position for replica in aside), default=0)
            await self._keep_wal(f"{max(self._view.open_histories)}-{position}")

    async def run_once(self) -> None:
        """Note what was set aside here, archive it, and drop what belongs to closed histories.

        Raises:
            PenstockError: to be tried again.
        """
        self.kept = await self._in_executor(self._kept_names)
        for replica in await self._in_executor(partial(find_aside, self._folder)):
            try:
                await self._keep(replica)
            except LevelNotOnError as error:
                if str(error) != self._said:
                    self._said = str(error)
                    logger.error("a lost history can't be noted yet: %s", error)  # noqa: TRY400
                return
        await self._drop_closed()

    def held_from(self) -> int | None:
        """The first position of the oldest history that is open; None: none is. What the archive
        has of before is what a repair compares with."""
        return min((found.start for found in self._view.open_histories.values()), default=None)

    async def drop_archived(self, before_ms: int) -> None:
        """Delete what is archived of histories that were closed before a journal time.

        Raises:
            PenstockError: to be tried again.
        """
        archived = await self._archive.lost_histories()
        if not archived:
            return
        rows = await self._in_executor(lambda: self._queries().lost_histories())
        known = {row.history: row for row in rows}
        newest = max(known, default=0)
        for history in archived:
            row = known.get(history)
            # One without a row was closed long ago: only the last rows are kept.
            is_over = (
                history < newest
                if row is None
                else row.closed_ms is not None and row.closed_ms < before_ms
            )
            if is_over:
                count = await self._archive.delete_lost(history)
                logger.info("deleted %d objects of lost history %d", count, history)

    # -- keeping -----------------------------------------------------------------------------------

    async def _keep(self, replica: AsideReplica) -> None:
        mark = replica.mark
        history = await self.note(
            NoteLostHistory(
                start=await first_unproven(self._journal, self._archive, mark.position),
                end=mark.position,
                stamp_ms=mark.stamp_ms,
                crc=mark.crc,
                reason=LostReason.REPLICA,
            )
        )
        if history not in self._view.open_histories:
            logger.warning("dropping %s: lost history %d is closed", replica.path, history)
            await self._in_executor(partial(drop_aside, replica))
            return
        if replica.path in self._unreadable:
            return
        archived = await self._archive.lost(history)
        if any(
            isinstance(name, SnapshotName) and name.position == mark.position for name in archived
        ):
            return
        target = self._scratch / "lost.sqlite"
        try:
            info = await self._in_executor(partial(_snapshot_of, replica.path, target))
            await self._archive.put_lost_snapshot(target, info, history=history)
        except CorruptDataError as error:
            self._unreadable.add(replica.path)
            detail = "a replica of lost history %d can't be archived and stays as %s: %s"
            logger.error(detail, history, replica.path, error)  # noqa: TRY400 - the error says where
        finally:
            target.unlink(missing_ok=True)

    def _kept_names(self) -> list[str]:
        aside = [replica.path for replica in find_aside(self._folder)]
        return [path.name for path in (*aside, *find_damaged(self._folder))]

    async def _keep_wal(self, name: str) -> None:
        source, target = self._folder / _WAL, self._folder / f"{ASIDE_WAL}{name}"
        if source.is_dir() and not target.exists():
            await self._in_executor(partial(_copy_tree, source, target))
            logger.warning("copied the WAL to %s, since a lost history is open", target)

    async def _drop_closed(self) -> None:
        kept = set(self._view.open_histories)
        for path in sorted(self._folder.glob(f"{ASIDE_WAL}*")):
            number = path.name.removeprefix(ASIDE_WAL).partition("-")[0]
            if number.isdigit() and int(number) not in kept:
                await self._in_executor(partial(shutil.rmtree, path, ignore_errors=True))

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def describe(histories: dict[int, LostHistory]) -> list[dict[str, int | str]]:
    """Open lost histories, as /v1/status shows them."""
    return [
        {
            "history": found.history,
            "start": found.start,
            "end": found.end,
            "reason": found.reason.name.lower(),
            "agent": found.agent,
            "noted_ms": found.noted_ms,
        }
        for found in histories.values()
    ]


def _snapshot_of(path: Path, target: Path) -> SnapshotInfo:
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(Replica.open(path, LogMachine(), fsync=False, keeps_journal=False)):
        pass  # of this release's format version from here on
    return write_snapshot(path, target)


def _copy_tree(source: Path, target: Path) -> None:
    partial_copy = target.with_name(target.name + ".new")
    shutil.rmtree(partial_copy, ignore_errors=True)
    (partial_copy / _WAL).parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, partial_copy / _WAL)
    partial_copy.rename(target)
