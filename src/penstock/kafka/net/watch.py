"""Ends connections whose peers stand still or are late, and the slowest once the lanes are full."""

from typing import Protocol

from penstock.kafka.net.lanes import Lanes
from penstock.kafka.net.movement import Ending, Movement, Patience, Sample


class Watched(Protocol):
    """A connection."""

    def sample(self, now_s: float) -> Sample | None:
        """Return the state of the connection's bytes; None: it receives and sends nothing now."""
        ...

    def holds_of(self, lanes: Lanes) -> bool:
        """Whether something of this connection counts in these lanes."""
        ...

    def end_slow(self, ending: Ending, movement: Movement) -> None:
        """Close at once and give back what it holds in the lanes."""
        ...


class Watch:
    """Looks at the connections of one server whose bytes are on their way.

    A connection is added whenever a request of it is received in part or a reply is not taken
    whole, and leaves by itself. Those that are idle, 10,000 perhaps, are not looked at here.

    Args:
        lanes: the server's. While the limit of one was reached in two looks one after the other,
            slow connections that count there are ended, the slowest first, until an eighth is
            free: others wait for it.
    """

    def __init__(self, patience: Patience, *lanes: Lanes) -> None:
        self._patience = patience
        self._were_full = dict.fromkeys(lanes, False)
        self._moving: dict[Watched, Movement | None] = {}

    def add(self, connection: Watched) -> None:
        """Look at it from now on. Cheap, and idempotent."""
        self._moving.setdefault(connection, None)

    def discard(self, connection: Watched) -> None:
        """Forget a connection that is gone."""
        self._moving.pop(connection, None)

    def look(self, now_s: float) -> None:
        """Look at all of them. To be called about once a second.

        Args:
            now_s: the clock's monotonic time.
        """
        slow: list[_Slow] = []
        for connection, movement in list(self._moving.items()):
            sample = connection.sample(now_s)
            if sample is None:
                self._moving.pop(connection, None)
            elif movement is None:
                self._moving[connection] = Movement(sample)
            else:
                ending = movement.follow(sample, self._patience)
                if ending is not None:
                    connection.end_slow(ending, movement)
                elif movement.slow is not None:
                    slow.append((movement.bytes_per_s, len(slow), connection, movement))
        for lanes, was_full in self._were_full.items():
            if was_full and lanes.is_full:
                _make_room(lanes, slow)
            self._were_full[lanes] = lanes.is_full


_Slow = tuple[float, int, Watched, Movement]
"""Bytes per second, a number that tells apart equally slow ones, and the connection."""


def _make_room(lanes: Lanes, slow: list[_Slow]) -> None:
    enough = lanes.limit_bytes // 8
    for _, _, connection, movement in sorted(slow, key=lambda found: found[:2]):
        if lanes.room_bytes >= enough:
            return
        assert movement.slow is not None
        if connection.holds_of(lanes):
            connection.end_slow(movement.slow, movement)
