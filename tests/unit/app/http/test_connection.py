"""Half requests, dripping bodies and readers that take nothing, over real sockets of both loops."""

import asyncio
import contextlib
import enum
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.app.http.agents_api import answered, json_response
from penstock.app.http.connection import RequestSlots, read_body
from penstock.app.http.gate import HttpEnding, HttpGate, HttpLimits, HttpRefusal
from penstock.app.http_port import HttpServer
from support.simulated.clock import ManualClock
from support.waiting import until

DEADLINE_S = 60.0
PLACES = 20
HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
pytestmark = pytest.mark.usefixtures("either_loop")


@dataclass
class Port:
    """A port with a few routes, whose clock the test moves."""

    gate: HttpGate
    clock: ManualClock
    counts: Counter[enum.StrEnum]
    address: tuple[str, int]
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    clients: list[Client] = field(default_factory=list)

    async def connect(self, data: bytes = b"") -> Client:
        peer = socket.socket()
        # So that a reader that takes nothing is noticed after a few KiB.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, self.address)
        self.clients.append(await asyncio.open_connection(sock=peer, limit=1 << 20))
        self.clients[-1][1].write(data)
        return self.clients[-1]

    async def get(self, path: str) -> tuple[int, bytes]:
        client = await self.connect(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        try:
            return await answer(client)
        finally:
            client[1].close()

    def look(self, after_s: float) -> None:
        self.clock.advance(after_s)
        self.gate.look()


async def answer(client: Client) -> tuple[int, bytes]:
    """Status and body of the next answer, which has a content-length."""
    head = await client[0].readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if b"content-length" in line.lower()
    )
    return int(head.split()[1]), await client[0].readexactly(length)


async def closed(client: Client) -> None:
    with contextlib.suppress(ConnectionError):
        await client[0].read()


@contextlib.asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[Port]:
    clock, counts = ManualClock(), Counter[enum.StrEnum]()
    gate = HttpGate(
        "http",
        HttpLimits(**{"connections_max": PLACES, **limits}),
        clock,
        lambda _, happened: counts.update([happened]),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    port = Port(gate, clock, counts, listener.getsockname())

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def count(request: Request) -> Response:
        return json_response({"bytes": len(await read_body(request))})

    async def hold(_: Request) -> Response:
        port.held += 1
        await port.let_go.wait()
        return PlainTextResponse("held\n")

    async def large(_: Request) -> Response:
        return Response(bytes(8 << 20))

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/count", answered(count), methods=["POST"]),
            Route("/hold", hold, methods=["GET", "POST"]),
            Route("/large", large),
        ]
    )
    server = HttpServer(RequestSlots(app, gate), gate, listener)
    server.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield port
    finally:
        port.let_go.set()
        for _, writer in port.clients:
            writer.close()
        await until(lambda: not len(gate))
        await server.close()
        assert gate.running == 0
        assert gate.bodies_bytes == 0


async def test_half_requests_dont_keep_a_probe_of_health_waiting() -> None:
    async with serving() as port:
        half = [await port.connect(HALF) for _ in range(3 * PLACES)]
        for _ in range(10):
            assert await port.get("/healthz") == (200, b"ok\n")
        # The last probe took the place of one of them, and is gone.
        await until(lambda: len(port.gate) < PLACES)
        assert port.counts[HttpEnding.ROOM] > 2 * PLACES
        await closed(half[0])
        # All of those that are left, once their time is over.
        port.look(10)
        await until(lambda: len(port.gate) == 0)


async def test_a_head_that_drips_has_its_time_also_on_a_connection_that_was_used() -> None:
    async with serving() as port:
        client = await port.connect(HALF + b"\r\n")
        assert await answer(client) == (200, b"ok\n")
        port.look(20)
        client[1].write(HALF[:5])
        await asyncio.sleep(0.05)
        port.look(9)
        assert len(port.gate) == 1
        client[1].write(HALF[5:9])
        await asyncio.sleep(0.05)
        port.look(1)
        await closed(client)
        assert port.counts == {HttpEnding.HEAD: 1}


async def test_a_body_that_drips_has_its_time_and_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        async with serving() as port:
            client = await port.connect(POST % 1000)
            await until(lambda: port.gate.running == 1)
            for _ in range(10):
                client[1].write(b"x")
                await asyncio.sleep(0.002)
                port.look(2.9)
            assert len(port.gate) == 1
            port.look(1.1)
            await closed(client)
            await until(lambda: port.gate.running == 0)
            assert port.counts == {HttpEnding.BODY: 1}
    assert "Traceback" not in caplog.text
    assert "Exception" not in caplog.text


async def test_a_body_has_more_time_for_what_came() -> None:
    async with serving(body_s=1.0) as port:
        slow = await port.connect(POST % 60_000)
        await until(lambda: port.gate.running == 1)
        slow[1].write(bytes(59_999))
        await until(lambda: port.gate.bodies_bytes == 59_999)
        port.look(1.9)
        assert len(port.gate) == 1
        slow[1].write(b"x")
        assert await answer(slow) == (200, b'{"bytes":60000}')


async def test_a_sender_is_not_blamed_for_a_body_that_is_not_read() -> None:
    async with serving() as port:
        client = await port.connect(
            b"POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        )
        await until(lambda: port.held == 1)
        client[1].write(bytes(900_000))
        (connection,) = port.gate._open
        await until(lambda: connection.flow.read_paused)
        for _ in range(10):
            port.look(20)
        assert len(port.gate) == 1
        port.let_go.set()
        assert await answer(client) == (200, b"held\n")


async def test_a_body_is_no_longer_than_its_call_allows() -> None:
    """200 MB were 204 MB of memory."""
    async with serving() as port:
        assert await answer(await port.connect(POST % 5 + b"hello")) == (200, b'{"bytes":5}')
        announced = await port.connect(POST % (200 << 20))
        status, body = await answer(announced)
        assert (status, b"209715200 bytes; 65536 are allowed" in body) == (413, True)
        await closed(announced)
        chunked = await port.connect(
            b"POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(17):
            chunked[1].write(b"1000\r\n" + bytes(4096) + b"\r\n")
        status, body = await answer(chunked)
        assert (status, b"more than 65536 bytes" in body) == (413, True)


async def test_half_bodies_dont_keep_the_slots() -> None:
    async with serving() as port:
        for _ in range(PLACES // 2):
            await port.connect(POST % 1000)
        await until(lambda: port.gate.running == PLACES // 2)
        assert await port.get("/healthz") == (200, b"ok\n")
        refused = await answer(await port.connect(POST % 5 + b"hello"))
        assert refused[0] == 503
        port.clock.advance(1)
        served = await answer(await port.connect(POST % 5 + b"hello"))
        assert served == (200, b'{"bytes":5}')
        assert port.counts == {HttpRefusal.REQUESTS: 1, HttpEnding.ROOM: 1}


async def test_health_is_answered_while_every_slot_works() -> None:
    async with serving() as port:
        working = [
            await port.connect(b"GET /hold HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(PLACES // 2)
        ]
        await until(lambda: port.held == PLACES // 2)
        port.clock.advance(100)
        for _ in range(3 * PLACES):
            assert await port.get("/healthz") == (200, b"ok\n")
        assert (await port.get("/hold"))[0] == 503
        port.let_go.set()
        for client in working:
            assert await answer(client) == (200, b"held\n")


async def test_what_is_no_http_is_counted_and_said_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        async with serving() as port:
            no_http, endless = b"\x16\x03\x01 no HTTP\r\n\r\n", HALF + b"x: " + bytes(70_000)
            for _ in range(3):
                assert (await (await port.connect(no_http))[0].read(12)) == b"HTTP/1.1 400"
                # What is left of it may reset the connection before the answer is read.
                await closed(await port.connect(endless))
            upgrade = HALF + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
            assert await answer(await port.connect(upgrade)) == (200, b"ok\n")
            assert port.counts == {HttpEnding.MALFORMED: 6}
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1, [record.getMessage() for record in warned]


async def test_a_reader_that_takes_nothing_is_closed() -> None:
    async with serving() as port:
        client = await port.connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        client[1].transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: len(port.gate) == 1)
        (connection,) = port.gate._open
        await until(lambda: connection.state(0).unsent_bytes > 0)
        await asyncio.sleep(0.05)
        port.look(0)
        port.look(29)
        assert len(port.gate) == 1
        port.look(2)
        await until(lambda: not len(port.gate))
        assert port.counts == {HttpEnding.STALLED: 1}


async def test_bodies_of_all_requests_are_bounded() -> None:
    async with serving(bodies_bytes_max=100_000) as port:
        first = await port.connect(POST % 60_001 + bytes(60_000))
        await until(lambda: port.gate.bodies_bytes == 60_000)
        assert (await answer(await port.connect(POST % 60_000 + bytes(60_000))))[0] == 503
        first[1].write(b"x")
        assert await answer(first) == (200, b'{"bytes":60001}')
        await until(lambda: port.gate.bodies_bytes == 0)
        second = await answer(await port.connect(POST % 60_000 + bytes(60_000)))
        assert second == (200, b'{"bytes":60000}')
