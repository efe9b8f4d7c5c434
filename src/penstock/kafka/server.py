"""The listening side of the Kafka face: accepts, limits, sweeps stalled peers, drains."""

import asyncio
import contextlib
import socket
from typing import Final

from penstock.kafka.broker import Broker
from penstock.kafka.budget import ByteBudget
from penstock.kafka.connection import ConnectionHost, KafkaConnection
from penstock.kafka.waves import ProduceWaves

SWEEPS_PER_TIMEOUT: Final = 4
BACKLOG: Final = 1024
ABORT_DEADLINE_S: Final = 1.0


class KafkaServer:
    """Serves one address. Start, then drain, then close; used from one event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._host = ConnectionHost(
            broker=broker,
            budget=ByteBudget(broker.settings.server_budget_bytes),
            waves=ProduceWaves(broker.settings.gather_ms / 1000, broker.log, broker.clock),
        )
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._host.connections)

    @property
    def budget(self) -> ByteBudget:
        """Bytes of requests and unsent replies that all connections hold."""
        return self._host.budget

    async def start(self, bound: socket.socket) -> None:
        """Listen on a socket that holds its address; it is this server's from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: KafkaConnection(self._host), sock=bound, backlog=BACKLOG
        )
        self._schedule_sweep(loop)

    async def drain(self, deadline_s: float) -> None:
        """Accept nothing more, answer what was started, close; after `deadline_s` seconds cut
        off who is left."""
        self._host.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._host.connections):
            connection.drain()
        await self._until_empty(deadline_s)
        await self.close()

    async def close(self) -> None:
        """Stop listening and cut off every connection. Idempotent."""
        self._host.draining = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._host.connections):
            connection.abort()
        # An aborted transport tells its protocol from the loop, a turn later.
        await self._until_empty(ABORT_DEADLINE_S)

    async def _until_empty(self, deadline_s: float) -> None:
        """Wait until no connection is left, at most `deadline_s` seconds."""
        if not self._host.connections:
            return
        self._host.emptied.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._host.emptied.wait()

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        interval_s = self._broker.settings.stall_timeout_s / SWEEPS_PER_TIMEOUT
        self._sweep_timer = loop.call_later(interval_s, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = self._broker.clock.monotonic_s()
        for connection in list(self._host.connections):
            connection.check_stalled(now_s)
        self._schedule_sweep(loop)
