"""The part of the archive that belongs to a history which the journal has lost is set aside.

The archiver asks when the last archived row isn't the journal's: the journal came back older (an
asynchronous failover, a restore of its database). Order of effects: the loss is noted in the
journal -> what is common to both histories and lies in a lost stretch alone is archived by itself
-> lost objects are copied to `archive/lost/<history>/` -> they are deleted where they were. Each
step may be repeated after a crash. docs/formats/archive.md, "Lost histories".
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.ports.journal import Journal, JournalRow
from penstock.replica.archive import Archive
from penstock.replica.archive_format import SnapshotName, StretchName
from penstock.replica.history import PresentHistory
from penstock.replica.marks import RowMark
from penstock.state.commands import NoteLostHistory
from penstock.state.rows import LostReason
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

_UNREAD: Final = "passing over an object of the archive"

_PAGE_ROWS = 1_000

NoteLost = Callable[[NoteLostHistory], Awaitable[int]]
"""Journals a lost history; its number. Raises: PenstockError, to be tried again."""


@dataclass(slots=True)
class ArchivedLoss:
    """Archived objects of a lost history. `start`: the first lost position; `mark`: of the last
    lost row that is known."""

    start: int
    mark: RowMark
    stretches: list[tuple[StretchName, list[JournalRow]]] = field(default_factory=list)
    snapshots: list[SnapshotName] = field(default_factory=list)

    @property
    def note(self) -> NoteLostHistory:
        """Return the command that notes the loss in the journal."""
        return NoteLostHistory(
            start=min(self.start, self.mark.position),
            end=self.mark.position,
            stamp_ms=self.mark.stamp_ms,
            crc=self.mark.crc,
            reason=LostReason.STRETCH if self.stretches else LostReason.SNAPSHOT,
        )


async def find_loss(
    journal: Journal,
    archive: Archive,
    *,
    snapshots: Sequence[SnapshotName],
    stretches: Sequence[StretchName],
) -> ArchivedLoss | None:
    """Return what is archived of rows that the journal has lost; None: nothing that can be read.

    Reads all stretches that reach into what the journal still holds.
    """
    head = await journal.head()
    history = PresentHistory(journal, archive, head)
    loss = ArchivedLoss(head.position + 1, RowMark(0, 0, 0))
    for name in stretches:
        # Rows before the journal's first were deleted because snapshots hold them: not a loss.
        if name.last < head.first:
            continue
        try:
            rows = await archive.read_stretch(name)
        except (CorruptDataError, NotFoundError) as error:
            heard(Cause.ARCHIVE_OBJECT, error, logger, _UNREAD)
            continue
        if not await history.lost_stretch(rows):
            continue
        loss.stretches.append((name, rows))
        loss.start = min(loss.start, await _first_lost(journal, rows))
        if name.last > loss.mark.position:
            loss.mark = RowMark.of(rows[-1])
    for snapshot in snapshots:
        if snapshot.position < head.first:
            continue
        try:
            header = await archive.header(snapshot)
        except (CorruptDataError, NotFoundError) as error:
            heard(Cause.ARCHIVE_OBJECT, error, logger, _UNREAD)
            continue
        if not await history.lost_snapshot(header):
            continue
        loss.snapshots.append(snapshot)
        if header.mark is not None and header.mark.position > loss.mark.position:
            loss.mark = header.mark
    if not loss.mark.position:
        return None
    # A snapshot shows that rows differ, not which: all after the last row that both have may.
    if not loss.stretches:
        loss.start = await first_unproven(journal, archive, loss.mark.position)
    return loss


async def first_unproven(journal: Journal, archive: Archive, end: int) -> int:
    """The first position, at most `end`, that isn't known to be the same in the journal and in a
    history that it lost at or before `end`: the one after the last row that both the journal and
    the archive hold."""
    head = await journal.head()
    common = head.first - 1
    for name in sorted(await archive.stretches(), key=lambda name: name.last, reverse=True):
        if not common < name.last <= min(end, head.position):
            continue
        row = await journal.row(name.last)
        try:
            if row is not None and (await archive.read_stretch(name))[-1] == row:
                common = name.last
        except (CorruptDataError, NotFoundError) as error:
            heard(Cause.ARCHIVE_OBJECT, error, logger, _UNREAD)
    return max(1, min(common + 1, end))


async def set_loss_aside(archive: Archive, loss: ArchivedLoss, history: int) -> None:
    """Move lost objects to where those of the present history never come."""
    for name, rows in loss.stretches:
        common = [row for row in rows if row.position < loss.start]
        if common:
            # The journal may have trimmed them: then nothing else holds them.
            await archive.put_stretch(common)
        target = StretchName(name.first, name.last, history, RowMark.of(rows[-1]).crc)
        await archive.copy(name, target)
    for snapshot in loss.snapshots:
        target_name = SnapshotName(snapshot.position, snapshot.digest_hex, history)
        await archive.copy(snapshot, target_name)
    # The stretches last: they are what shows that the archive holds a lost history.
    await archive.delete(loss.snapshots)
    await archive.delete([name for name, _ in loss.stretches])
    logger.error(
        "set aside in the archive: %d stretches and %d snapshots of lost history %d",
        len(loss.stretches),
        len(loss.snapshots),
        history,
    )


async def _first_lost(journal: Journal, rows: Sequence[JournalRow]) -> int:
    """Return where the rows of a lost stretch part from the journal's."""
    after = rows[0].position - 1
    try:
        page = {row.position: row for row in await journal.read(after, _PAGE_ROWS)}
    except NotFoundError:
        page = {}  # its first rows are trimmed: one by one
    for row in rows:
        held = page.get(row.position) or await journal.row(row.position)
        if held is None:
            head = await journal.head()
            if row.position < head.first:
                continue
        if held != row:
            return row.position
    return rows[-1].position
