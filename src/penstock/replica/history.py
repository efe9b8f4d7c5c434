"""Compares what is archived with the journal as it is now, which may have come back older.

A journal that lost its last rows (an asynchronous failover, a restore of its database) gives their
positions a second time. What was made of the lost rows then has the same positions as what the
journal holds, and other contents. Two histories share their rows up to where they part and none
after it, so that one row shows which of them a snapshot or a stretch belongs to.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.ports.journal import Journal, JournalHead, JournalRow
from penstock.replica.archive import Archive
from penstock.replica.archive_format import ArchiveHeader
from penstock.replica.marks import RowMark
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRow:
    """A row of which an archived object or a replica knows and which the journal has lost.

    `mark`: None where only its position is known (an object of an older release).
    """

    position: int
    mark: RowMark | None
    found: str
    """Description of what the journal holds instead."""


class PresentHistory:
    """The journal as it is now. Event loop only.

    Args:
        archive: where rows lie that the journal has trimmed.
        head: of the journal, read after what is compared was put.
    """

    def __init__(self, journal: Journal, archive: Archive, head: JournalHead) -> None:
        self._journal = journal
        self._archive = archive
        self.head = head
        self.lost: list[LostRow] = []
        """Rows that were found to be of a lost history."""

    async def lost_snapshot(self, header: ArchiveHeader) -> str:
        """Return why a snapshot is of a lost history; "": nothing says so."""
        position = header.last if header.mark is None else header.mark.position
        if position == 0:
            return ""  # a restored cluster's first, before any row
        if position > self.head.position:
            return self._note(position, header.mark, f"ends at position {self.head.position}")
        row = await self._journal.row(position)
        if row is None and position >= self.head.first:
            return self._note(position, header.mark, f"holds no row at position {position}")
        if header.mark is not None and row is not None:
            same = RowMark.of(row) == header.mark
        else:
            same = await self._same_in_archive(position, header.mark, row)
        if same:
            return ""
        return self._note(position, header.mark, f"holds another row at position {position}")

    async def lost_stretch(self, rows: Sequence[JournalRow]) -> str:
        """Return why the rows of a stretch are of a lost history; "": the journal holds its last,
        or has trimmed all of them."""
        last = rows[-1]
        if last.position < self.head.first:
            return ""
        mark = RowMark.of(last)
        if last.position > self.head.position:
            return self._note(last.position, mark, f"ends at position {self.head.position}")
        row = await self._journal.row(last.position)
        if row is None:
            head = await self._journal.head()
            if last.position < head.first:
                return ""  # trimmed since
            return self._note(last.position, mark, f"holds no row at position {last.position}")
        if row != last:
            return self._note(last.position, mark, f"holds another row at position {last.position}")
        return ""

    async def _same_in_archive(
        self, position: int, mark: RowMark | None, row: JournalRow | None
    ) -> bool:
        """Return whether an archived row fits what is known of it; so does one that is missing."""
        found = 0
        for name in await self._archive.stretches():
            if not name.first <= position <= name.last:
                continue
            try:
                archived = (await self._archive.read_stretch(name))[position - name.first]
            except (CorruptDataError, NotFoundError) as error:
                heard(Cause.ARCHIVE_OBJECT, error, logger, "passing over rows of the archive")
                continue
            if (row is None or archived == row) and (mark is None or RowMark.of(archived) == mark):
                return True
            found += 1
        return not found

    def _note(self, position: int, mark: RowMark | None, found: str) -> str:
        self.lost.append(LostRow(position=position, mark=mark, found=found))
        return f"it is of a history that the journal has lost: the journal {found}"
