"""The numbers of an agent's segment objects, and which of them may still be named.

A key is (agent, epoch, n). Everything of an older epoch can't be committed any more; of its own
epoch the agent alone knows what is in flight. What came to nothing is remembered here until the
keeper has condemned it, so that no other agent needs to guess at a live agent's objects.
"""

from collections import deque
from typing import Final

from penstock.segment import object_key

_ORPHANS_MAX: Final = 10_000
"""Keys remembered; further ones are found by listing once the epoch is over."""


class ObjectNumbers:
    """Gives out object keys of one epoch. Event loop only."""

    def __init__(self, identity: tuple[int, int]) -> None:
        """
        Args:
            identity: (agent id, epoch); set anew before the first number, where the epoch is
                opened later.
        """
        self.identity = identity
        self._next = 1
        self._in_flight: set[int] = set()
        self._orphans: deque[str] = deque(maxlen=_ORPHANS_MAX)

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
        """No command that names this object is under way any more.

        Args:
            named: false: none ever was applied, and the object may be in the store.
        """
        self._in_flight.discard(number)
        if not named:
            self._orphans.append(self.key(number))

    def in_flight_from(self) -> int:
        """Keys of this epoch with a lower n were committed, or never will be."""
        return min(self._in_flight, default=self._next)

    def take_orphans(self, limit: int) -> list[str]:
        """Keys that came to nothing, to be condemned; `put_back` what could not be."""
        return [self._orphans.popleft() for _ in range(min(limit, len(self._orphans)))]

    def put_back(self, keys: list[str]) -> None:
        """See `take_orphans`."""
        self._orphans.extendleft(reversed(keys))
