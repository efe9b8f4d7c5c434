"""Replies that are made in pieces, over real loopback sockets: whole, in order, no faster than they
are read."""

import asyncio
import contextlib
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from penstock.kafka.broker import Broker
from penstock.kafka.net.lanes import Lane
from penstock.kafka.replies import PIECE_BYTES, Piece, PiecedReply
from support.loopback import METADATA, api_versions, reply, request, serving
from support.waiting import turns, until

pytestmark = pytest.mark.usefixtures("either_loop")

PIECES = 300
DATA = Random(7).randbytes(PIECES * PIECE_BYTES)


class Pieces:
    """A raw handler whose replies are made in pieces."""

    def __init__(self, *, more_bytes: int = 0, fails_at: int = -1, reserves: int = 0) -> None:
        self.made = 0
        self.more_bytes = more_bytes
        self.fails_at = fails_at
        self.reserves = reserves

    def __call__(self, context: Any, body: memoryview) -> PiecedReply:
        if self.reserves:
            assert context.connection.reserve_answer(self.reserves) is None
        return PiecedReply(
            self._pieces(), byte_count=len(DATA) + self.more_bytes, held_bytes=self.reserves // 8
        )

    def _pieces(self) -> Iterator[Piece]:
        for start in range(0, len(DATA), PIECE_BYTES):
            if self.made == self.fails_at:
                raise ZeroDivisionError
            self.made += 1
            yield memoryview(DATA)[start : start + PIECE_BYTES], 1


@pytest.mark.slow
async def test_a_reply_arrives_whole_between_others(broker: Broker, raw: Any) -> None:
    raw(METADATA, Pieces())
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        asked = api_versions(1) + request(METADATA, 1, 2, b"") + api_versions(3)
        writer.write(asked + request(METADATA, 1, 4, b"") * 2 + api_versions(5))
        got = [await reply(reader) for _ in range(6)]
        assert [correlation_id for correlation_id, _ in got] == [1, 2, 3, 4, 4, 5]
        assert [body == DATA for _, body in got] == [False, True, False, True, True, False]
        assert server._host.broker is broker


async def test_a_reply_is_made_no_faster_than_it_is_read(broker_with: Any, raw: Any) -> None:
    pieces = Pieces(reserves=8 << 20)
    raw(METADATA, pieces)
    broker = broker_with(server_budget_bytes=16 << 20)
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(METADATA, 1, 1, b""))
        await until(lambda: pieces.made > 0)
        await turns(200)
        # The kernel's buffers, and one piece more.
        assert pieces.made < 30
        # What is reserved is what it is made of by now.
        assert 1 << 20 <= server.data.used_bytes < (1 << 20) + 2 * PIECE_BYTES
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await reply(reader) == (1, DATA)
        await until(lambda: not server.data.used_bytes)


async def test_a_reply_whose_peer_leaves_is_made_no_further(broker: Broker, raw: Any) -> None:
    pieces = Pieces(reserves=8 << 20)
    raw(METADATA, pieces)
    async with serving(broker) as (server, connect):
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(METADATA, 1, 1, b""))
        await until(lambda: pieces.made > 0)
        writer.transport.abort()
        await until(lambda: server.connection_count == 0)
        assert not server.data.used_bytes
        await turns(50)
        assert pieces.made < PIECES


async def test_draining_sends_the_rest_of_a_reply(broker: Broker, raw: Any) -> None:
    pieces = Pieces()
    raw(METADATA, pieces)
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(METADATA, 1, 1, b""))
        await until(lambda: pieces.made > 0)
        draining = asyncio.ensure_future(server.drain(30))
        await turns(20)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await reply(reader) == (1, DATA)
        await draining


@pytest.mark.parametrize(
    ("pieces", "line"),
    [
        (Pieces(fails_at=5), "ZeroDivisionError"),
        (Pieces(more_bytes=1), "shorter than its header says"),
        (Pieces(more_bytes=-1), "longer than its header says"),
    ],
    ids=["fails", "short", "long"],
)
async def test_a_reply_that_goes_wrong_ends_its_connection_with_a_line(
    broker: Broker, raw: Any, caplog: pytest.LogCaptureFixture, pieces: Pieces, line: str
) -> None:
    pieces.made = 0
    raw(METADATA, pieces)
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.write(request(METADATA, 1, 1, b""))
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 20):
                pass
        await until(lambda: server.connection_count == 0)
        assert server.data.waiting_count(Lane.ANSWER) == 0
    assert line in caplog.text
