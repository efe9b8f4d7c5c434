"""Connections above a quota, over loopback sockets: told at once, muted, and served after that."""

import asyncio
import struct
from typing import Any

import pytest

from penstock.kafka.broker import Broker
from penstock.kafka.net.connection import ITEMS_MAX
from penstock.security.quota import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaChange,
    QuotaEntity,
)
from support.loopback import DEADLINE_S, FETCH, METADATA, PRODUCE, Held, reply, request, serving
from support.waiting import turns, until

pytestmark = pytest.mark.usefixtures("either_loop")

ANYBODY = QuotaEntity(None, "")
EMPTY = bytes(4)
"""An answer whose only field is the time to wait."""


def limit(broker: Broker, key: str, rate: float | None, entity: QuotaEntity = ANYBODY) -> None:
    broker.view.quotas.change([QuotaChange(entity, key, rate)])


def waited_ms(body: bytes) -> int:
    return int(struct.unpack(">i", body[-4:])[0])


class Noted:
    """A handler that answers at once and notes when it was called, by the loop's time."""

    def __init__(self, answer: bytes = EMPTY) -> None:
        self.answer = answer
        self.at_s: list[float] = []

    def __call__(self, _context: Any, _body: memoryview) -> list[bytes]:
        self.at_s.append(asyncio.get_running_loop().time())
        return [self.answer]


async def test_a_producer_above_its_rate_is_answered_at_once_and_muted(
    broker: Broker, raw: Any
) -> None:
    served = Noted()
    raw(PRODUCE, served)
    limit(broker, PRODUCER_BYTE_RATE, 1_000)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        # Ten seconds' worth is free; the frame is 300 bytes more.
        writer.write(request(PRODUCE, 3, 1, bytes(10_300)))
        number, body = await reply(reader)
        assert number == 1
        assert 250 <= waited_ms(body) <= 1_000
        writer.write(request(PRODUCE, 3, 2, b"x"))
        assert (await reply(reader))[0] == 2
        first_s, second_s = served.at_s
        assert second_s - first_s >= 0.25


async def test_others_are_served_meanwhile_and_the_muted_one_when_the_server_drains(
    broker: Broker, raw: Any
) -> None:
    served = Noted()
    raw(PRODUCE, served)
    raw(METADATA, Noted())
    limit(broker, PRODUCER_BYTE_RATE, 10)
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, 3, 1, bytes(100_000)))
        assert waited_ms((await reply(reader))[1]) > 9_000_000
        writer.write(request(PRODUCE, 3, 2, b"x"))
        other_reader, other_writer = await connect()
        other_writer.write(request(METADATA, 5, 7, b""))
        assert await reply(other_reader) == (7, EMPTY)
        await turns()
        assert len(served.at_s) == 1
        await server.drain(DEADLINE_S)
        # What was not read is as if it had not come.
        assert await ended(reader)


async def test_what_waits_behind_a_produce_under_way_is_served_when_the_server_drains(
    broker: Broker, raw: Any
) -> None:
    produce = Held()
    states: list[Any] = []

    def serve(context: Any, body: memoryview) -> Any:
        states.append(context.connection)
        if len(states) == 2:
            context.connection.items += ITEMS_MAX
        return produce(context, body)

    raw(PRODUCE, serve)
    limit(broker, PRODUCER_BYTE_RATE, 10)
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        for number, byte_count in enumerate((100_000, 1, 1)):
            writer.write(request(PRODUCE, 3, number, bytes(byte_count)))
        await until(lambda: len(produce.futures) == 2)
        await turns()
        produce.futures[0].set_result([EMPTY])
        assert waited_ms((await reply(reader))[1]) > 9_000_000
        states[0].items -= ITEMS_MAX
        await turns()
        assert len(produce.futures) == 2
        draining = asyncio.create_task(server.drain(DEADLINE_S))
        await until(lambda: len(produce.futures) == 3)
        for future in produce.futures[1:]:
            future.set_result([EMPTY])
        assert [(await reply(reader))[0] for _ in range(2)] == [1, 2]
        await draining


async def test_the_longer_of_two_waits_holds(broker: Broker, raw: Any) -> None:
    produce = Held()
    raw(PRODUCE, produce)
    limit(broker, PRODUCER_BYTE_RATE, 1_000)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, 3, 1, bytes(10_200)) + request(PRODUCE, 3, 2, bytes(400)))
        await until(lambda: len(produce.futures) == 2)
        waits = []
        for future in produce.futures:
            future.set_result([EMPTY])
            waits.append(waited_ms((await reply(reader))[1]))
        answered_s = asyncio.get_running_loop().time()
        assert waits[0] < waits[1]
        writer.write(request(PRODUCE, 3, 3, b"x"))
        await until(lambda: len(produce.futures) == 3)
        assert asyncio.get_running_loop().time() - answered_s >= waits[1] / 1000 - 0.2
        produce.futures[2].set_result([EMPTY])
        assert (await reply(reader))[0] == 3


async def test_a_muted_client_is_not_read_from(broker: Broker, raw: Any) -> None:
    raw(PRODUCE, Noted())
    limit(broker, PRODUCER_BYTE_RATE, 10)
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, 3, 1, bytes(100_000)))
        await reply(reader)
        for number in range(200):
            writer.write(request(PRODUCE, 3, number, bytes(10_000)))
        for _ in range(10):
            await turns()
            assert server.data.used_bytes < 128 << 10, "2 MB are sent"


async def test_a_fetch_is_charged_by_its_answer_and_bounded_by_a_burst(
    broker: Broker, raw: Any
) -> None:
    rooms: list[int] = []

    def serve(context: Any, _body: memoryview) -> list[bytes]:
        rooms.append(context.connection.reply_room_bytes)
        return [EMPTY + bytes(20_500)]

    raw(FETCH, serve)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(FETCH, 4, 1, b""))
        _, body = await reply(reader)
        assert body[:4] == bytes(4)
        limit(broker, CONSUMER_BYTE_RATE, 2_000)
        writer.write(request(FETCH, 4, 2, b""))
        _, body = await reply(reader)
        assert 200 <= struct.unpack(">i", body[:4])[0] <= 500
        assert rooms[1] == 20_000 < rooms[0]
        limit(broker, CONSUMER_BYTE_RATE, None)
        writer.write(request(FETCH, 4, 3, b""))
        _, body = await reply(reader)
        assert body[:4] == bytes(4), "quotas are gone: it waited, and waits no more"


async def test_clients_with_the_same_name_share_a_rate_and_others_have_their_own(
    broker: Broker, raw: Any
) -> None:
    raw(PRODUCE, Noted())
    limit(broker, PRODUCER_BYTE_RATE, 1_000)
    async with serving(broker) as (_, connect):
        waits = []
        for number, client in enumerate((b"a", b"a", b"b")):
            reader, writer = await connect()
            frame = request(PRODUCE, 3, number, bytes(6_000), client_id=client)
            writer.write(frame)
            waits.append(waited_ms((await reply(reader))[1]))
    assert waits[0] == waits[2] == 0
    assert waits[1] > 1_000


async def test_time_of_the_loop_is_charged_without_the_handlers_waiting(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    """By a clock that goes on 2 s in the handler."""
    produce = Held()
    real, worked_s = broker.clock.monotonic_s, 0.0

    def serve(context: Any, body: memoryview) -> Any:
        nonlocal worked_s
        worked_s += 2.0
        return produce(context, body)

    monkeypatch.setattr(broker.clock, "monotonic_s", lambda: real() + worked_s)
    raw(PRODUCE, serve)
    limit(broker, REQUEST_PERCENTAGE, 10)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, 3, 1, b""))
        await until(lambda: len(produce.futures) == 1)
        produce.futures[0].set_result([EMPTY])
        # 200 % s of 10 % per s and a burst of 100: ten seconds are owed, and one is asked for.
        assert waited_ms((await reply(reader))[1]) == 1_000


async def test_an_address_that_connects_too_often_is_let_in_later(broker: Broker, raw: Any) -> None:
    served = Noted()
    raw(METADATA, served)
    limit(broker, CONNECTION_CREATION_RATE, 0.001, QuotaEntity(ip="127.0.0.1"))
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(METADATA, 5, 1, b""))
        assert (await reply(reader))[0] == 1
        kept_out, writer = await connect()
        writer.write(request(METADATA, 5, 2, b""))
        assert await ended(kept_out)
        assert len(served.at_s) == 1
        limit(broker, CONNECTION_CREATION_RATE, None, QuotaEntity(ip="127.0.0.1"))
        reader, writer = await connect()
        writer.write(request(METADATA, 5, 3, b""))
        assert (await reply(reader))[0] == 3


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends without another byte."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
