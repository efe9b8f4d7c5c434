"""Connections over real loopback sockets: order, pipelining, endings, budgets, stalled peers."""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kafka import schema
from penstock.kafka.broker import Broker
from penstock.kafka.registry import APIS
from penstock.kafka.server import KafkaServer
from penstock.kafka.waves import CONNECTIONS_MIN

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
DEADLINE_S = 60.0
KERNEL_BYTES = 64 << 10
"""Of a socket's buffers; Linux doubles it."""

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
RawHandler = Callable[[Any, memoryview], Any]


def request(
    key: int, version: int, correlation_id: int, body: bytes, flexible: bool = False
) -> bytes:
    frame = struct.pack(">hhi", key, version, correlation_id) + b"\x00\x01c"
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
) -> AsyncIterator[tuple[KafkaServer, Callable[[], Awaitable[Client]]]]:
    server = KafkaServer(broker)
    listener = socket.create_server(("127.0.0.1", 0))
    # Else the kernel takes as many megabytes of what nobody reads as it thinks fit, which differs
    # from machine to machine. Accepted sockets inherit it.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    await server.start(listener)
    port = listener.getsockname()[1]
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
        assert server.budget.used_bytes == 0


async def turns(count: int = 20) -> None:
    """Let the loop do what is ready, sockets included."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most as long as the surrounding deadline."""
    while not condition():
        await asyncio.sleep(0.001)


@pytest.fixture
def raw(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, RawHandler], None]:
    """Put a raw handler of the test in an API's place."""

    def put(key: int, serve: RawHandler) -> None:
        monkeypatch.setattr(APIS[key], "handler", SimpleNamespace(serve=serve))
        monkeypatch.setattr(APIS[key], "raw", True)

    return put


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def _loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs on both event loops."""
    if request.param == "uvloop":

        def run(main: Coroutine[Any, Any, Any]) -> Any:
            # Not `uvloop.run`, which calls `asyncio.run` where that takes a loop factory.
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(main)

        monkeypatch.setattr(asyncio, "run", run)


class Held:
    """A raw handler whose requests stay unanswered until the test answers them."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []
        self.bodies: list[bytes] = []

    def __call__(self, context: Any, body: memoryview) -> asyncio.Future[Any]:
        self.bodies.append(bytes(body))
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


def test_produces_overlap_and_are_answered_in_order(broker: Broker, raw: Any) -> None:
    produce = Held()
    raw(PRODUCE, produce)

    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(b"".join(request(PRODUCE, 3, n, b"%d" % n) for n in range(3)))
            await until(lambda: len(produce.futures) == 3)
            produce.futures[2].set_result([b"two"])
            produce.futures[1].set_result([b"o", memoryview(b"ne")])
            await turns()
            produce.futures[0].set_result([b"zero"])
            assert [await reply(reader) for _ in range(3)] == [
                (0, b"zero"),
                (1, b"one"),
                (2, b"two"),
            ]

    asyncio.run(run())


def test_another_request_starts_when_those_before_it_are_answered(broker: Broker, raw: Any) -> None:
    produce, fetch = Held(), Held()
    raw(PRODUCE, produce)
    raw(FETCH, fetch)

    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(
                request(PRODUCE, 3, 1, b"a")
                + request(FETCH, 4, 2, b"b")
                + request(PRODUCE, 3, 3, b"c")
            )
            await until(lambda: len(produce.futures) == 1)
            await turns()
            assert fetch.futures == []
            produce.futures[0].set_result([b"A"])
            await until(lambda: len(fetch.futures) == 1)
            await turns()
            assert len(produce.futures) == 1
            fetch.futures[0].set_result([b"B"])
            await until(lambda: len(produce.futures) == 2)
            produce.futures[1].set_result([b"C"])
            assert [await reply(reader) for _ in range(3)] == [(1, b"A"), (2, b"B"), (3, b"C")]

    asyncio.run(run())


def test_a_request_without_an_answer_gets_none(broker: Broker, raw: Any) -> None:
    raw(PRODUCE, lambda context, body: None)

    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(request(PRODUCE, 3, 1, b"acks=0") + api_versions(2))
            assert (await reply(reader))[0] == 2

    asyncio.run(run())


class Company:
    """Connections whose Produce requests wait for others', with the handler that gets them."""

    def __init__(self, connect: Callable[[], Awaitable[Client]], got: list[bytes]) -> None:
        self._connect = connect
        self._got = got
        self.clients: list[Client] = []

    async def send_until_they_wait(self) -> None:
        for number in range(CONNECTIONS_MIN):
            self.clients.append(await self._connect())
            self.clients[-1][1].write(request(PRODUCE, 3, 1, b"%d" % number))
            if number < CONNECTIONS_MIN - 1:
                await until(lambda: len(self._got) == number + 1)  # noqa: B023 - it waits here
        await turns()
        assert len(self._got) == CONNECTIONS_MIN - 1


NEVER_MS = 3_600_000


def company(
    broker: Broker, raw: Any, scenario: Callable[[Company, KafkaServer, list[bytes]], Any]
) -> None:
    got: list[bytes] = []
    raw(PRODUCE, lambda context, body: got.append(bytes(body)) or [bytes(body)])

    async def run() -> None:
        async with serving(broker) as (server, connect):
            together = Company(connect, got)
            await together.send_until_they_wait()
            await scenario(together, server, got)

    asyncio.run(run())


def test_produces_of_many_connections_are_taken_up_together(broker_with: Any, raw: Any) -> None:
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


def test_bytes_arriving_one_by_one_make_the_same_requests(broker: Broker) -> None:
    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            for byte in api_versions(1) + api_versions(2):
                writer.write(bytes([byte]))
                await turns(2)
            assert [(await reply(reader))[0] for _ in range(2)] == [1, 2]

    asyncio.run(run())


def test_a_large_request_arrives_whole(broker: Broker, raw: Any) -> None:
    got: list[bytes] = []
    raw(PRODUCE, lambda context, body: got.append(bytes(body)) or [b"ok"])
    big = bytes(range(256)) * 20_000

    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(
                api_versions(1) + request(PRODUCE, 3, 2, big) + request(PRODUCE, 3, 3, b"x")
            )
            assert [(await reply(reader))[0] for _ in range(3)] == [1, 2, 3]

    asyncio.run(run())
    assert got == [big, b"x"]


def test_api_versions_of_an_unknown_version_gets_the_list_in_version_0(broker: Broker) -> None:
    async def run() -> None:
        async with serving(broker) as (_, connect):
            reader, writer = await connect()
            writer.write(request(API_VERSIONS, 99, 5, b"what ever") + api_versions(6))
            correlation_id, body = await reply(reader)
            answer = schema.decode_response("api_versions", 0, body)
            assert (correlation_id, answer.error_code) == (5, 35)
            assert {row.api_key for row in answer.api_keys} == set(APIS)
            # KIP-511: the connection goes on.
            assert (await reply(reader))[0] == 6

    asyncio.run(run())


BAD = {
    "unknown API": (request(999, 0, 2, b""), "API key 999"),
    "unsupported version": (request(METADATA, 77, 2, b""), "version 77"),
    "too old Produce": (request(PRODUCE, 2, 2, b""), "version 2"),
    "frame too large": (struct.pack(">i", 2_000_000_000), "2000000000 bytes announced"),
    "negative frame": (struct.pack(">i", -1), "-1 bytes announced"),
    "short frame": (struct.pack(">i", 3) + b"abc", "3 bytes"),
    "malformed body": (request(60, 0, 2, b"", flexible=True), "DescribeCluster"),
    "malformed raw body": (request(METADATA, 1, 2, b"\x00\x00\xff\xff"), "Metadata"),
    "client id beyond the frame": (
        struct.pack(">ihhih", 10, METADATA, 1, 2, 500),
        "client id of 500",
    ),
}


@pytest.mark.parametrize("which", BAD)
def test_a_bad_request_ends_its_connection_alone_with_one_line(
    broker: Broker, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    data, expected = BAD[which]

    async def run() -> None:
        async with serving(broker) as (_, connect):
            other_reader, other_writer = await connect()
            reader, writer = await connect()
            writer.write(api_versions(1) + data + api_versions(3))
            # What came before it is answered; nothing behind it is.
            assert (await reply(reader))[0] == 1
            assert await reader.read() == b""
            other_writer.write(api_versions(4))
            assert (await reply(other_reader))[0] == 4

    with caplog.at_level(logging.INFO, logger="penstock"):
        asyncio.run(run())
    (record,) = [record for record in caplog.records if record.name.startswith("penstock")]
    assert "127.0.0.1:" in record.message
    assert expected in record.message


def test_a_handlers_bug_ends_its_connection_alone(
    broker: Broker, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: Any, body: memoryview) -> Any:
        raise ZeroDivisionError

    raw(FETCH, broken)

    async def run() -> None:
        async with serving(broker) as (server, connect):
            reader, writer = await connect()
            writer.write(request(FETCH, 4, 1, b""))
            assert await reader.read() == b""
            assert server.connection_count == 0

    asyncio.run(run())
    assert "Fetch failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.lists(st.binary(max_size=60), max_size=4), key=st.sampled_from(sorted(APIS)))
def test_hostile_bytes_never_hurt_another_connection(
    broker: Broker, data: list[bytes], key: int
) -> None:
    """Random bodies of every API, random frames: each ends its connection or is answered."""

    async def run() -> None:
        async with serving(broker) as (server, connect):
            reader, writer = await connect()
            for body in data:
                if key in (METADATA, API_VERSIONS, 19, 32, 60):
                    writer.write(request(key, APIS[key].versions_max, 1, body))
                else:
                    writer.write(struct.pack(">i", len(body)) + body)
            writer.write_eof()
            await reader.read()
            await until(lambda: server.connection_count == 0)
            reader, writer = await connect()
            writer.write(api_versions(9))
            assert (await reply(reader))[0] == 9

    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    try:
        asyncio.run(run())
    finally:
        logging.getLogger("penstock").setLevel(logging.NOTSET)


def test_readers_that_never_read_cost_no_more_than_the_budget(broker_with: Any, raw: Any) -> None:
    """500 connections ask for 1 MiB ten times each and take nothing."""
    chunk = bytes(1 << 20)
    made: list[int] = []

    def fetch(context: Any, body: memoryview) -> Any:
        made.append(context.connection.id)
        return [chunk]

    raw(FETCH, fetch)
    limit = 32 << 20
    broker = broker_with(server_budget_bytes=limit)

    async def run() -> None:
        async with serving(broker) as (server, connect):
            healthy_reader, healthy_writer = await connect()
            clients = [await connect() for _ in range(500)]
            for _, writer in clients:
                # A client that stops reading: its socket fills, then our side does.
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(b"".join(request(FETCH, 4, n, b"") for n in range(10)))
            await until(lambda: server.budget.spent)
            await turns(200)
            # One reply may overshoot; requests in progress count as well.
            assert server.budget.used_bytes < limit + 2 * len(chunk)
            # Who asks for little is served all the same.
            healthy_writer.write(api_versions(1))
            assert (await reply(healthy_reader))[0] == 1
            # Once the first one reads, its own next request and then others' may start.
            before = len(made)
            reader, writer = clients[made[0] - 2]
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await reply(reader))[0] == 0
            await until(lambda: len(made) > before)

    asyncio.run(run())


def test_a_stalled_reader_is_disconnected_with_one_line(
    broker: Broker, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw(FETCH, lambda context, body: [bytes(50 << 20)])
    clock: Any = broker.clock

    async def run() -> None:
        async with serving(broker) as (server, connect):
            _, writer = await connect()
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request(FETCH, 4, 1, b""))
            await until(lambda: server.budget.used_bytes > 1 << 20)
            await turns(100)
            (connection,) = server._host.connections
            connection.check_stalled(clock.monotonic_s())
            clock.seconds += broker.settings.stall_timeout_s - 1
            connection.check_stalled(clock.monotonic_s())
            await turns()
            assert server.connection_count == 1
            clock.seconds += 2
            connection.check_stalled(clock.monotonic_s())
            await until(lambda: server.connection_count == 0)

    asyncio.run(run())
    assert caplog.text.count("nothing moved") == 1


def test_a_request_begun_and_never_finished_is_disconnected(broker: Broker) -> None:
    clock: Any = broker.clock

    async def run() -> None:
        async with serving(broker) as (server, connect):
            _, writer = await connect()
            writer.write(struct.pack(">i", 1000) + b"only this")
            await until(lambda: server.budget.used_bytes > 0)
            (connection,) = server._host.connections
            connection.check_stalled(clock.monotonic_s())
            clock.seconds += broker.settings.stall_timeout_s + 1
            connection.check_stalled(clock.monotonic_s())
            await until(lambda: server.connection_count == 0)

    asyncio.run(run())


def test_an_idle_connection_stays(broker: Broker) -> None:
    clock: Any = broker.clock

    async def run() -> None:
        async with serving(broker) as (server, connect):
            reader, writer = await connect()
            writer.write(api_versions(1))
            await reply(reader)
            (connection,) = server._host.connections
            for _ in range(3):
                clock.seconds += 1000
                connection.check_stalled(clock.monotonic_s())
            writer.write(api_versions(2))
            assert (await reply(reader))[0] == 2

    asyncio.run(run())


def test_requests_above_the_budget_all_complete_in_time(broker_with: Any, raw: Any) -> None:
    """Many large requests at once, each larger than the whole budget: none waits for ever."""
    got: list[int] = []
    raw(PRODUCE, lambda context, body: got.append(len(body)) or [b"ok"])
    broker = broker_with(server_budget_bytes=1 << 20, connection_budget_bytes=1 << 18)

    async def run() -> None:
        async with serving(broker) as (_, connect):
            clients = [await connect() for _ in range(6)]
            for _, writer in clients:
                writer.write(request(PRODUCE, 3, 1, bytes(2 << 20)) * 2)
            for reader, _ in clients:
                assert [(await reply(reader))[0] for _ in range(2)] == [1, 1]

    asyncio.run(run())
    assert got == [2 << 20] * 12


def test_connections_above_the_limit_are_closed(
    broker_with: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_with(connections_max=2)

    async def run() -> None:
        async with serving(broker) as (server, connect):
            for _ in range(2):
                reader, writer = await connect()
                writer.write(api_versions(1))
                await reply(reader)
            reader, _ = await connect()
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            assert server.connection_count == 2

    asyncio.run(run())
    assert "connections_max" in caplog.text


def test_draining_answers_what_was_started_and_closes(broker: Broker, raw: Any) -> None:
    produce = Held()
    raw(PRODUCE, produce)

    async def run() -> None:
        async with serving(broker) as (server, connect):
            reader, writer = await connect()
            idle_reader, idle_writer = await connect()
            idle_writer.write(api_versions(1))
            await reply(idle_reader)
            writer.write(request(PRODUCE, 3, 1, b"a"))
            await until(lambda: len(produce.futures) == 1)
            draining = asyncio.ensure_future(server.drain(DEADLINE_S))
            assert await idle_reader.read() == b""
            writer.write(request(PRODUCE, 3, 2, b"too late"))
            await turns()
            assert not draining.done()
            produce.futures[0].set_result([b"done"])
            assert await reply(reader) == (1, b"done")
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await draining
            assert len(produce.futures) == 1

    asyncio.run(run())


def test_a_waiting_request_of_a_peer_that_left_is_cancelled(broker: Broker, raw: Any) -> None:
    fetch, produce = Held(), Held()
    raw(FETCH, fetch)
    raw(PRODUCE, produce)

    async def run() -> None:
        async with serving(broker) as (server, connect):
            _, writer = await connect()
            writer.write(request(FETCH, 4, 1, b""))
            _, second = await connect()
            second.write(request(PRODUCE, 3, 1, b""))
            await until(lambda: bool(fetch.futures and produce.futures))
            writer.close()
            second.close()
            await until(lambda: server.connection_count == 0)
            assert fetch.futures[0].cancelled()
            # Its bytes may be stored already: whoever stores them finds the future as it was.
            assert not produce.futures[0].done()
            produce.futures[0].set_result([b"nobody reads this"])
            await turns()

    asyncio.run(run())
