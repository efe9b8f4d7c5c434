"""Produce requests that wait for those of other connections, over real loopback sockets: they are
served once, in order, whatever comes behind them or becomes of their connection."""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.kafka.broker import Broker
from penstock.kafka.net.server import KafkaServer
from penstock.kafka.net.waves import CONNECTIONS_MIN
from support.loopback import PRODUCE, Client, api_versions, reply, request, serving
from support.waiting import turns, until

pytestmark = pytest.mark.usefixtures("either_loop")

NEVER_MS = 3_600_000


class Company:
    """Connections whose Produce requests wait for others', with the handler that gets them."""

    def __init__(self, connect: Callable[[], Awaitable[Client]], got: list[bytes]) -> None:
        self._connect = connect
        self._got = got
        self.clients: list[Client] = []

    async def send(self) -> None:
        """The last request waits, as long as the broker's settings say."""
        for number in range(CONNECTIONS_MIN):
            self.clients.append(await self._connect())
            self.clients[-1][1].write(request(PRODUCE, 3, 1, b"%d" % number))
            if number < CONNECTIONS_MIN - 1:
                await until(lambda: len(self._got) == number + 1)  # noqa: B023 - it waits here
        await turns()


def company(
    broker: Broker, raw: Any, scenario: Callable[[Company, KafkaServer, list[bytes]], Any]
) -> None:
    got: list[bytes] = []
    raw(PRODUCE, lambda context, body: got.append(bytes(body)) or [bytes(body)])

    async def run() -> None:
        async with serving(broker) as (server, connect):
            together = Company(connect, got)
            await together.send()
            if broker.settings.gather_ms == NEVER_MS:
                assert len(got) == CONNECTIONS_MIN - 1
            await scenario(together, server, got)

    asyncio.run(run())


def test_what_waits_is_taken_up_when_its_time_is_over(broker_with: Any, raw: Any) -> None:
    async def scenario(together: Company, server: KafkaServer, got: list[bytes]) -> None:
        for number, (reader, _) in enumerate(together.clients):
            assert await reply(reader) == (1, b"%d" % number)

    company(broker_with(gather_ms=20), raw, scenario)


def test_a_request_behind_one_that_waits_ends_the_waiting(broker_with: Any, raw: Any) -> None:
    async def scenario(together: Company, server: KafkaServer, got: list[bytes]) -> None:
        reader, writer = together.clients[-1]
        writer.write(request(PRODUCE, 3, 2, b"more") + api_versions(3))
        assert [(await reply(reader))[0] for _ in range(3)] == [1, 2, 3]
        assert got[-1] == b"more"

    company(broker_with(gather_ms=NEVER_MS), raw, scenario)


def test_a_broken_frame_behind_one_that_waits_ends_the_connection_behind_its_answer(
    broker_with: Any, raw: Any
) -> None:
    async def scenario(together: Company, server: KafkaServer, got: list[bytes]) -> None:
        reader, writer = together.clients[-1]
        writer.write(struct.pack(">i", -1))
        assert (await reply(reader))[0] == 1
        assert await reader.read() == b""

    company(broker_with(gather_ms=NEVER_MS), raw, scenario)


def test_nothing_behind_a_bad_request_that_waited_is_served(broker_with: Any, raw: Any) -> None:
    async def scenario(together: Company, server: KafkaServer, got: list[bytes]) -> None:
        reader, writer = together.clients[-1]
        # What is unanswered keeps the connection open meanwhile.
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        raw(PRODUCE, lambda context, body: got.append(bytes(body)) or answer)
        writer.write(request(PRODUCE, 2, 2, b"of a version that is not served"))
        await turns()
        writer.write(request(PRODUCE, 3, 3, b"behind it") + api_versions(4))
        await until(lambda: len(got) == CONNECTIONS_MIN)
        await turns()
        assert got[-1] == b"%d" % (CONNECTIONS_MIN - 1)
        answer.set_result([b"ok"])
        assert await reply(reader) == (1, b"ok")
        assert await reader.read() == b""

    company(broker_with(gather_ms=NEVER_MS), raw, scenario)


@pytest.mark.parametrize("reset", [False, True])
def test_what_waits_of_a_producer_that_has_gone_is_appended(
    broker_with: Any, raw: Any, reset: bool
) -> None:
    async def scenario(together: Company, server: KafkaServer, got: list[bytes]) -> None:
        _, writer = together.clients[-1]
        if reset:
            writer.transport.abort()
        else:
            writer.close()
        await until(lambda: len(got) == CONNECTIONS_MIN)

    company(broker_with(gather_ms=NEVER_MS), raw, scenario)


def test_what_waits_is_answered_when_the_server_ends(broker_with: Any, raw: Any) -> None:
    async def scenario(together: Company, server: KafkaServer, got: list[bytes]) -> None:
        await server.drain(5.0)
        assert await reply(together.clients[-1][0]) == (1, b"%d" % (CONNECTIONS_MIN - 1))

    company(broker_with(gather_ms=NEVER_MS), raw, scenario)
