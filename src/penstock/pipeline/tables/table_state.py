"""A table's job notes what it knows of the table: `TableProgress.state`, as JSON. Pure.

It is for people, `penstock status`, `penstock pipeline plan` and metrics; no job relies on it.
"""

from typing import Final

import msgspec

from penstock.model.malformed import MALFORMED
from penstock.pipeline.api_messages import Range

OK: Final = "ok"
STOPPED: Final = "stopped"
UNKNOWN: Final = -1


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """The note. What is UNKNOWN a release before this one has noted."""

    status: str = OK
    """OK or STOPPED."""
    error: str = ""
    lost: list[Range] = []
    """All that were ever lost, the newest last, bounded."""
    bad_records: int = 0
    """All that were ever set aside."""
    rows: int = UNKNOWN
    """The rows of the newest snapshot, row-level deletes of others not counted."""
    files: int = UNKNOWN
    """The data files of the newest snapshot."""
    snapshots: int = UNKNOWN
    followed: int = 0
    """The offsets that commits took since a release notes it."""
    set_aside: int = 0
    """How many of them became dead letters."""
    conflicts: int = 0
    """The commits that another one was ahead of."""

    @property
    def bad_share(self) -> float:
        """The share of records that became dead letters, from 0 to 1."""
        return self.set_aside / self.followed if self.followed else 0.0


def decode_state(text: str) -> TableState:
    """Read a note; an empty one where it is of no form that this release knows."""
    try:
        return msgspec.json.decode(text or "{}", type=TableState)
    except MALFORMED:
        return TableState()
