"""A mark: by which a row of the journal is known again, without the row itself."""

from dataclasses import dataclass

from crc32c import crc32c

from penstock.model.errors import CorruptDataError
from penstock.ports.journal import JournalRow

LOCAL_MARK = "journal row"
"""Name of the replica's local value that holds the mark of the last row applied."""


@dataclass(frozen=True, slots=True)
class RowMark:
    """Position, the journal's stamp in ms, and CRC-32C of the row's body."""

    position: int
    stamp_ms: int
    crc: int

    @classmethod
    def of(cls, row: JournalRow) -> "RowMark":
        """The mark of a row."""
        return cls(row.position, row.stamp_ms, crc32c(row.body))

    @classmethod
    def parse(cls, text: object) -> "RowMark | None":
        """The inverse of `text`; None for no text (an older replica has no mark).

        Raises:
            CorruptDataError: it is not what was written.
        """
        if not isinstance(text, str):
            return None
        try:
            position, stamp_ms, crc = map(int, text.split())
        except ValueError as error:
            raise CorruptDataError("read mark", LOCAL_MARK, repr(text[:80])) from error
        return cls(position, stamp_ms, crc)

    @property
    def text(self) -> str:
        """Return the mark as a replica keeps it."""
        return f"{self.position} {self.stamp_ms} {self.crc}"
