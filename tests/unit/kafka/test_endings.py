"""Connections that stay, drip or read slowly, over real loopback sockets: others go on."""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from typing import Any

import pytest

from penstock.kafka.broker import Broker
from penstock.kafka.net.holdings import FREE_BYTES, notify
from penstock.kafka.net.lanes import Lane
from penstock.kafka.net.movement import READABLE_BYTES
from penstock.kafka.net.server import KafkaServer
from support.loopback import (
    FETCH,
    PRODUCE,
    Held,
    api_versions,
    received_bytes,
    reply,
    request,
    serving,
)
from support.waiting import turns, until

pytestmark = pytest.mark.usefixtures("either_loop")

LIMIT = 4 << 20


class Counts:
    """Instruments that count events."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()

    def observe(self, stage: str, seconds: float) -> None:
        pass

    def count(self, event: str, amount: int = 1) -> None:
        self.events[event] += amount


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def counting(broker_with: Any, counts: Counts) -> Any:
    """Make a broker whose events are counted."""

    def make(**settings: Any) -> Broker:
        broker: Any = broker_with(**settings)
        broker.instruments = counts
        return broker  # type: ignore[no-any-return]

    return make


async def answered(client: Any, correlation_id: int) -> None:
    reader, writer = client
    writer.write(api_versions(correlation_id))
    assert (await reply(reader))[0] == correlation_id


async def closed(client: Any) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert await client[0].read(1) == b""


async def test_idle_ones_make_room_for_a_further_client(
    counting: Any, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    """50 of 50 stay idle for ever: the 51st is served all the same."""
    broker = counting(connections_max=50)
    async with serving(broker) as (server, connect):
        idle = [await connect() for _ in range(50)]
        await until(lambda: server.connection_count == 50)
        await answered(idle[0], 1)
        broker.clock.advance(3)
        # Used last of all, so that it stays.
        await answered(idle[1], 2)
        further = await connect()
        await answered(further, 3)
        assert server.connection_count == 50
        await answered(idle[1], 4)
    assert counts.events["ended:room"] == 1
    assert not counts.events["refused:connections_max"]
    assert "idle for 3 s" in caplog.text


async def test_one_is_refused_where_none_is_idle_with_one_line_a_minute(
    counting: Any, counts: Counts, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fetch = Held()
    raw(FETCH, fetch)
    broker = counting(connections_max=2)
    async with serving(broker) as (server, connect):
        # One waits for an answer, and one has sent half of a request.
        waiting, half = await connect(), await connect()
        waiting[1].write(request(FETCH, 4, 1, b""))
        half[1].write(struct.pack(">i", 1000) + b"half")
        await until(lambda: len(fetch.futures) == 1 and received_bytes(server) > 0)
        await turns()
        broker.clock.advance(20)
        for _ in range(5):
            await closed(await connect())
        broker.clock.advance(60)
        await closed(await connect())
        assert server.connection_count == 2
        fetch.futures[0].set_result([b"done"])
        assert await reply(waiting[0]) == (1, b"done")
    assert counts.events["refused:connections_max"] == 6
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 2
    assert "connections_max allows no more; 5 refused since" in lines[1]


async def test_an_address_has_no_more_than_its_connections(counting: Any, counts: Counts) -> None:
    broker = counting(connections_per_ip_max=1, connections_per_ip_overrides={"127.0.0.1": 3})
    async with serving(broker) as (server, connect):
        clients = [await connect() for _ in range(3)]
        await until(lambda: server.connection_count == 3)
        await closed(await connect())
        clients[0][1].close()
        await until(lambda: server.connection_count == 2)
        await answered(await connect(), 1)
    assert counts.events["refused:max_connections_per_ip"] == 1


async def test_an_idle_connection_is_closed_after_its_time_alone(
    counting: Any, counts: Counts, raw: Any
) -> None:
    fetch = Held()
    raw(FETCH, fetch)
    broker = counting()
    clock: Any = broker.clock
    async with serving(broker) as (server, connect):
        used, idle, waiting = await connect(), await connect(), await connect()
        waiting[1].write(request(FETCH, 4, 1, b""))
        await until(lambda: len(fetch.futures) == 1 and server.connection_count == 3)
        for number in range(10):
            clock.advance(59)
            server.look()
            await answered(used, number)
        assert server.connection_count == 3
        clock.advance(59)
        server.look()
        await closed(idle)
        await answered(used, 11)
        fetch.futures[0].set_result([b"late"])
        assert await reply(waiting[0]) == (1, b"late")
    assert counts.events["ended:idle"] == 1


async def test_a_request_that_drips_is_ended_after_its_time(counting: Any, counts: Counts) -> None:
    """One byte each half second is no stall, and without a limit it never ends."""
    broker = counting()
    clock: Any = broker.clock
    async with serving(broker) as (server, connect):
        healthy, dripping = await connect(), await connect()
        dripping[1].write(struct.pack(">i", 1000) + b"x")
        await until(lambda: received_bytes(server) == 1)
        server.look()
        for number in range(1, 100):
            if server.connection_count == 1:
                break
            dripping[1].write(b"x")
            await until(lambda n=number: received_bytes(server) == 1 + n)
            clock.advance(0.5)
            server.look()
            await turns(3)
        assert number in {61, 62}
        await answered(healthy, 1)
    assert counts.events["ended:late_request"] == 1
    assert not counts.events["ended:stalled"]


async def test_partial_requests_above_the_budget_dont_starve_others(
    counting: Any, counts: Counts, raw: Any
) -> None:
    """Ten connections hold 600 KB each of a budget of 4 MiB, and send a byte each half second."""
    raw(PRODUCE, lambda context, body: [b"stored %d" % len(body)])
    raw(FETCH, lambda context, body: [b"fetched"])
    broker = counting(server_budget_bytes=LIMIT)
    clock: Any = broker.clock
    async with serving(broker) as (server, connect):
        fetcher, producer = await connect(), await connect()
        dripping = [await connect() for _ in range(10)]
        for _, writer in dripping:
            writer.write(struct.pack(">i", 1 << 20) + bytes(600_000))
        await until(lambda: server.data.is_full)
        fetcher[1].write(request(FETCH, 4, 1, b""))
        producer[1].write(request(PRODUCE, 3, 2, bytes(200_000)))
        answers = asyncio.gather(reply(fetcher[0]), reply(producer[0]))
        while not answers.done():
            for _, writer in dripping:
                with contextlib.suppress(RuntimeError, ConnectionError):
                    writer.write(b"x")
            clock.advance(0.5)
            server.look()
            await turns(5)
        assert await answers == [(1, b"fetched"), (2, b"stored 200000")]
        # No more than make room were ended.
        assert 2 <= counts.events["ended:slow_request"] <= 6
        assert clock.monotonic_s() < broker.settings.request_timeout_s


async def test_readers_that_drip_dont_starve_others_once_the_budget_is_full(
    counting: Any, counts: Counts, raw: Any
) -> None:
    chunk = bytes(1 << 20)
    raw(FETCH, lambda context, body: [chunk])
    broker = counting(server_budget_bytes=LIMIT)
    clock: Any = broker.clock
    async with serving(broker) as (server, connect):
        healthy = await connect()
        dripping = [await connect() for _ in range(6)]
        for _, writer in dripping:
            # Its socket fills; at the latest then our side does.
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"".join(request(FETCH, 4, n, b"") for n in range(10)))
        await until(lambda: server.data.is_full)
        healthy[1].write(request(FETCH, 4, 2, b""))
        answer = asyncio.ensure_future(reply(healthy[0]))
        while not answer.done():
            clock.advance(0.5)
            server.look()
            await turns(5)
        assert await answer == (2, chunk)
        assert clock.monotonic_s() < broker.settings.stall_timeout_s
    assert counts.events["ended:slow_reply"] >= 1
    assert not counts.events["ended:stalled"]


async def test_a_sender_is_not_called_slow_for_our_back_pressure(
    counting: Any, counts: Counts, raw: Any
) -> None:
    """The budget is full for long: one whose bytes wait in our socket stays, one that owes goes."""
    raw(PRODUCE, lambda context, body: [b"stored"])
    broker = counting(server_budget_bytes=LIMIT)
    clock: Any = broker.clock
    frame = request(PRODUCE, 3, 1, bytes(300_000))
    async with serving(broker) as (server, connect):
        sender = await connect()
        await until(lambda: server.connection_count == 1)
        (ours,) = server._host.connections
        owing = await connect()
        owing[1].write(frame[:10_000])
        await until(lambda: received_bytes(server) > FREE_BYTES)
        above = server.data.reserve(Lane.ANSWER, LIMIT + 1, object(), now_s=0.0)
        assert above.is_above
        sender[1].write(frame)

        def waits() -> bool:
            found = ours.sample(clock.monotonic_s())
            return found is not None and found.readable_bytes >= READABLE_BYTES

        await until(waits)
        await until(lambda: received_bytes(server) == 10_000 - 4 + FREE_BYTES)
        await until(lambda: ours._reading_paused)
        for _ in range(10):
            clock.advance(1)
            server.look()
        await closed(owing)
        assert counts.events["ended:slow_request"] == 1
        notify(server.data.release(above))
        assert await reply(sender[0]) == (1, b"stored")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no listener for both versions of IP")
async def test_a_peer_of_ipv4_has_one_address_on_a_listener_of_ipv6(
    counting: Any, counts: Counts
) -> None:
    """Linux names it ::ffff:127.0.0.1 there."""
    broker = counting(connections_per_ip_overrides={"127.0.0.1": 0})
    server = KafkaServer(broker)
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    await server.start(listener)
    try:
        client = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        client[1].write(api_versions(1))
        await closed(client)
        client[1].close()
    finally:
        await server.close()
    assert counts.events["refused:max_connections_per_ip"] == 1
