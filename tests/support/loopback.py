"""The Kafka face on loopback sockets: a server in the loop of the test, and raw clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from penstock.kafka.broker import Broker
from penstock.kafka.net.host import ClientNames
from penstock.kafka.net.lanes import Lane
from penstock.kafka.net.server import KafkaServer
from penstock.security.listener import Listener

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
DEADLINE_S = 60.0
KERNEL_BYTES = 64 << 10
"""Of a socket's buffers; Linux doubles it."""

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
RawHandler = Callable[[Any, memoryview], Any]


def request(
    key: int,
    version: int,
    correlation_id: int,
    body: bytes,
    flexible: bool = False,
    client_id: bytes = b"c",
) -> bytes:
    frame = struct.pack(">hhih", key, version, correlation_id, len(client_id)) + client_id
    frame += (b"\0" if flexible else b"") + body
    return struct.pack(">i", len(frame)) + frame


def api_versions(correlation_id: int) -> bytes:
    return request(API_VERSIONS, 0, correlation_id, b"")


async def reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next response: correlation id and what follows it."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    body = await reader.readexactly(size)
    return struct.unpack_from(">i", body)[0], body[4:]


@contextlib.asynccontextmanager
async def serving(
    broker: Broker,
    listener: Listener | None = None,
    *,
    tls: Callable[[], ssl.SSLContext] | None = None,
    name_client: ClientNames | None = None,
) -> AsyncIterator[tuple[KafkaServer, Callable[[], Awaitable[Client]]]]:
    server = KafkaServer(broker)
    bound = socket.create_server(("127.0.0.1", 0))
    # Else the kernel takes as many megabytes of what nobody reads as it thinks fit, which differs
    # from machine to machine. Accepted sockets inherit it.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    port = bound.getsockname()[1]
    await server.start(bound, listener, tls=tls, name_client=name_client)
    clients: list[Client] = []

    async def connect() -> Client:
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
        clients.append(await asyncio.open_connection(sock=peer))
        return clients[-1]

    try:
        async with asyncio.timeout(DEADLINE_S):
            yield server, connect
    finally:
        for _, writer in clients:
            writer.close()
        await server.close()
        assert server.connection_count == 0
        for lanes in (server.data, server.groups):
            assert lanes.used_bytes == 0
            assert not any(lanes.waiting_count(lane) for lane in Lane)


def received_bytes(server: KafkaServer) -> int:
    """Of requests that are not whole."""
    connections: Iterable[Any] = server._host.connections
    return sum(connection._framer.pending_bytes for connection in connections)


class Held:
    """A raw handler whose requests stay unanswered until the test answers them."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []
        self.bodies: list[bytes] = []

    def __call__(self, context: Any, body: memoryview) -> asyncio.Future[Any]:
        self.bodies.append(bytes(body))
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]
