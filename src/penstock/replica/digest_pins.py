"""The states that digests are asked of, held until they are hashed."""

import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from penstock.model.errors import PenstockError
from penstock.replica.pinned import PinnedState
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)


OutcomeT = TypeVar("OutcomeT")


class DigestPins(Generic[OutcomeT]):
    """Holds the state of the last digest that was asked for, and no other.

    See `penstock.replica.follower.Pins`.

    `pin` is called where rows are applied, by any thread, `take` on the event loop.

    Args:
        asks: whether a row with this outcome asks for a digest.
    """

    def __init__(self, path: Path, asks: Callable[[OutcomeT], bool]) -> None:
        self._asks = asks
        self._path = path
        self._lock = threading.Lock()
        self._pinned: PinnedState | None = None
        self.failure_count = 0
        """States that could not be held: this agent does not answer for them."""

    def wants(self, outcome: OutcomeT) -> bool:
        """See `Pins`."""
        return self._asks(outcome)

    def pin(self, position: int) -> None:
        """See `Pins`."""
        try:
            pinned = PinnedState(self._path)
        except (PenstockError, sqlite3.Error) as error:
            self.failure_count += 1
            heard(Cause.HOLD_STATE, error, logger, f"no hash of the state of position {position}")
            return
        self._replace(pinned)

    def take(self, position: int) -> PinnedState | None:
        """The state to hash, if it is the one of a position; the caller closes it.

        An older state is let go. A newer one stays: the row that asks for it is applied, and what
        the caller knows of rounds follows a moment later.
        """
        with self._lock:
            pinned = self._pinned
            if pinned is None or pinned.position > position:
                return None
            self._pinned = None
        if pinned.position == position:
            return pinned
        pinned.close()
        return None

    def close(self) -> None:
        """Let go of the state that is held."""
        self._replace(None)

    def _replace(self, pinned: PinnedState | None) -> None:
        with self._lock:
            older, self._pinned = self._pinned, pinned
        if older is not None:
            older.close()
