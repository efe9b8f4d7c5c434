"""A socket between a simulated client and the connection that ships, as far as that uses one.

What a run covers of `KafkaConnection`, `ProduceWaves`, `Exchange`, `Framer` and `ReplyWriter`:

* In every run requests come in as bytes and replies go out as bytes. A request arrives whole, in
  pieces where chance cuts it; a reply leaves whole and at once (`SimulatedTransport`).
* In runs of the profile `connections` both directions are streams (`sim.streams`): bytes drip,
  pause, and end in the middle of a frame; the client resets the connection or closes it in order;
  the socket takes a part of a reply, so that the connection is held up (`SlowTransport`). Twenty
  producers or more keep waves of Produces on, the budgets are so small that reading pauses, and
  the server looks after idle, stalled and late peers.

Not covered: regions of files (`FileSender`), replies in pieces (`PieceSender`), TLS, uvloop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.kafka.net.accepting import NOTE_S
from penstock.kafka.net.connection import KafkaConnection
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.kafka.net.server import KafkaServer
    from sim.chance import Chance
    from sim.streams import Way

LOOK_S: Final = 1.0


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

    def lose(self, error: Exception | None = None) -> None:
        """The other end is gone."""
        if not self._is_closed:
            self._is_closed = True
            self._protocol.connection_lost(error)

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
        if not self._is_closed:
            self._loop.call_soon(self.lose)
            self._on_closed(self._bug())

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

    def _bug(self) -> BaseException | None:
        """Return the error of a handler that ended the connection, unless that is one of ours."""
        failure = self._protocol._failure
        is_ours = isinstance(failure, PenstockError | asyncio.CancelledError)
        return None if is_ours else failure

    def _feed(self) -> None:
        while self._backlog and not (self._is_paused or self._is_closed):
            room = self._protocol.get_buffer(-1)
            count = min(len(room), len(self._backlog))
            if self._chance.happens(0.05):
                count = 1 + self._chance.below(count)
            room[:count] = self._backlog[:count]
            del self._backlog[:count]
            self._protocol.buffer_updated(count)


class SlowTransport(SimulatedTransport):
    """The agent's end of a stream, whose socket takes as much as the client leaves room for.

    Args:
        back: the way to the client.
    """

    def __init__(
        self,
        server: KafkaServer,
        chance: Chance,
        *,
        back: Way,
        on_closed: Callable[[BaseException | None], None],
    ) -> None:
        # Before the connection is made, which may be refused at once.
        self._back = back
        self._unsent = bytearray()
        self._is_held_up = self._is_ending = self._has_ended = False
        super().__init__(server, chance, on_frame=lambda _: None, on_closed=on_closed)

    # -- the client's side -------------------------------------------------------------------------

    def end(self) -> None:
        """The client has closed the connection in order: what it sent is read first."""
        self._has_ended = True
        self._feed()

    def make_room(self) -> None:
        """The client has taken bytes, so that the socket takes more."""
        if self._is_closed:
            return
        self._fill()
        if not self._unsent and self._is_held_up:
            self._is_held_up = False
            self._protocol.resume_writing()
        if self._is_ending and not self._unsent:
            self._finish()

    # -- the connection's side ---------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """See asyncio."""
        if self._is_closed or self._is_ending:
            return
        self._unsent += data
        self._fill()
        if self._unsent and not self._is_held_up:
            self._is_held_up = True
            self._protocol.pause_writing()

    def close(self) -> None:
        """See asyncio. What is unsent leaves before."""
        if self._is_closed or self._is_ending:
            return
        self._is_ending = True
        if not self._unsent:
            self._finish()

    def abort(self) -> None:
        """See asyncio."""
        if not self._is_closed:
            self._is_ending = True
            self._unsent.clear()
            self._finish()

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closed or self._is_ending

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return len(self._unsent)

    def _fill(self) -> None:
        taken = min(len(self._unsent), self._back.room_bytes)
        if taken:
            self._back.send(bytes(self._unsent[:taken]))
            del self._unsent[:taken]

    def _finish(self) -> None:
        self._back.end()
        self._loop.call_soon(self.lose)
        self._on_closed(self._bug())

    def _feed(self) -> None:
        if self._is_ending:
            self._backlog.clear()
        super()._feed()
        if self._has_ended and not (self._backlog or self._is_closed):
            # A connection that is not read from hears of the end by another way (`PeerEnds`).
            if not self._is_paused:
                self._protocol.eof_received()
            self.abort() if self._is_paused else self.close()


async def note_positions(server: KafkaServer) -> None:
    """Have a server note how far it is, as its timer does where it listens."""
    while True:
        server.note_position()
        await asyncio.sleep(NOTE_S)


async def look_after(server: KafkaServer) -> None:
    """Have a server look at its connections, as its timer does where it listens."""
    while True:
        await asyncio.sleep(LOOK_S)
        server.look()
