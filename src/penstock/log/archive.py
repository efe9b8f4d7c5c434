"""The archiver: closed stretches of the journal and snapshots go to the bucket on a schedule.

Order of effects: rows archived and read back -> snapshot compared with what the archive gives for
its position -> snapshot archived and read back -> journal trimmed behind the snapshot before it ->
what is older than the restore window deleted. So at any moment the bucket alone holds two snapshots
and all rows from the older one on, and each snapshot is what the rows make of the one before it,
whatever has become of the replica that it was made of. docs/formats/archive.md.

It runs on every agent and works on the one that is chosen. That is for thrift: several at a time,
or one that stalled and goes on, put the same or further objects, and do no harm.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from penstock.log.history.archived_loss import NoteLost, find_loss, set_loss_aside
from penstock.log.snapshot_check import Compared
from penstock.model.errors import CorruptDataError, InvalidRequestError, NotFoundError
from penstock.ports.clock import Clock
from penstock.ports.journal import Journal, JournalHead, JournalRow
from penstock.replica.archive import Archive
from penstock.replica.archive_format import STRETCH_BYTES_MAX, SnapshotName, StretchName
from penstock.replica.beginning import read_beginning
from penstock.replica.history import PresentHistory
from penstock.replica.marks import RowMark
from penstock.replica.snapshot import SnapshotInfo
from penstock.system.heard import Cause, heard

T = TypeVar("T")

logger = logging.getLogger(__name__)

SNAPSHOTS_MIN: Final = 2
"""Kept whatever their age: one may turn out to be damaged."""
_PAGE_ROWS: Final = 1_000
_ROW_OVERHEAD_BYTES: Final = 64
_RETRY_S: Final = 60.0


class ArchivedOrder(Protocol):
    """The part of `penstock.order.cluster_order.ClusterOrder` that the archiver uses."""

    @property
    def position(self) -> int:
        """The last entry that is applied here."""
        ...

    def snapshot(self, path: Path) -> SnapshotInfo:
        """Write a verified snapshot of the state; any thread."""
        ...


WriteSnapshot = Callable[[Path], SnapshotInfo]
"""Writes a verified snapshot of the state to a path; any thread."""


CompareSnapshot = Callable[[Path, SnapshotInfo], Awaitable[Compared | None]]
"""See `penstock.log.snapshot_check.SnapshotCheck.compare`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Durations in ms.

    Args:
        interval_ms: between stretches; what the loss of the journal database costs at most.
        snapshot_interval_ms, snapshot_entries: between snapshots, whichever is less.
        keep_ms: the restore window: snapshots older than this are deleted, save the two newest.
    """

    interval_ms: int = 10_000
    snapshot_interval_ms: int = 600_000
    snapshot_entries: int = 100_000
    keep_ms: int = 7 * 86_400_000


class Archiver:
    """Does what is due each time that `run_once` is called. Event loop only."""

    def __init__(
        self,
        *,
        journal: Journal,
        order: ArchivedOrder,
        archive: Archive,
        is_chosen: Callable[[], bool],
        scratch: Path,
        clock: Clock,
        age_ms: Callable[[], int | None],
        executor: Executor | None,
        settings: ArchiveSettings,
        held_from: Callable[[], int | None],
        compare_snapshot: CompareSnapshot,
        ask_digest: Callable[[], None],
        equal_position: Callable[[], int],
        write_snapshot: WriteSnapshot | None = None,
        note_lost: NoteLost | None = None,
        drop_lost: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """
        Args:
            write_snapshot: instead of the order's, for example in a process of its own.
            age_ms: what the restore window is measured by; None: no clock is believed, and nothing
                is deleted.
            note_lost: journals that the journal has lost what was archived, so that it can be set
                aside; None: nothing is archived then.
            drop_lost: given a journal time, deletes what is archived of lost histories that were
                closed before.
            held_from: the first position of the oldest open lost history, whose repair begins with
                the last snapshot before; None: there is none.
            compare_snapshot: compares a snapshot with what the archive gives for its position.
            ask_digest: has the agents compare their states soon, since these two differ.
            equal_position: up to where this agent's state is known to be equal to another's.
            is_chosen: whether this agent should archive now.
            scratch: a folder for the snapshot on its way.
        """
        self._journal = journal
        self._order = order
        self._write_snapshot = write_snapshot or order.snapshot
        self._note_lost = note_lost
        self._drop_lost = drop_lost
        self._held_from = held_from
        self._compare_snapshot = compare_snapshot
        self._ask_digest = ask_digest
        self._equal_position = equal_position
        self._refused_position = 0
        """The position of the first snapshot, since the last archived one, that differed from what
        the archive gives; 0: no snapshot differed."""
        self._archive = archive
        self._is_chosen = is_chosen
        self._scratch = scratch
        self._clock = clock
        self._age_ms = age_ms
        self._executor = executor
        self._settings = settings
        self._known: _Known | None = None
        self._looking = asyncio.Lock()
        self._archived_s = clock.monotonic_s()
        self._snapshot_not_before_s = clock.monotonic_s()
        self.archived_position = 0
        """Rows up to here are in the archive, as far as this agent knows."""
        self.snapshot_position = 0
        """The newest snapshot there, as far as this agent knows."""
        self.trimmed_count = 0
        """Rows that this agent has trimmed."""
        self.refused_count = 0
        """Snapshots that were not archived, since the archive gives another state."""
        self.uncompared_count = 0
        """Snapshots that were archived though nothing whole in the archive leads there."""

    async def run_once(self) -> None:
        """Do what is due.

        Raises:
            PenstockError: to be tried again; nothing was trimmed that isn't archived.
        """
        if not self._is_chosen():
            self._known = None
            self._refused_position = 0
            return
        known = self._known or await self._current()
        now_s = self._clock.monotonic_s()
        if (now_s - self._archived_s) * 1000 >= self._settings.interval_ms:
            known = await self._current()
            await self._archive_rows(known, until=self._order.position)
            self._archived_s = now_s
        if now_s >= self._snapshot_not_before_s and self._snapshot_is_due(known, now_s):
            # One that fails wrote much for nothing: not again at once.
            self._snapshot_not_before_s = now_s + _RETRY_S
            await self.snapshot()
            self._snapshot_not_before_s = now_s

    async def snapshot(self) -> SnapshotName:
        """Archive the state as it is now and the rows before it; trim and delete behind that.

        Raises:
            CorruptDataError: the archive gives another state for that position: it, or this
                agent's replica, is damaged. Nothing was put or trimmed.
            PenstockError: to be tried again; nothing was trimmed that isn't archived.
        """
        known = await self._current()
        target = self._scratch / "archived.sqlite"
        try:
            info = await self._in_executor(partial(_write, self._write_snapshot, target))
            await self._archive_rows(known, until=info.position)
            await self._refuse_if_different(target, info)
            name = await self._archive.put_snapshot(target, info)
        finally:
            target.unlink(missing_ok=True)
        known.snapshots = sorted({*known.snapshots, name})
        known.verified.add(name)
        known.made_s = self._clock.monotonic_s()
        known.newest_ms = info.time_ms
        self.snapshot_position = info.position
        await self._trim(known)
        await self._delete_old(known)
        return name

    async def _refuse_if_different(self, target: Path, info: SnapshotInfo) -> None:
        """Compare a snapshot with what the archive gives for its position.

        Raises:
            CorruptDataError: they differ, and nothing says that it is the archive that is wrong.
        """
        try:
            compared = await self._compare_snapshot(target, info)
        except (CorruptDataError, NotFoundError, InvalidRequestError) as error:
            self.uncompared_count += 1
            logger.error(  # noqa: TRY400 - what it says is all there is to know
                "the snapshot of position %d is archived without a comparison, since nothing whole"
                " in the archive leads there: %s",
                info.position,
                error,
            )
            return
        if compared is None or not compared.tables:
            self._refused_position = 0
            return
        base = compared.base or "no snapshot"
        tables = ", ".join(compared.tables)
        if 0 < self._refused_position <= self._equal_position():
            self._refused_position = 0
            logger.error(
                "the snapshot of position %d is archived, though %s and the archived rows past it"
                " give another state in %s: the agents were found equal meanwhile. That archived"
                " snapshot is damaged: delete it",
                info.position,
                base,
                tables,
            )
            return
        self.refused_count += 1
        self._refused_position = self._refused_position or info.position
        self._ask_digest()
        raise CorruptDataError(
            "archive",
            f"the snapshot of position {info.position}",
            f"{base} and the archived rows past it give another state in {tables}",
            "the agents compare their states now; if this one is the only agent, stop it, remove"
            " its replica, and start it again",
        )

    async def compare(self) -> None:
        """Compare the archive with the journal, whichever agent archives, and note what the journal
        has lost.

        Raises:
            PenstockError: to be tried again; it isn't known whether anything was lost.
        """
        await self._current()

    # -- what there is -----------------------------------------------------------------------------

    async def _current(self) -> "_Known":
        """Return what is known of the archive, which is looked at again if the journal has come
        back
        older since: an agent whose replica is older than the lost part goes on following the
            journal."""
        async with self._looking:
            return await self._compared()

    async def _compared(self) -> "_Known":
        known = self._known
        if known is not None and known.mark is not None:
            row = await self._journal.row(known.mark.position)
            if row is None:
                head = await self._journal.head()
                is_same = known.mark.position < head.first
            else:
                is_same = RowMark.of(row) == known.mark
            if not is_same:
                known = None
        if known is None:
            known = self._known = await self._look()
        return known

    async def _look(self) -> "_Known":
        """Look at what other agents, or an earlier start, have archived; rows that the journal has
        lost are noted and set aside.

        Raises:
            CorruptDataError: the archive isn't of this journal's past, and it can't be found out
                which part isn't. Then nothing is archived or trimmed.
        """
        known, detail = await self._listed()
        if detail:
            loss = await find_loss(
                self._journal,
                self._archive,
                snapshots=known.snapshots,
                stretches=known.stretches,
            )
            if loss is not None and self._note_lost is not None:
                history = await self._note_lost(loss.note)
                await set_loss_aside(self._archive, loss, history)
                known, detail = await self._listed()
        if detail:
            raise CorruptDataError(
                "archive",
                "journal",
                f"the journal came back older than what was archived of it: {detail}",
                "penstock repair --history appends what was acknowledged again",
            )
        self.snapshot_position = known.snapshots[-1].position if known.snapshots else 0
        return known

    async def _listed(self) -> "tuple[_Known, str]":
        """List the archive; also return the reason why it isn't of this journal's past, or "".

        A journal that came back older gives its positions a second time. If rows archived before
        and after that were mixed, a state made from them would be one that no agent ever had.
        """
        snapshots = await self._archive.snapshots()
        stretches = await self._archive.stretches()
        newest_ms = 0
        detail = ""
        head = await self._journal.head()
        history = PresentHistory(self._journal, self._archive, head)
        if snapshots:
            # Rows count as archived only as far as they are without a gap behind a snapshot.
            archived = max(snapshots[0].position, _reached(stretches, snapshots[0].position))
            try:
                header = await self._archive.header(snapshots[-1])
                newest_ms = header.last_ms
                detail = await history.lost_snapshot(header)
            except (CorruptDataError, NotFoundError) as error:
                heard(Cause.ARCHIVE_OBJECT, error, logger, "a snapshot can't be read")
                snapshots = snapshots[:-1]
        else:
            # A listing may lag behind a restore.
            beginning = await read_beginning(self._journal, head)
            archived = _reached(stretches, 0 if beginning is None else beginning.position)
        row = await self._journal.row(archived)
        if not detail:
            detail = await self._other_row(stretches, archived, row, history.head)
        self.archived_position = archived
        # Its age by the wall clock: where that is wrong the next one is only early or late.
        age_s = max(0, self._clock.now_ms() - newest_ms) / 1000
        made_s = self._clock.monotonic_s() - age_s
        mark = None if row is None else RowMark.of(row)
        return _Known(snapshots, stretches, made_s, newest_ms, mark), detail

    async def _other_row(
        self,
        stretches: list[StretchName],
        archived: int,
        row: JournalRow | None,
        head: JournalHead,
    ) -> str:
        """Return the reason why the last archived row isn't the journal's, or "". A row that the
        journal has trimmed isn't compared: the agent that archived the rows after it has compared
        them."""
        if head.position < archived:
            return f"the journal ends at position {head.position}, the archive at {archived}"
        name = next((name for name in stretches if name.first <= archived <= name.last), None)
        if name is None or row is None:
            return ""
        rows = await self._archive.read_stretch(name)
        return "" if rows[archived - name.first] == row else f"another row is at {archived}"

    def _snapshot_is_due(self, known: "_Known", now_s: float) -> bool:
        entries = self._order.position - self.snapshot_position
        age_ms = (now_s - known.made_s) * 1000
        return entries >= self._settings.snapshot_entries or (
            entries > 0 and age_ms >= self._settings.snapshot_interval_ms
        )

    # -- rows --------------------------------------------------------------------------------------

    async def _archive_rows(self, known: "_Known", *, until: int) -> None:
        """Put the rows up to a position that this agent has applied: there are no gaps below."""
        while self.archived_position < until:
            rows = await self._read_stretch(self.archived_position, until)
            if not rows:
                return
            name = await self._archive.put_stretch(rows)
            known.stretches.append(name)
            known.mark = RowMark.of(rows[-1])
            self.archived_position = name.last

    async def _read_stretch(self, after: int, until: int) -> list[JournalRow]:
        rows: list[JournalRow] = []
        size = 0
        while after < until:
            try:
                page = await self._journal.read(after, min(_PAGE_ROWS, until - after))
            except NotFoundError:
                if rows:
                    return rows
                # Trimmed by another agent, which had archived them: go on behind what it put.
                return await self._skip_trimmed(after, until)
            for row in page:
                if row.position > until or row.position != after + 1:
                    return rows
                size += len(row.body) + _ROW_OVERHEAD_BYTES
                if rows and size > STRETCH_BYTES_MAX:
                    return rows
                rows.append(row)
                after = row.position
            if not page:
                break
        return rows

    async def _skip_trimmed(self, after: int, until: int) -> list[JournalRow]:
        known = self._known = await self._look()
        if self.archived_position > after:
            return await self._read_stretch(self.archived_position, until)
        # No agent has these rows: a new snapshot makes the archive whole after them.
        logger.error(
            "the journal's rows behind position %d are trimmed and not archived: a restore to a "
            "moment between there and the next snapshot is not possible",
            after,
        )
        head = await self._journal.head()
        known.made_s = float("-inf")
        self.archived_position = max(after, head.first - 1)
        return await self._read_stretch(self.archived_position, until)

    # -- behind ------------------------------------------------------------------------------------

    async def _trim(self, known: "_Known") -> None:
        if len(known.snapshots) < SNAPSHOTS_MIN:
            return
        older = known.snapshots[-SNAPSHOTS_MIN]
        if older not in known.verified:
            try:
                await self._archive.check(older)
            except (CorruptDataError, NotFoundError) as error:
                saying = "nothing is trimmed behind a damaged snapshot"
                heard(Cause.TRIM, error, logger, saying)
                known.snapshots.remove(older)
                return
            known.verified.add(older)
        while deleted := await self._journal.trim(min(older.position, self.archived_position)):
            self.trimmed_count += deleted

    async def _delete_old(self, known: "_Known") -> None:
        now_ms = self._age_ms()
        if now_ms is None:
            return
        horizon_ms = min(known.newest_ms, now_ms) - self._settings.keep_ms
        if self._drop_lost is not None:
            await self._drop_lost(horizon_ms)
        doomed: list[SnapshotName] = []
        # The window's first moment needs the last snapshot before it.
        candidates = known.snapshots[: 1 - SNAPSHOTS_MIN]
        held_from = self._held_from()
        for index, name in enumerate(candidates[:-1]):
            if held_from is not None and candidates[index + 1].position >= held_from:
                break
            try:
                following_ms = await self._time_of(candidates[index + 1 :], now_ms)
            except (CorruptDataError, NotFoundError) as error:
                heard(Cause.TRIM, error, logger, "nothing older is deleted")
                break
            if following_ms > horizon_ms:
                break
            doomed.append(name)
        if not doomed:
            return
        # The stretches first: a snapshot is what says that they are needed.
        known.snapshots = known.snapshots[len(doomed) :]
        oldest = known.snapshots[0].position
        behind = [name for name in known.stretches if name.last <= oldest]
        await self._archive.delete(behind)
        await self._archive.delete(doomed)
        known.stretches = [name for name in known.stretches if name.last > oldest]

    async def _time_of(self, snapshots: list[SnapshotName], now_ms: int) -> int:
        """Journal time of the first of some snapshots; at most that of the next one, if it was made
        while journal time was ahead: such a time never comes."""
        for name in snapshots:
            header = await self._archive.header(name)
            if header.last_ms <= now_ms:
                return header.last_ms
        return now_ms

    async def _in_executor(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


class _Known:
    """An agent's knowledge of the archive. `made_s`: monotonic time of the newest snapshot;
    `newest_ms`: the snapshot's journal time; `mark`: the mark of the last archived row, if the
    journal had the row when it was looked at."""

    def __init__(
        self,
        snapshots: list[SnapshotName],
        stretches: list[StretchName],
        made_s: float,
        newest_ms: int,
        mark: RowMark | None,
    ) -> None:
        self.snapshots = snapshots
        self.stretches = stretches
        self.made_s = made_s
        self.newest_ms = newest_ms
        self.mark = mark
        self.verified: set[SnapshotName] = set()


def _write(write_snapshot: WriteSnapshot, target: Path) -> SnapshotInfo:
    target.parent.mkdir(parents=True, exist_ok=True)
    return write_snapshot(target)


def _reached(stretches: list[StretchName], start: int) -> int:
    """Return the position up to which rows go without a gap from `start` on."""
    reached = start
    for name in sorted(stretches):
        if name.first > reached + 1:
            break
        reached = max(reached, name.last)
    return reached
