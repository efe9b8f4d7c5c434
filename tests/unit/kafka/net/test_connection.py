"""Connections over real loopback sockets: order, pipelining, endings, budgets, stalled peers."""

import asyncio
import contextlib
import logging
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kafka.broker import Broker
from penstock.kafka.instruments import NoInstruments
from penstock.kafka.net.connection import ITEMS_MAX, STARTED_BYTES_MAX
from penstock.kafka.net.unserved import NAMES
from penstock.kafka.registry import APIS
from penstock.kafka.transactions import ErrorVersions, refusal_error
from penstock.kafka.wire import schema
from penstock.state.answers import Refusal, Refused
from support.examples import examples
from support.loopback import (
    API_VERSIONS,
    DEADLINE_S,
    FETCH,
    METADATA,
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


async def test_produces_overlap_and_are_answered_in_order(broker: Broker, raw: Any) -> None:
    produce = Held()
    raw(PRODUCE, produce)
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


async def test_produces_of_many_partitions_start_some_at_a_time(broker: Broker, raw: Any) -> None:
    produce = Held()
    states: list[Any] = []

    def serve(context: Any, body: memoryview) -> Any:
        states.append(context.connection)
        context.connection.items += ITEMS_MAX // 4
        return produce(context, body)

    raw(PRODUCE, serve)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        for number in range(7):
            writer.write(request(PRODUCE, 3, number, b"%d" % number))
        await until(lambda: len(produce.futures) == 4)
        await turns()
        for number in range(7):
            assert len(produce.futures) == min(4 + number, 7)
            states[0].items -= ITEMS_MAX // 4
            produce.futures[number].set_result([b"done"])
            assert await reply(reader) == (number, b"done")
            await turns()
    assert produce.bodies == [b"%d" % number for number in range(7)]


async def test_a_turn_of_the_loop_starts_so_many_bytes_of_what_waited(
    broker: Broker, raw: Any
) -> None:
    fetch = Held()
    raw(FETCH, fetch)
    begun: list[int] = []
    turn = 0

    def serve(context: Any, body: memoryview) -> list[bytes]:
        begun.append(turn)
        return [b""]

    raw(PRODUCE, serve)
    count, byte_count = 100, 10_000
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.write(request(FETCH, 4, 0, b""))
        for number in range(1, count + 1):
            writer.write(request(PRODUCE, 3, number, bytes(byte_count)))
        await until(lambda: server.data.used_bytes > (count - 1) * byte_count)
        fetch.futures[0].set_result([b""])
        while len(begun) < count:
            turn += 1
            await asyncio.sleep(0)
        assert [(await reply(reader))[0] for _ in range(count + 1)] == list(range(count + 1))
    assert max(Counter(begun).values()) <= STARTED_BYTES_MAX // byte_count + 1


async def test_another_request_starts_when_those_before_it_are_answered(
    broker: Broker, raw: Any
) -> None:
    produce, fetch = Held(), Held()
    raw(PRODUCE, produce)
    raw(FETCH, fetch)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(
            request(PRODUCE, 3, 1, b"a") + request(FETCH, 4, 2, b"b") + request(PRODUCE, 3, 3, b"c")
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


async def test_a_request_without_an_answer_gets_none(broker: Broker, raw: Any) -> None:
    raw(PRODUCE, lambda context, body: None)
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, 3, 1, b"acks=0") + api_versions(2))
        assert (await reply(reader))[0] == 2


async def test_bytes_arriving_one_by_one_make_the_same_requests(broker: Broker) -> None:
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        for byte in api_versions(1) + api_versions(2):
            writer.write(bytes([byte]))
            await turns(2)
        assert [(await reply(reader))[0] for _ in range(2)] == [1, 2]


async def test_a_large_request_arrives_whole(broker: Broker, raw: Any) -> None:
    got: list[bytes] = []
    raw(PRODUCE, lambda context, body: got.append(bytes(body)) or [b"ok"])
    big = bytes(range(256)) * 20_000
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(api_versions(1) + request(PRODUCE, 3, 2, big) + request(PRODUCE, 3, 3, b"x"))
        assert [(await reply(reader))[0] for _ in range(3)] == [1, 2, 3]
    assert got == [big, b"x"]


async def test_api_versions_of_an_unknown_version_gets_the_list_in_version_0(
    broker: Broker,
) -> None:
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(API_VERSIONS, 99, 5, b"what ever") + api_versions(6))
        correlation_id, body = await reply(reader)
        answer = schema.decode_response("api_versions", 0, body)
        assert (correlation_id, answer.error_code) == (5, 35)
        assert {row.api_key for row in answer.api_keys} == {
            api.key for api in APIS.values() if api.level <= broker.view.feature_level
        }
        # KIP-511: the connection goes on.
        assert (await reply(reader))[0] == 6


BAD = {
    "unknown API": (request(999, 0, 2, b""), "API key 999"),
    "unsupported version": (request(METADATA, 77, 2, b""), "version 77"),
    "transaction below its level": (request(26, 0, 2, b""), "EndTxn"),
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


def test_a_client_that_asks_for_what_is_not_served_has_one_line_a_minute(
    broker: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each client id and API, with the count of those left out. All are counted."""
    counted: Counter[str] = Counter()
    monkeypatch.setattr(
        NoInstruments, "count", lambda _, event, amount=1: counted.update({event: amount})
    )

    async def run() -> None:
        async with serving(broker) as (_, connect):
            for key, version in ((84, 0), (84, 0), (83, 0), (0, 2)):
                reader, writer = await connect()
                writer.write(request(key, version, 2, b"", flexible=key != 0))
                assert await reader.read() == b""

    with caplog.at_level(logging.INFO, logger="penstock"):
        asyncio.run(run())
    lines = [line for line in caplog.messages if "which this server does not serve" in line]
    assert [name for line in lines for name in NAMES.values() if f" {name}," in line] == [
        "ReadShareGroupState",
        "InitializeShareGroupState",
    ]
    assert (
        "asked for version 2 of Produce, which this server does not serve: served are" in lines[2]
    )
    assert {event: count for event, count in counted.items() if event.startswith("unserved:")} == {
        "unserved:api": 3,
        "unserved:version": 1,
    }


async def test_a_handlers_bug_ends_its_connection_alone(
    broker: Broker, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: Any, body: memoryview) -> Any:
        raise ZeroDivisionError

    raw(FETCH, broken)
    async with serving(broker) as (server, connect):
        reader, writer = await connect()
        writer.write(request(FETCH, 4, 1, b""))
        assert await reader.read() == b""
        assert server.connection_count == 0
    assert "Fetch failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@settings(max_examples=examples(0.5), suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.slow
async def test_readers_that_never_read_cost_no_more_than_the_budget(
    broker_with: Any, raw: Any
) -> None:
    """500 connections ask for 1 MiB ten times each and take nothing."""
    chunk = bytes(1 << 20)
    made: list[int] = []

    def fetch(context: Any, body: memoryview) -> Any:
        made.append(context.connection.id)
        return [chunk]

    raw(FETCH, fetch)
    limit = 32 << 20
    broker = broker_with(server_budget_bytes=limit)
    async with serving(broker) as (server, connect):
        healthy_reader, healthy_writer = await connect()
        clients = [await connect() for _ in range(500)]
        for _, writer in clients:
            # A client that stops reading: its socket fills, then our side does.
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"".join(request(FETCH, 4, n, b"") for n in range(10)))
        await until(lambda: server.data.is_full)
        await turns(200)
        # One reply may overshoot; requests in progress count as well.
        assert server.data.used_bytes < limit + 2 * len(chunk)
        # Who asks for little is served all the same.
        healthy_writer.write(api_versions(1))
        assert (await reply(healthy_reader))[0] == 1
        # Once the first one reads, its own next request and then others' may start.
        before = len(made)
        reader, writer = clients[made[0] - 2]
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await reply(reader))[0] == 0
        await until(lambda: len(made) > before)


@pytest.mark.slow
async def test_a_stalled_reader_is_disconnected_with_one_line(
    broker: Broker, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw(FETCH, lambda context, body: [bytes(50 << 20)])
    clock: Any = broker.clock
    async with serving(broker) as (server, connect):
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(FETCH, 4, 1, b""))
        await until(lambda: server.data.used_bytes > 1 << 20)
        await turns(100)
        server.look()
        clock.advance(broker.settings.stall_timeout_s - 1)
        server.look()
        await turns()
        assert server.connection_count == 1
        clock.advance(2)
        server.look()
        await until(lambda: server.connection_count == 0)
    assert caplog.text.count("nothing moved") == 1


async def test_a_request_begun_and_never_finished_is_disconnected(broker: Broker) -> None:
    clock: Any = broker.clock
    async with serving(broker) as (server, connect):
        _, writer = await connect()
        writer.write(struct.pack(">i", 1000) + b"only this")
        await until(lambda: received_bytes(server) > 0)
        server.look()
        clock.advance(broker.settings.stall_timeout_s + 1)
        server.look()
        await until(lambda: server.connection_count == 0)


async def test_requests_above_the_budget_all_complete_in_time(broker_with: Any, raw: Any) -> None:
    """Many large requests at once, each larger than the whole budget: none waits for ever."""
    got: list[int] = []
    raw(PRODUCE, lambda context, body: got.append(len(body)) or [b"ok"])
    broker = broker_with(server_budget_bytes=1 << 20, connection_budget_bytes=1 << 18)
    async with serving(broker) as (_, connect):
        clients = [await connect() for _ in range(6)]
        for _, writer in clients:
            writer.write(request(PRODUCE, 3, 1, bytes(2 << 20)) * 2)
        for reader, _ in clients:
            assert [(await reply(reader))[0] for _ in range(2)] == [1, 1]
    assert got == [2 << 20] * 12


async def test_draining_answers_what_was_started_and_closes(broker: Broker, raw: Any) -> None:
    produce = Held()
    raw(PRODUCE, produce)
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


async def test_a_waiting_request_of_a_peer_that_left_is_cancelled(broker: Broker, raw: Any) -> None:
    fetch, produce = Held(), Held()
    raw(FETCH, fetch)
    raw(PRODUCE, produce)
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


async def test_a_late_request_closes_its_connection_without_an_answer(
    broker: Broker, raw: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is counted, and the first of a minute leaves a line."""
    counted: Counter[str] = Counter()
    monkeypatch.setattr(
        NoInstruments, "count", lambda _, event, amount=1: counted.update({event: amount})
    )
    applied = [0]
    broker.position = lambda: applied[0]
    seen: list[int] = []

    def late(context: Any, body: memoryview) -> Any:
        seen.append(context.connection.seen_position)
        refused = Refused(Refusal.STALE_CONNECTION, "it is late")
        return refusal_error(refused, context.api_version, ErrorVersions(2, 4))

    raw(METADATA, late)
    caplog.set_level(logging.INFO, logger="penstock")
    async with serving(broker) as (_, connect):
        for applied[0] in (5, 6):
            reader, writer = await connect()
            writer.write(api_versions(1) + request(METADATA, 1, 2, b"") + api_versions(3))
            assert (await reply(reader))[0] == 1
            assert await reader.read() == b""
    assert counted["late_transaction_requests"] == 2
    assert len([line for line in caplog.messages if "it is late" in line]) == 1
    assert seen == [5, 6]
