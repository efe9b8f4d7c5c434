"""A proxy, a link and a tap of a test leave no socket open, whenever the test ends.

A socket that outlives its loop is collected later, and fails the test that runs then.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from support.group_tap import GroupTaps
from support.links import Links
from support.s3_proxy import S3Proxy
from support.tcp_proxy import TcpProxy

ROUNDS = 40
"""As many as find each of the leaks that were there."""
CLIENTS_MAX = 4


@pytest.fixture
def upstream() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=ROUNDS * CLIENTS_MAX) as server:
        yield server.getsockname()[1]


def connect(port: int, draw: random.Random, begin: bytes = b"x") -> list[socket.socket]:
    """Some clients, which have sent as much as the first call takes."""
    clients = []
    for _ in range(draw.randrange(CLIENTS_MAX)):
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        client.send(begin + b"x" * draw.choice([0, 1 << 18]))
        clients.append(client)
    return clients


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


def through_tcp_proxy(upstream: int, draw: random.Random) -> None:
    async def main() -> list[socket.socket]:
        proxy = TcpProxy(upstream)
        await proxy.start()
        clients = connect(proxy.port, draw)
        for _ in range(draw.randrange(12)):
            await asyncio.sleep(0)
        if draw.random() < 0.3:
            proxy.hang()
        await proxy.stop()
        return clients

    close(asyncio.run(main()))


def through_s3_proxy(upstream: int, draw: random.Random) -> None:
    async def main() -> list[socket.socket]:
        proxy = S3Proxy(f"http://127.0.0.1:{upstream}")
        await proxy.start()
        clients = connect(proxy.port, draw, b"GET /b/k HTTP/1.1\r\n\r\n")
        for _ in range(draw.randrange(12)):
            await asyncio.sleep(0)
        await proxy.close()
        return clients

    close(asyncio.run(main()))


def through_link(upstream: int, draw: random.Random) -> None:
    with Links() as links:
        link = links.open("127.0.0.1", upstream)
        clients = connect(link.port, draw)
        time.sleep(draw.choice([0, 0.0005, 0.001]))
        if draw.random() < 0.3:
            link.freeze()
        if draw.random() < 0.3:
            link.cut()
    close(clients)


def through_tap(upstream: int, draw: random.Random) -> None:
    with GroupTaps() as taps:
        tap = taps.open()
        tap.agent_port = upstream
        clients = connect(tap.port, draw)
        time.sleep(draw.choice([0, 0.0005, 0.001]))
    close(clients)


@pytest.mark.parametrize(
    "through", [through_tcp_proxy, through_s3_proxy, through_link, through_tap]
)
def test_nothing_outlives_the_loop(
    upstream: int,
    through: Callable[[int, random.Random], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # pytest keeps the records of a test, and with a callback's exception its sockets.
    caplog.set_level(logging.CRITICAL + 1, "asyncio")
    # What earlier tests have left is theirs, and is not looked through again in each round.
    gc.collect()
    gc.freeze()
    left: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: left.append(repr(found.exc_value)))
    draw = random.Random(1)
    for _ in range(ROUNDS):
        through(upstream, draw)
        gc.collect()
    assert not left
