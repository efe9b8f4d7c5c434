"""Takes a set of snapshots whenever one is due and no other instance is at it."""

import logging
from collections.abc import Callable
from typing import Final

from penstock.authz.service.archiving import SetArchive, SnapshotSettings, Snapshotted
from penstock.authz.service.shard import Shard
from penstock.model.errors import PenstockError
from penstock.ports.clock import Clock
from penstock.system.heard import Cause, heard
from penstock.system.waiting import wait

logger = logging.getLogger(__name__)

HOLD_MS: Final = 600_000
"""How long a claim holds: another instance tries again after it."""


class Archivist:
    """One instance's. Event loop only.

    Args:
        use: opens an environment, which stays open until `let_go`.
    """

    def __init__(
        self,
        shard: Shard,
        archive: SetArchive,
        *,
        clock: Clock,
        settings: SnapshotSettings,
        use: Callable[[str], Snapshotted],
        let_go: Callable[[str], None],
    ) -> None:
        self._shard = shard
        self._archive = archive
        self._clock = clock
        self._settings = settings
        self._use = use
        self._let_go = let_go
        self._made_s = clock.monotonic_s()
        self.position = 0
        """The journal's position of the newest set, as far as this instance knows."""
        self.taken_count = 0
        """Sets that this instance has taken."""

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await wait(self._settings.look_s)
            try:
                await self.run_once()
            except PenstockError as error:
                heard(Cause.AUTHZ_SNAPSHOTS, error, logger, "snapshots are taken later")

    async def run_once(self) -> bool:
        """Take a set if one is due; whether it was.

        Raises:
            PenstockError: to be tried again; nothing was trimmed that a set needs.
        """
        if not self._is_due():
            return False
        await self._look()
        if not self._is_due() or not await self._shard.claim(HOLD_MS):
            return False
        # Another may have taken one between the look and the claim.
        await self._look()
        if not self._is_due():
            return False
        found = await self._archive.take(
            self._shard.journal,
            position=lambda: self._shard.position,
            use=self._use,
            let_go=self._let_go,
        )
        self.position = found.shard[0]
        self._made_s = self._clock.monotonic_s()
        self.taken_count += 1
        logger.info("snapshots of position %d are taken", self.position)
        return True

    async def _look(self) -> None:
        """See what other instances have taken."""
        sets = await self._archive.usable(self._shard.journal)
        if sets and sets[-1].shard[0] != self.position:
            self.position = sets[-1].shard[0]
            # Its age by the wall clock: where that is wrong the next one is only early or late.
            age_s = max(0, self._clock.now_ms() - sets[-1].time_ms) / 1000
            self._made_s = self._clock.monotonic_s() - age_s

    def _is_due(self) -> bool:
        entries = self._shard.position - self.position
        age_s = self._clock.monotonic_s() - self._made_s
        return entries >= self._settings.entries or (
            entries > 0 and age_s >= self._settings.interval_s
        )
