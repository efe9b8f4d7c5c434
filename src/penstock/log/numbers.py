"""The numbers of an agent's segment objects, and which of them may still be named.

A key is (agent, epoch, n). Everything of an older epoch can't be committed any more; of its own
epoch the agent alone knows what is in flight. What came to nothing is remembered here until the
keeper has condemned it, so that no other agent needs to guess at a live agent's objects.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from penstock.model.errors import ConflictError
from penstock.segment import object_key

logger = logging.getLogger(__name__)

_SAID_AGAIN_S: Final = 60.0
_ORPHANS_MAX: Final = 10_000
"""Keys remembered; further ones are found by listing once the epoch is over."""


class ObjectNumbers:
    """Gives out object keys of one epoch. Event loop only."""

    def __init__(self, identity: tuple[int, int]) -> None:
        """
        Args:
            identity: (agent id, epoch); set again before the first number, where the epoch is
                opened later.
        """
        self.identity = identity
        self._next = 1
        self._in_flight: set[int] = set()
        self._orphans: deque[str] = deque(maxlen=_ORPHANS_MAX)
        self.foreign: set[int] = set()
        """Numbers under whose keys others' objects lie: not this epoch's to delete."""
        self._said_s = float("-inf")

    def begin(self) -> int:
        """A number that was never given out; in flight until `end`."""
        number = self._next
        self._next += 1
        self._in_flight.add(number)
        return number

    def key(self, number: int) -> str:
        """The key of an object."""
        agent, epoch = self.identity
        return object_key(agent=agent, epoch=epoch, n=number)

    def end(self, number: int, *, named: bool) -> None:
        """Note that no command that names this object is under way any more.

        Args:
            named: false: none ever was applied, and the object may be in the store.
        """
        self._in_flight.discard(number)
        if not named:
            self._orphans.append(self.key(number))

    def skip(self, number: int, error: ConflictError) -> None:
        """Another writer's object lies under this number's key, and stays: the next number is
        taken instead. It is said once a minute, since every put may meet one."""
        self._in_flight.discard(number)
        self.foreign.add(number)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._said_s + _SAID_AGAIN_S:
            self._said_s = now_s
            logger.error("another object is taken instead, %d so far: %s", len(self.foreign), error)

    def in_flight_from(self) -> int:
        """Keys of this epoch with a lower n were committed, or never will be."""
        return min(self._in_flight, default=self._next)

    def take_orphans(self, limit: int) -> list[str]:
        """Keys that came to nothing, to be condemned; `put_back` what could not be."""
        return [self._orphans.popleft() for _ in range(min(limit, len(self._orphans)))]

    def put_back(self, keys: list[str]) -> None:
        """See `take_orphans`."""
        self._orphans.extendleft(reversed(keys))
