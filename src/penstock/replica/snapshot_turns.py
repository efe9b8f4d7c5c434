"""Takes a snapshot whenever one is due and no other instance is at it."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import PenstockError
from penstock.ports.clock import Clock
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

HOLD_MS: Final = 600_000
"""How long a claim holds: another instance tries again after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """A snapshot is due after so many entries of the journal, or after a time with any."""

    entries: int = 500_000
    interval_s: float = 900.0
    look_s: float = 10.0


class SnapshotTurns:
    """One instance's. Event loop only.

    Args:
        applied: gives the journal's position that is applied here.
        newest: gives position and time (ms) of the newest snapshot in the store; None: none.
        claim: claims the taking for so many ms; False: another instance holds it.
        take: takes one, and gives its position.
        cause: counts failures.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        settings: SnapshotSettings,
        applied: Callable[[], int],
        newest: Callable[[], Awaitable[tuple[int, int] | None]],
        claim: Callable[[int], Awaitable[bool]],
        take: Callable[[], Awaitable[int]],
        cause: Cause,
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._applied = applied
        self._newest = newest
        self._claim = claim
        self._take = take
        self._cause = cause
        self._made_s = clock.monotonic_s()
        self.position = 0
        """The journal's position of the newest snapshot, as far as this instance knows."""
        self.taken_count = 0
        """Snapshots that this instance has taken."""

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await wait(self._settings.look_s)
            try:
                await self.run_once()
            except PenstockError as error:
                heard(self._cause, error, logger, "snapshots are taken later")

    async def run_once(self) -> bool:
        """Take one if it is due; whether it was.

        Raises:
            PenstockError: to be tried again; nothing was trimmed that a snapshot needs.
        """
        if not self._is_due():
            return False
        await self._look()
        if not self._is_due() or not await self._claim(HOLD_MS):
            return False
        # Another may have taken one between the look and the claim.
        await self._look()
        if not self._is_due():
            return False
        self.position = await self._take()
        self._made_s = self._clock.monotonic_s()
        self.taken_count += 1
        logger.info("snapshots of position %d are taken", self.position)
        return True

    async def _look(self) -> None:
        """See what other instances have taken."""
        newest = await self._newest()
        if newest is not None and newest[0] != self.position:
            self.position, time_ms = newest
            # Its age by the wall clock: where that is wrong the next one is only early or late.
            age_s = max(0, self._clock.now_ms() - time_ms) / 1000
            self._made_s = self._clock.monotonic_s() - age_s

    def _is_due(self) -> bool:
        entries = self._applied() - self.position
        age_s = self._clock.monotonic_s() - self._made_s
        return entries >= self._settings.entries or (
            entries > 0 and age_s >= self._settings.interval_s
        )
