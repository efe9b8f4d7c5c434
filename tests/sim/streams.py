"""One direction of a simulated connection: bytes in their order, in pieces, some of them late.

A way has no frames. Where chance cuts them, pieces arrive one after the other, each after a delay
of its own; a way that is cut loses a last part of what has not arrived, which may begin in the
middle of a frame, and ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sim.chance import Chance
    from support.simulated.virtual_loop import VirtualLoop

UNLIMITED: Final = 1 << 20
ROOMS: Final = (64, 700, UNLIMITED)
"""Bytes that a socket may hold for a client which has not read them."""
WHOLE_SHARE: Final = 0.85
"""Of the pieces that are all there is."""
DRIP_SHARE: Final = 0.05
"""Of the other pieces that are a few bytes."""


class Way:
    """Carries bytes one way. Its timers are the network's and run in no process.

    Args:
        delay: draws the seconds that a piece takes.
        arrived: called with each piece.
        ended: called once, after the last piece.
        left: called when bytes have left, so that there is room for others.
        capacity_bytes: how much may be under way.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        chance: Chance,
        *,
        delay: Callable[[], float],
        arrived: Callable[[bytes], None],
        ended: Callable[[], None],
        left: Callable[[], None] = lambda: None,
        capacity_bytes: int = UNLIMITED,
    ) -> None:
        self._loop = loop
        self._chance = chance
        self._delay = delay
        self._arrived = arrived
        self._ended = ended
        self._left = left
        self._capacity_bytes = capacity_bytes
        self._queue = bytearray()
        self._is_ending = self._is_over = self._is_moving = False

    @property
    def room_bytes(self) -> int:
        """As much may be sent now."""
        return max(0, self._capacity_bytes - len(self._queue))

    def send(self, data: bytes) -> None:
        """Send bytes after those that are under way."""
        if not self._is_ending:
            self._queue += data
            self._move()

    def end(self) -> None:
        """Send nothing more."""
        if not self._is_ending:
            self._is_ending = True
            self._move()

    def cut(self) -> None:
        """Lose a last part of what is under way, and end."""
        del self._queue[self._chance.below(len(self._queue) + 1) :]
        self.end()

    def _move(self) -> None:
        if not self._is_moving:
            self._is_moving = True
            loop = self._loop
            loop.call_later(self._delay(), self._step, context=loop.context_of(loop.world))

    def _step(self) -> None:
        self._is_moving = False
        queue, chance = self._queue, self._chance
        if queue:
            count = len(queue)
            if not chance.happens(WHOLE_SHARE):
                count = 1 + chance.below(min(count, 8) if chance.happens(DRIP_SHARE) else count)
            piece = bytes(queue[:count])
            del queue[:count]
            self._arrived(piece)
            self._left()
        if queue:
            self._move()
        elif self._is_ending and not self._is_over:
            self._is_over = True
            self._ended()
