"""Clients' connections to agents: requests go as bytes to the real connections and handlers, over a
network that fails.

A connection keeps its requests in order, as TCP does. When it breaks, whatever was under way fails
for the client; of that, a first part still arrives and is carried out.
"""

from __future__ import annotations

import asyncio
import struct
import traceback
from collections import deque
from typing import TYPE_CHECKING

from penstock.kafka.registry import BY_MODULE
from sim.history import ViolationError
from sim.sockets import SimulatedTransport, SlowTransport
from sim.streams import ROOMS, Way

if TYPE_CHECKING:
    from penstock.kafka.net.server import KafkaServer
    from sim.agent import Agent
    from sim.wire import Client

PATIENCE_S = 4.0
HEALED_S = 2 * PATIENCE_S + 1
"""After this time nothing that was slow before all was healed is under way any more."""


class BrokenError(Exception):
    """The connection broke, or there was no answer in time: the outcome is unknown."""


class Connection:
    """One client's connection to one agent's present life."""

    def __init__(self, client: Client, agent: Agent) -> None:
        self._client = client
        self._loop = client.loop
        self._chance = client.chance
        self._agent = agent
        self._life = agent.life
        self._era = client.world.era
        self.broken = False
        self._sent = 0
        self._arrives_up_to = 1 << 60
        self._arrival_s = self._reply_s = 0.0
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._unanswered: deque[int] = deque()
        """Correlation ids in the order of the requests."""
        self._transport: SimulatedTransport | None = None

    @property
    def usable(self) -> bool:
        """Whether a request may be sent: as far as the client knows."""
        return not self.broken

    async def exchange(self, name: str, version: int, body: bytes) -> memoryview:
        """Have a request carried out at the agent; its answer's bytes, without the header.

        Raises:
            BrokenError: the connection broke, before or after it was carried out.
        """
        if self.broken:
            raise BrokenError(name)
        loop, chance = self._loop, self._chance
        number = self._sent
        self._sent += 1
        api = BY_MODULE[name]
        flexible = version >= api.flexible_from
        client_id = self._client.name.encode()
        head = struct.pack(">hhih", api.key, version, number, len(client_id)) + client_id
        frame = head + (b"\0" if flexible else b"") + body
        reply = self._waiting[number] = loop.create_future()
        self._unanswered.append(number)
        world = loop.context_of(loop.world)
        self._send(number, len(frame).to_bytes(4, "big") + frame)
        if chance.happens(self._client.world.break_share):
            loop.call_later(self._breaks_after_s(), self.break_off, context=world)
        timer = loop.call_later(PATIENCE_S, self._give_up, name, loop.time())
        try:
            answer: memoryview = await reply
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        return answer[5 if flexible else 4 :]

    def break_off(self) -> None:
        """Lose the connection."""
        if self.broken:
            return
        self.broken = True
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_exception(BrokenError("the connection broke"))
                reply.exception()
        self._lose()

    def _give_up(self, name: str, sent_s: float) -> None:
        """The reply has not come in time."""
        world, agent = self._client.world, self._agent
        is_there = agent.life == self._life and agent.broker is not None and not agent.node.paused
        if not self.broken and is_there and sent_s > world.healed_s + HEALED_S:
            what = f"unanswered: {name} of {self._client.name} by {agent} for {PATIENCE_S:g} s"
            world.violated(ViolationError("unanswered", what))
        self.break_off()

    # -- the network -------------------------------------------------------------------------------

    def _breaks_after_s(self) -> float:
        return self._chance.uniform(0, 0.3)

    def _send(self, number: int, data: bytes) -> None:
        loop = self._loop
        self._arrival_s = max(self._arrival_s + 1e-6, loop.time() + self._client.delay())
        world = loop.context_of(loop.world)
        loop.call_at(self._arrival_s, self._arrive, number, data, context=world)

    def _lose(self) -> None:
        """Carry no more than a first part of what is under way."""
        self._arrives_up_to = self._chance.below(self._sent + 1)
        # After what still arrives.
        loop = self._loop
        when_s = max(self._arrival_s, loop.time()) + 1e-5
        loop.call_at(when_s, self._tell_loss, context=loop.context_of(loop.world))

    def _tell_loss(self) -> None:
        if self._transport is not None:
            context = self._loop.context_of(self._agent.node)
            self._loop.call_soon(self._transport.lose, context=context)

    def _arrive(self, number: int, data: bytes) -> None:
        server = self._server()
        if server is None:
            self.break_off()
        elif not (self.broken and number >= self._arrives_up_to):
            context = self._loop.context_of(self._agent.node)
            self._loop.call_soon(self._receive, server, data, context=context)

    def _server(self) -> KafkaServer | None:
        """The agent's, in the life that this connection is to, if the network lets it through."""
        agent = self._agent
        is_gone = agent.life != self._life or agent.broker is None or agent.parts is None
        if is_gone or self._client.cut_from(agent):
            return None
        assert agent.parts is not None
        return agent.parts.kafka

    # -- the agent's process -----------------------------------------------------------------------

    def _receive(self, server: KafkaServer, data: bytes) -> None:
        if self._transport is None:
            self._transport = self._open(server)
        self._transport.receive(data)

    def _open(self, server: KafkaServer) -> SimulatedTransport:
        return SimulatedTransport(
            server, self._chance.fork(), on_frame=self._reply, on_closed=self._closed
        )

    def _closed(self, bug: BaseException | None) -> None:
        """The agent has closed it, as it does when a handler raises."""
        self._note_closed(bug)
        loop = self._loop
        loop.call_soon(self.break_off, context=loop.context_of(loop.world))

    def _note_closed(self, bug: BaseException | None) -> None:
        world = self._client.world
        if bug is not None:
            text = "".join(traceback.format_exception(bug))
            world.violated(ViolationError("handler-failed", f"handler-failed: {text}"))
        world.history.count("connection ended by the agent")

    def _reply(self, frame: bytes) -> None:
        loop = self._loop
        self._reply_s = max(self._reply_s + 1e-6, loop.time() + self._client.delay())
        loop.call_at(self._reply_s, self._answer, frame, context=loop.context_of(loop.world))

    # -- the client's process ----------------------------------------------------------------------

    def _answer(self, frame: bytes) -> None:
        world = self._client.world
        if self._client.cut_from(self._agent) or self._era != world.era:
            self.break_off()
        if self.broken:
            return
        number, expected = int.from_bytes(frame[:4], "big"), self._unanswered.popleft()
        if number != expected:
            what = f"reply-order: {self._client.name} has {self._agent}'s reply to request {number}"
            world.violated(ViolationError("reply-order", f"{what} before that to {expected}"))
        reply = self._waiting.get(number)
        if reply is not None and not reply.done():
            reply.set_result(memoryview(frame))


class StreamConnection(Connection):
    """A connection whose bytes go both ways as streams: see `sim.sockets`."""

    _transport: SlowTransport | None

    def __init__(self, client: Client, agent: Agent) -> None:
        super().__init__(client, agent)
        chance = client.chance.fork()
        self._is_reset = chance.happens(0.5)
        """How the client ends it."""
        self._forth = Way(
            client.loop,
            chance.fork(),
            delay=client.delay,
            arrived=self._arrived,
            ended=self._forth_ended,
        )
        self._back = Way(
            client.loop,
            chance.fork(),
            delay=client.delay,
            arrived=self._take,
            ended=self.break_off,
            left=self._back_left,
            capacity_bytes=chance.pick(ROOMS),
        )
        self._taken = bytearray()

    def _breaks_after_s(self) -> float:
        # Often while the bytes of the request are under way.
        return self._chance.uniform(0, 0.004 if self._chance.happens(0.5) else 0.3)

    def _send(self, number: int, data: bytes) -> None:
        self._forth.send(data)

    def _lose(self) -> None:
        self._forth.cut()

    def _arrived(self, piece: bytes) -> None:
        server = self._server()
        if server is None:
            self.break_off()
        else:
            context = self._loop.context_of(self._agent.node)
            self._loop.call_soon(self._receive, server, piece, context=context)

    def _forth_ended(self) -> None:
        transport = self._transport
        if transport is None:
            return
        context = self._loop.context_of(self._agent.node)
        if self._is_reset:
            self._loop.call_soon(transport.lose, ConnectionResetError(), context=context)
        else:
            self._loop.call_soon(transport.end, context=context)

    def _back_left(self) -> None:
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size():
            context = self._loop.context_of(self._agent.node)
            self._loop.call_soon(transport.make_room, context=context)

    def _open(self, server: KafkaServer) -> SlowTransport:
        self._client.world.history.count("stream opened")
        return SlowTransport(
            server, self._chance.fork(), back=self._back, on_closed=self._note_closed
        )

    def _take(self, piece: bytes) -> None:
        """Read what has come of replies."""
        taken = self._taken
        taken += piece
        while len(taken) >= 4:
            end = 4 + int.from_bytes(taken[:4], "big")
            if len(taken) < end:
                return
            frame = bytes(taken[4:end])
            del taken[:end]
            self._answer(frame)
