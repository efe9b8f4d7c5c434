"""A socket between a simulated client and the connection that ships, as far as that uses one.

Bytes arrive as they were sent, in pieces where chance cuts them; what the connection writes goes
back frame by frame. The other end's loss is told once all has arrived that still does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.kafka.net.connection import KafkaConnection
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.kafka.net.server import KafkaServer
    from sim.chance import Chance


class SimulatedTransport(asyncio.Transport):
    """The agent's end. Everything but `write`'s listener runs in the agent's process.

    Args:
        on_frame: called with each whole frame that is sent to the client.
        on_closed: called when the connection closes it, with a bug that made it do so, or None.
    """

    def __init__(
        self,
        server: KafkaServer,
        chance: Chance,
        *,
        on_frame: Callable[[bytes], None],
        on_closed: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__({"peername": ("10.0.0.1", 1)})
        self._chance = chance
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._sent = bytearray()
        self._backlog = bytearray()
        self._is_paused = False
        self._is_closed = False
        self._protocol = KafkaConnection(server._host)
        self._protocol.connection_made(self)

    # -- the client's side -------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes have arrived."""
        self._backlog += data
        self._feed()

    def lose(self) -> None:
        """The other end is gone."""
        if not self._is_closed:
            self._is_closed = True
            self._protocol.connection_lost(None)

    # -- the connection's side ---------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """See asyncio. The network takes all of it at once."""
        self._sent += data
        while len(self._sent) >= 4:
            end = 4 + int.from_bytes(self._sent[:4], "big")
            if len(self._sent) < end:
                return
            frame = bytes(self._sent[4:end])
            del self._sent[:end]
            if not self._is_closed:
                self._on_frame(frame)

    def abort(self) -> None:
        """See asyncio."""
        self.close()

    def close(self) -> None:
        """See asyncio."""
        if self._is_closed:
            return
        failure = self._protocol._failure
        is_bug = failure is not None and not isinstance(
            failure, PenstockError | asyncio.CancelledError
        )
        self._loop.call_soon(self.lose)
        self._on_closed(failure if is_bug else None)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closed

    def pause_reading(self) -> None:
        """See asyncio."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """See asyncio."""
        self._is_paused = False
        self._loop.call_soon(self._feed)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio: nothing is ever unsent."""

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return 0

    def _feed(self) -> None:
        while self._backlog and not (self._is_paused or self._is_closed):
            room = self._protocol.get_buffer(-1)
            count = min(len(room), len(self._backlog))
            if self._chance.happens(0.05):
                count = 1 + self._chance.below(count)
            room[:count] = self._backlog[:count]
            del self._backlog[:count]
            self._protocol.buffer_updated(count)
