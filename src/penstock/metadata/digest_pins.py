"""The states that digests are asked of, held until somebody hashes them."""

import logging
import sqlite3
from pathlib import Path

from penstock.metadata.apply import EntryOutcome
from penstock.model.errors import PenstockError
from penstock.replica.pinned import PinnedState

logger = logging.getLogger(__name__)


class DigestPins:
    """Holds the state of the last `AskDigest` alone; see `penstock.replica.follower.Pins`.

    `pin` is called where rows are applied, `take` on the event loop; each replaces one reference.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pinned: PinnedState | None = None
        self.failure_count = 0
        """States that could not be held: this agent does not answer for them."""

    def wants(self, outcome: EntryOutcome) -> bool:
        """See `Pins`."""
        return outcome.asks_digest

    def pin(self, position: int) -> None:
        """See `Pins`."""
        try:
            pinned = PinnedState(self._path)
        except (PenstockError, sqlite3.Error) as error:
            self.failure_count += 1
            logger.warning("the state of position %d can't be held to hash it: %s", position, error)
            return
        older, self._pinned = self._pinned, pinned
        if older is not None:
            older.close()

    def take(self) -> PinnedState | None:
        """The state to hash; the caller closes it."""
        pinned, self._pinned = self._pinned, None
        return pinned

    def close(self) -> None:
        """Let go."""
        pinned = self.take()
        if pinned is not None:
            pinned.close()
