"""A restore to a time looks in the archive for rows that set journal time back.

Journal times ascend from row to row, except where a `SetJournalTime` lowers them. So rows up to a
time may follow rows above that time. The headers of stretches help to find such a row: it lowers
journal time only to within 5 s of its own stamp, so a stretch whose least stamp is later has none.
docs/formats/archive.md, "Restore".
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
"""The number of stretches that are looked at together; few of them are read whole."""


async def last_set_back(archive: Archive, *, after: int, until: int, time_ms: int) -> int | None:
    """Return the last row in (after, until] that may have set journal time back to `time_ms` or
    earlier; None: there is none.

    Each stretch costs one read of 160 bytes; stretches that may hold such a row are read whole.

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
    """Return the rows of a stretch if it may set journal time back to a time, else none."""
    try:
        header = await archive.header(name)
        if header.first_ms > time_ms + AGREEMENT_MS:
            return ()
        return await archive.read_stretch(name)
    except (CorruptDataError, NotFoundError) as error:
        # Another stretch may hold the same rows; a replay that needs these rows raises an error.
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
