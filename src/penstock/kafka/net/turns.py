"""Hold what a connection has still to send, and send in turns while the transport is empty.

A sender gives nothing to a transport that has bytes of its own to write, so that all that waits is
counted, and a long reply leaves room for other connections after each turn.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Part = TypeVar("Part")


class TurnSender(ABC, Generic[Part]):
    """The unsent part of one connection's replies.

    Args:
        emptied: called when all has been given away, if that was not within `send`.
    """

    def __init__(self, transport: asyncio.Transport, *, emptied: Callable[[], None]) -> None:
        self._transport = transport
        self._emptied = emptied
        self._queue: deque[Part] = deque()
        self._turn: asyncio.Handle | None = None
        self.unsent_bytes = 0
        """Bytes of all parts that wait here."""

    @property
    def busy(self) -> bool:
        """Whether something waits here."""
        return bool(self._queue)

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

    def _add(self, parts: Iterable[Part], size: int) -> None:
        """Send parts of `size` bytes in all after what waits already."""
        begins = not self._queue
        self._queue.extend(parts)
        self.unsent_bytes += size
        if begins:
            self._go()

    def _end_turn(self) -> None:
        """Let other connections go first."""
        self._turn = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        self.resume()

    @abstractmethod
    def _go(self) -> bool:
        """Send until the transport is full, a turn is over or nothing is left: then True."""
