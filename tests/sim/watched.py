"""The bucket and the journal of a run, which remember what was ever in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.ports.journal import JournalRow
from support.simulated.journal import SimulatedJournal
from support.simulated.store import SimulatedBucket
from support.simulated.virtual_loop import VirtualLoop


class WatchedBucket(SimulatedBucket):
    """Remembers what ever was in it."""

    def __init__(self, loop: VirtualLoop, **options: Any) -> None:
        super().__init__(loop, **options)
        self.ever_put: set[str] = set()
        self.ever_condemned: dict[str, tuple[int, int]] = {}
        """By key, position and journal time of the first entry that condemned it, also where the
        journal has lost that."""
        self.on_overwrite: Callable[[str], None] = lambda _key: None

    async def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        """See the port. A segment's key never gets other bytes."""
        found = self.objects.get(key)
        if not (if_absent or self.away) and found is not None and found.data != data:
            self.on_overwrite(key)
        await super().put(key, data, if_absent=if_absent)


class WatchedJournal(SimulatedJournal):
    """Remembers what it has trimmed, and tells before it does."""

    on_trim: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ever: dict[int, JournalRow] = {}

    def trim(self, up_to: int) -> int:
        """See `SimulatedJournal`."""
        self.on_trim()
        return super().trim(up_to)

    def row_ever(self, position: int) -> JournalRow | None:
        """The row at a position, also where it was trimmed."""
        return self._ever.get(position)

    def come_back_older(self, position: int) -> None:
        """See `SimulatedJournal`."""
        super().come_back_older(position)
        self._ever = {found: row for found, row in self._ever.items() if found <= position}

    def _show(self, row: JournalRow) -> None:
        self._ever[row.position] = row
        super()._show(row)
