"""Long replies are given to a transport of TLS in pieces, as the socket takes them.

Such a transport encrypts at once all that it is given, and hands it to the socket's transport,
whose buffer it doesn't count: a peer that reads nothing would have the server hold its whole reply,
twice, where no limit sees it. What waits here is counted.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import Buffer

PIECE_BYTES: Final = 64 << 10
"""The socket's transport pauses above as much."""
_TURN_BYTES: Final = 1 << 20
"""Encrypted at most, about a millisecond's work, before other connections have their turn."""


class PacedSender:
    """The unsent part of one connection's replies.

    Args:
        emptied: called when all has been given away, if that was not within `send`.
    """

    def __init__(self, transport: asyncio.Transport, *, emptied: Callable[[], None]) -> None:
        self._transport = transport
        self._emptied = emptied
        self._queue: deque[memoryview] = deque()
        self._turn: asyncio.Handle | None = None
        self.unsent_bytes = 0
        """Bytes of all parts that wait here."""

    @property
    def busy(self) -> bool:
        """Whether something waits here."""
        return bool(self._queue)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send after what waits already."""
        begins = not self._queue
        views = [memoryview(part).cast("B") for part in parts]
        self._queue.extend(view for view in views if view)
        self.unsent_bytes += sum(map(len, views))
        if begins:
            self._go()

    def resume(self) -> None:
        """The transport's write buffer is empty again."""
        if self._queue and self._turn is None and self._go():
            self._emptied()

    def clear(self) -> None:
        """Forget everything: the connection is gone."""
        self._queue.clear()
        self.unsent_bytes = 0
        if self._turn is not None:
            self._turn.cancel()

    def _next_turn(self) -> None:
        self._turn = None
        self.resume()

    def _go(self) -> bool:
        """Send until the socket is full, a turn is over or nothing is left; whether it's that."""
        transport, queue = self._transport, self._queue
        left = _TURN_BYTES
        while queue:
            if transport.is_closing():
                self.clear()
                return False
            if transport.get_write_buffer_size():
                return False
            if left <= 0:
                self._turn = asyncio.get_running_loop().call_soon(self._next_turn)
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
