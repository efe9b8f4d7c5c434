"""Where journal time was set back, in an archive: what a restore to a time looks for.

Journal times ascend from row to row, save where a `SetJournalTime` lowers them. So the rows up to a
time may go on after rows above it. Which row does that is found by the stretches' headers: one
lowers journal time only to within 5 s of its own stamp, so that a stretch whose least stamp is
later holds none. docs/formats/archive.md, "Restore".
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.ports.journal import JournalRow
from penstock.replica.archive import Archive
from penstock.replica.archive_format import StretchName
from penstock.state.commands import SetJournalTime
from penstock.state.entries import decode_entry
from penstock.state.journal_time import AGREEMENT_MS
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 16
"""Stretches that are looked at side by side; few of them are read whole."""


async def last_set_back(archive: Archive, *, after: int, until: int, time_ms: int) -> int | None:
    """Return the last row in (after, until] that may have set journal time back to `time_ms` or
    earlier; None: there is none.

    One read of 160 bytes per stretch, and those whole that may hold such a row.

    Raises:
        RetryableError: the store doesn't answer.
    """
    names = [
        name for name in await archive.stretches() if name.last > after and name.first <= until
    ]
    found: int | None = None
    for at in range(0, len(names), _AT_ONCE):
        reads = (_early_rows(archive, name, time_ms) for name in names[at : at + _AT_ONCE])
        for rows in await asyncio.gather(*reads):
            for row in rows:
                if after < row.position <= until and _sets_back(row, time_ms):
                    found = max(found or 0, row.position)
    return found


async def _early_rows(archive: Archive, name: StretchName, time_ms: int) -> Sequence[JournalRow]:
    """Return the rows of a stretch that may set journal time back to a time; of others none."""
    try:
        header = await archive.header(name)
        if header.first_ms > time_ms + AGREEMENT_MS:
            return ()
        return await archive.read_stretch(name)
    except (CorruptDataError, NotFoundError) as error:
        # Another may hold the same rows; and a replay that needs these says so.
        saying = f"whether journal time was set back in {name.key} isn't known"
        heard(Cause.ARCHIVE_OBJECT, error, logger, saying, logging.ERROR)
        return ()


def _sets_back(row: JournalRow, time_ms: int) -> bool:
    if not row.body:
        return False
    return any(
        type(command) is SetJournalTime and command.time_ms <= time_ms
        for command in decode_entry(row.body, position=row.position).commands
    )
