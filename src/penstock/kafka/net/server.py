"""The listening side of the Kafka face: accepts, limits, looks after peers, drains."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.kafka.broker import Broker
from penstock.kafka.net.accepting import NOTE_S, AcceptedPositions
from penstock.kafka.net.admission import Admission, AdmissionLimits
from penstock.kafka.net.connection import KafkaConnection
from penstock.kafka.net.host import ClientNames, ConnectionHost
from penstock.kafka.net.lanes import Lanes
from penstock.kafka.net.movement import Patience
from penstock.kafka.net.tls_acceptor import TlsAcceptor
from penstock.kafka.net.watch import Watch
from penstock.kafka.net.waves import ProduceWaves
from penstock.security.listener import Listener
from penstock.system.seldom import Seldom

LOOK_S: Final = 1.0
LOOKS_PER_TIMEOUT: Final = 4
IDLE_LOOK_S: Final = 30.0
"""Between looks at all connections, 10,000 of which take milliseconds."""
BACKLOG: Final = 1024
ABORT_DEADLINE_S: Final = 1.0


class KafkaServer:
    """Serves one address or more. Start, then drain, then close; used from one event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = self._settings = broker.settings
        data, groups = Lanes(settings.server_budget_bytes), Lanes(settings.group_budget_bytes)
        self._host = ConnectionHost(
            broker=broker,
            data=data,
            groups=groups,
            waves=ProduceWaves(settings.gather_ms / 1000, broker.log, broker.clock),
            admission=Admission(
                AdmissionLimits(
                    connections_max=settings.connections_max,
                    per_address_max=settings.connections_per_ip_max,
                    per_address_overrides=settings.connections_per_ip_overrides,
                )
            ),
            watch=Watch(
                Patience(stall_s=settings.stall_timeout_s, request_s=settings.request_timeout_s),
                data,
                groups,
            ),
            seldom=Seldom(broker.clock),
            accepted=AcceptedPositions(broker.position, broker.clock),
        )
        self._idle_look_s = 0.0
        self._seen_revocations = broker.view.revocations
        self._listening: list[asyncio.Server | TlsAcceptor] = []
        self._look_timer: asyncio.TimerHandle | None = None
        self._note_timer: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._host.connections)

    @property
    def data(self) -> Lanes:
        """The lanes before inflight_bytes_max: bytes of all connections' requests and answers."""
        return self._host.data

    @property
    def groups(self) -> Lanes:
        """The lanes before group_inflight_bytes_max: the same of group calls."""
        return self._host.groups

    async def start(
        self,
        bound: socket.socket,
        listener: Listener | None = None,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        name_client: ClientNames | None = None,
    ) -> None:
        """Listen on a socket that holds its address; it is this server's from now on. Called once
        for each listener.

        Args:
            listener: None: the only one, of PLAINTEXT.
            tls: returns the newest context, of a listener of TLS.
            name_client: see `KafkaConnection`.
        """
        loop, host = asyncio.get_running_loop(), self._host
        new_connection = partial(KafkaConnection, host, listener, name_client)
        if tls is not None:
            acceptor = TlsAcceptor(bound, host, context=tls, new_connection=new_connection)
            acceptor.start(BACKLOG)
            self._listening.append(acceptor)
        else:
            self._listening.append(
                await loop.create_server(new_connection, sock=bound, backlog=BACKLOG)
            )
        if self._look_timer is None:
            self._schedule_look(loop)
            self._note_positions(loop)

    async def drain(self, deadline_s: float) -> None:
        """Accept nothing more, answer what was started, close; after `deadline_s` seconds cut
        off who is left."""
        self._host.draining = True
        self._listen_no_more()
        for connection in list(self._host.connections):
            connection.drain()
        await self._until_empty(deadline_s)
        await self.close()

    async def close(self) -> None:
        """Stop listening and cut off every connection. Idempotent."""
        self._host.draining = True
        for timer in (self._look_timer, self._note_timer):
            if timer is not None:
                timer.cancel()
        self._look_timer = self._note_timer = None
        self._listen_no_more()
        for connection in list(self._host.connections):
            connection.abort()
        self._broker.record_checks.close()
        self._host.ends.close()
        # An aborted transport tells its protocol from the loop, a turn later.
        await self._until_empty(ABORT_DEADLINE_S)

    def _listen_no_more(self) -> None:
        for listening in self._listening:
            listening.close()
        self._listening.clear()

    async def _until_empty(self, deadline_s: float) -> None:
        """Wait until no connection is left, at most `deadline_s` seconds."""
        if not self._host.connections:
            return
        self._host.emptied.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._host.emptied.wait()

    def look(self) -> None:
        """End connections that stand still, are late or have been idle for too long, and those of
        users whose credentials were deleted. By itself called about once a second."""
        now_s = self._broker.clock.monotonic_s()
        if self._broker.view.revocations != self._seen_revocations:
            self._seen_revocations = self._broker.view.revocations
            for connection in list(self._host.connections):
                connection.end_revoked()
        self._host.watch.look(now_s)
        idle_s = self._settings.connections_max_idle_s
        if now_s >= self._idle_look_s:
            self._idle_look_s = now_s + min(idle_s / LOOKS_PER_TIMEOUT, IDLE_LOOK_S)
            self._host.admission.end_idle(now_s, idle_s)

    def _schedule_look(self, loop: asyncio.AbstractEventLoop) -> None:
        settings = self._settings
        shortest_s = min(
            settings.stall_timeout_s, settings.request_timeout_s, settings.connections_max_idle_s
        )
        interval_s = min(LOOK_S, shortest_s / LOOKS_PER_TIMEOUT)
        self._look_timer = loop.call_later(interval_s, self._look_again, loop)

    def note_position(self) -> None:
        """See `AcceptedPositions.note`. `start` has it called each NOTE_S."""
        self._host.accepted.note()

    def _note_positions(self, loop: asyncio.AbstractEventLoop) -> None:
        self.note_position()
        self._note_timer = loop.call_later(NOTE_S, self._note_positions, loop)

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look()
        self._schedule_look(loop)
