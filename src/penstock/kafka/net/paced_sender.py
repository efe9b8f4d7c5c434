"""Long replies are given to a transport of TLS in pieces, as the socket takes them.

Such a transport encrypts at once all that it is given, and hands it to the socket's transport,
whose buffer it doesn't count: a peer that reads nothing would have the server hold its whole reply,
twice, where no limit sees it. What waits here is counted.
"""

from collections.abc import Sequence
from typing import Final

from typing_extensions import Buffer

from penstock.kafka.net.turns import TurnSender

PIECE_BYTES: Final = 64 << 10
"""The socket's transport pauses above as much."""
_TURN_BYTES: Final = 1 << 20
"""Encrypted at most, about a millisecond's work, before other connections have their turn."""


class PacedSender(TurnSender[memoryview]):
    """The unsent part of one connection's replies."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send after what waits already."""
        views = [memoryview(part).cast("B") for part in parts]
        self._add((view for view in views if view), sum(map(len, views)))

    def _go(self) -> bool:
        transport, queue = self._transport, self._queue
        left = _TURN_BYTES
        while queue:
            if transport.is_closing():
                self.clear()
                return False
            if transport.get_write_buffer_size():
                return False
            if left <= 0:
                self._end_turn()
                return False
            piece = self._take()
            left -= len(piece)
            transport.write(piece)
        return True

    def _take(self) -> "memoryview | bytearray":
        """Take the next piece; small parts are joined, since each write has a record of its own."""
        queue, piece = self._queue, bytearray()
        first = queue[0]
        if len(first) >= PIECE_BYTES:
            if len(first) == PIECE_BYTES:
                queue.popleft()
            else:
                queue[0] = first[PIECE_BYTES:]
            self.unsent_bytes -= PIECE_BYTES
            return first[:PIECE_BYTES]
        while queue and len(piece) + len(queue[0]) <= PIECE_BYTES:
            piece += queue.popleft()
        self.unsent_bytes -= len(piece)
        return piece
