"""Produce and Fetch of many partitions: they take turns, keep their place, and are answered as
short ones are."""

from __future__ import annotations

import asyncio
import gc
import struct
from typing import Any

import pytest
from kio.serial import entity_reader

from penstock.kafka.broker import Broker
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.errors import MalformedRequestError
from penstock.kafka.fetch.long_fetch import FOUND_AT_ONCE
from penstock.kafka.handlers import fetch, produce
from penstock.kafka.registry import BY_MODULE
from penstock.kafka.replies import LateReply
from penstock.kafka.wire import schema
from penstock.kafka.wire.fetch_codec import STEP_ITEMS, FetchPartition, encode_fetch
from penstock.kafka.wire.produce_codec import STEP_ITEMS as PRODUCE_STEP_ITEMS
from penstock.kafka.wire.produce_codec import TEXTS_BYTES_MAX
from penstock.system.turns import Turns
from support.log_rig import Rig
from support.loop_probe import Probe
from support.loopback import FETCH, api_versions, reply, request, serving
from support.waiting import turns, until
from unit.kafka.test_fetch_sharing import Sink
from unit.kafka.test_produce import batch, by_name

MANY = 20_000
TURN_ITEMS = 100
CALLS_MAX = 15_000
"""Between two turns: of the MANY partitions some thousand are looked at."""
BATCH = batch()


def of_topics(*topics: tuple[str, list[bytes]]) -> bytes:
    """An array of topics with their partitions, before flexible versions."""
    body = struct.pack(">i", len(topics))
    for name, partitions in topics:
        body += struct.pack(">h", len(name)) + name.encode()
        body += struct.pack(">i", len(partitions)) + b"".join(partitions)
    return body


def produce_body(*topics: tuple[str, list[bytes]], acks: int = -1) -> bytes:
    """Of versions 3 to 8."""
    return struct.pack(">hhi", -1, acks, 30_000) + of_topics(*topics)


def records(partition: int, batch: bytes | None) -> bytes:
    length = -1 if batch is None else len(batch)
    return struct.pack(">ii", partition, length) + (batch or b"")


def fetch_body(
    *topics: tuple[str, list[bytes]],
    forgotten: bytes = struct.pack(">i", 0),
    session: tuple[int, int] = (0, -1),
    wait_ms: int = 0,
    bytes_min: int = 1,
) -> bytes:
    """Of version 10."""
    head = struct.pack(">iiiibii", -1, wait_ms, bytes_min, 1 << 20, 0, *session)
    return head + of_topics(*topics) + forgotten


def wanted(partition: int, offset: int = 0) -> bytes:
    return struct.pack(">iiqqi", partition, -1, offset, -1, 1 << 20)


class Client:
    """One connection's requests, as `KafkaConnection` hands them on."""

    def __init__(self, broker: Broker, keys: list[Any]) -> None:
        self.broker = broker
        self.keys = keys
        self.state = ConnectionState(1, Sink(1 << 20, files=False))

    def send(self, handler: Any, version: int, body: bytes) -> Any:
        api = BY_MODULE[handler.__name__.rpartition(".")[2]]
        context = RequestContext(api.key, version, 1, "c", "127.0.0.1", self.broker, self.state)
        return handler.serve(context, memoryview(bytearray(body)))

    async def ask(self, handler: Any, version: int, body: bytes) -> bytes:
        reply = self.send(handler, version, body)
        if asyncio.isfuture(reply):
            reply = await reply
        return b"".join(map(bytes, reply or ()))


@pytest.fixture
async def client(rig: Rig) -> Client:
    broker = rig.agent.broker
    broker.turns = Turns(items_max=TURN_ITEMS)
    return Client(broker, await rig.topic("t", 3))


EMPTY = [records(0, None)] * MANY
MANY_TOPICS = [("nosuch", [])] * MANY
LONG = {
    "unknown": (produce, 3, produce_body(("nosuch", EMPTY))),
    "without records": (produce, 3, produce_body(("t", EMPTY))),
    "topics": (produce, 8, produce_body(*MANY_TOPICS)),
    "topics of one": (produce, 8, produce_body(*[("nosuch", EMPTY[:1])] * (MANY // 2))),
    "acks=0": (produce, 3, produce_body(("t", [records(0, BATCH)] * 2_000), acks=0)),
    "batches": (produce, 3, produce_body(("t", [records(0, BATCH)] * 10_000))),
    "unknown wanted": (fetch, 10, fetch_body(("nosuch", [wanted(0)] * MANY))),
    "one wanted": (fetch, 10, fetch_body(("t", [wanted(0)] * MANY))),
    "one wanted of each": (fetch, 10, fetch_body(*[("t", [wanted(0)])] * (MANY // 2))),
    "topics wanted": (fetch, 10, fetch_body(*MANY_TOPICS)),
    "forgotten": (
        fetch,
        10,
        fetch_body(forgotten=of_topics(("t", [struct.pack(">i", 0)] * MANY))),
    ),
    "a session": (fetch, 10, fetch_body(("t", [wanted(n) for n in range(MANY)]), session=(0, 0))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
async def test_no_request_of_many_partitions_holds_the_loop(client: Client, name: str) -> None:
    handler, version, body = LONG[name]
    with Probe() as probe:
        await client.ask(handler, version, body)
    assert probe.most < CALLS_MAX, (probe.most, probe.total, probe.turns)
    assert probe.turns > 10


@pytest.mark.slow
async def test_a_session_of_many_partitions_takes_turns_at_each_fetch(
    rig: Rig, client: Client
) -> None:
    await rig.topic("wide", 5_000)
    body = fetch_body(("wide", [wanted(n) for n in range(5_000)]), session=(0, 0))
    answer = await client.ask(fetch, 10, body)
    (session_id,) = struct.unpack_from(">i", answer, 6)
    assert session_id > 0
    with Probe() as probe:
        answer = await client.ask(fetch, 10, fetch_body(session=(session_id, 1)))
    assert answer == b"".join(map(bytes, encode_fetch([], 10, session_id=session_id)))
    assert probe.most < 8_000, (probe.most, probe.total)


@pytest.mark.parametrize("version", [3, 8])
async def test_a_long_produce_is_answered_as_a_short_one(
    rig: Rig, client: Client, version: int
) -> None:
    part = [records(0, BATCH), records(1, None), records(7, BATCH), records(2, BATCH)]
    times = PRODUCE_STEP_ITEMS // 2
    read = entity_reader(schema.response_types("produce", version).ProduceResponse)

    async def told(body: bytes) -> list[tuple[int, int, int, str | None]]:
        answer, _ = read(await client.ask(produce, version, body), 0)
        (topic,) = answer.responses
        return [
            (
                one.index,
                one.error_code.value,
                one.base_offset,
                getattr(one, "error_message", None),
            )
            for one in topic.partition_responses
        ]

    first, *refused, last = await told(produce_body(("t", part)))
    assert (first[1:3], last[1:3]) == ((0, 0), (0, 0))
    many = await told(produce_body(("t", part * times)))
    assert [one for one in many if one[1]] == refused * times
    offsets = list(range(1, times + 1))
    for partition in (0, 2):
        assert [one[2] for one in many if one[0] == partition] == offsets


async def test_what_comes_later_on_a_connection_is_appended_later(rig: Rig, client: Client) -> None:
    long = client.send(produce, 3, produce_body(("t", [records(0, BATCH)] * 3_000)))
    short = client.send(produce, 3, by_name("t", BATCH))
    assert client.state.items == PRODUCE_STEP_ITEMS + 2
    (reply,) = await short
    assert struct.unpack_from(">q", reply, 17) == (3_000,)
    await long
    await until(lambda: client.state.items == 0)


@pytest.mark.slow
async def test_a_long_produce_whose_peer_is_gone_is_forgotten_before_the_log_has_any_of_it(
    rig: Rig, client: Client
) -> None:
    key = (await rig.topic("gone"))[0]
    many = ("gone", [records(0, BATCH)] * 3_000)
    sent = [client.send(produce, 3, produce_body(many)) for _ in range(3)]
    unanswered = client.send(produce, 3, produce_body(many, acks=0))
    await until(lambda: rig.log.high_watermark(key) > 0)
    client.state.leave()
    assert len(client.state.produces) == 2
    await asyncio.wait([*sent, unanswered])
    assert [one.cancelled() for one in sent] == [False, True, True]
    assert rig.log.high_watermark(key) == 6_000
    assert not client.state.produces
    assert not client.broker.long_produces.locked()


async def test_a_long_produce_that_is_malformed_holds_up_nothing(client: Client) -> None:
    long = client.send(produce, 3, produce_body(("t", EMPTY))[:-3])
    short = client.send(produce, 3, by_name("t", BATCH))
    with pytest.raises(MalformedRequestError):
        await long
    (reply,) = await short
    assert struct.unpack_from(">hq", reply, 15) == (0, 0)
    assert not client.state.produces
    await until(lambda: client.state.items == 0)


WIDE = STEP_ITEMS + 500


async def test_a_long_fetch_is_answered_by_what_comes(rig: Rig, client: Client) -> None:
    keys = await rig.topic("wide", WIDE)
    body = fetch_body(("wide", [wanted(n) for n in range(WIDE)]), wait_ms=600_000)
    reply = client.send(fetch, 10, body)
    await until(lambda: len(rig.log.waiters) > 0)
    for _ in range(200):
        await asyncio.sleep(0)
    assert not reply.done()
    await rig.append(keys[-1], b"x")
    assert b"x" in b"".join(map(bytes, await reply))
    await until(lambda: len(rig.log.waiters) == 0)


@pytest.mark.slow
async def test_long_fetches_that_wait_hold_their_frames_alone(rig: Rig, client: Client) -> None:
    def read() -> int:
        return sum(type(one) is FetchPartition for one in gc.get_objects())

    keys = await rig.topic("wide", WIDE)
    gc.collect()  # what other tests left may go at any time
    others = read()
    body = fetch_body(("wide", [wanted(n) for n in range(WIDE)]), wait_ms=600_000)
    clients = [Client(client.broker, keys) for _ in range(3)]
    async with client.broker.long_fetches:
        replies = [one.send(fetch, 10, body) for one in clients]
        await turns()
        assert read() == others, "they wait for their turn"
    listed = -(-WIDE // FOUND_AT_ONCE) * len(clients)
    await until(lambda: len(rig.log.waiters) == listed)
    await until(lambda: not client.broker.long_fetches.locked())
    await turns()
    assert read() == others, "they wait for records"
    await rig.append(keys[-1], b"x")
    for answer in replies:
        assert b"x" in b"".join(map(bytes, await answer))


async def test_a_long_fetch_is_answered_at_its_time(rig: Rig, client: Client) -> None:
    await rig.topic("wide", WIDE)
    body = fetch_body(("wide", [wanted(n) for n in range(WIDE)]), wait_ms=20)
    short = await client.ask(fetch, 10, fetch_body(("wide", [wanted(0)])))
    answer = await client.ask(fetch, 10, body)
    assert len(answer) - len(short) == (WIDE - 1) * (len(short) - 10 - 4 - 6 - 4)


@pytest.mark.parametrize("partitions", [1, WIDE])
async def test_a_fetch_waits_for_records_no_longer_than_until_something_else_is_asked(
    rig: Rig, client: Client, partitions: int
) -> None:
    """Else who looks for a leader, over the connection by which it fetches, waits for its Fetch."""
    await rig.topic("wide", partitions)
    body = fetch_body(("wide", [wanted(n) for n in range(partitions)]), wait_ms=600_000)
    async with serving(client.broker) as (_, connect):
        reader, writer = await connect()
        for first in (1, 3):
            writer.write(request(FETCH, 10, first, body))
            await until(lambda: len(rig.log.waiters) > 0)
            await turns()
            writer.write(api_versions(first + 1))
            assert [(await reply(reader))[0] for _ in range(2)] == [first, first + 1]
            await until(lambda: len(rig.log.waiters) == 0)
        # Also where both are there at once.
        writer.write(request(FETCH, 10, 5, body) + api_versions(6))
        assert [(await reply(reader))[0] for _ in range(2)] == [5, 6]


@pytest.mark.slow
async def test_a_long_fetch_hears_what_is_asked_while_it_collects(rig: Rig, client: Client) -> None:
    await rig.topic("wide", WIDE)
    body = fetch_body(("wide", [wanted(n) for n in range(WIDE)]), wait_ms=600_000)
    async with serving(client.broker) as (_, connect):
        for turn_count in range(0, 40, 3):
            reader, writer = await connect()
            writer.write(request(FETCH, 10, 1, body))
            await until(client.broker.long_fetches.locked)
            await turns(turn_count)
            writer.write(api_versions(2))
            async with asyncio.timeout(30):
                assert [(await reply(reader))[0] for _ in range(2)] == [1, 2]
            writer.close()


async def test_a_fetch_behind_a_fetch_is_nothing_else(rig: Rig, client: Client) -> None:
    """A client that always has two under way would else never wait for records."""
    keys = await rig.topic("narrow", 1)
    body = fetch_body(("narrow", [wanted(0)]), wait_ms=600_000)
    async with serving(client.broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(FETCH, 10, 1, body) + request(FETCH, 10, 2, body))
        await until(lambda: len(rig.log.waiters) > 0)
        await turns()
        await rig.append(keys[0], b"x")
        for number in (1, 2):
            correlation_id, answer = await reply(reader)
            assert correlation_id == number
            assert b"x" in answer


async def test_a_long_fetch_that_nobody_waits_for_is_forgotten(rig: Rig, client: Client) -> None:
    await rig.topic("wide", WIDE)
    body = fetch_body(("wide", [wanted(n) for n in range(WIDE)]), wait_ms=600_000)
    reply = client.send(fetch, 10, body)
    await until(lambda: len(rig.log.waiters) > 0)
    reply.cancel()
    await until(lambda: len(rig.log.waiters) == 0)
    assert not client.broker.long_fetches.locked()


async def test_a_long_fetch_gives_a_partition_once_as_it_was_named_last(
    rig: Rig, client: Client
) -> None:
    key = (await rig.topic("one"))[0]
    await rig.append(key, b"first")
    await rig.append(key, b"second")
    body = fetch_body(("one", [wanted(0, 9)] * MANY + [wanted(0, 1)]))
    answer = await client.ask(fetch, 10, body)
    assert answer == await client.ask(fetch, 10, fetch_body(("one", [wanted(0, 1)])))
    assert b"second" in answer


async def test_requests_of_few_partitions_are_answered_without_a_task(client: Client) -> None:
    tasks = asyncio.all_tasks()
    few = [records(number % 3, BATCH) for number in range(50)]
    assert type(client.send(produce, 3, produce_body(("t", few)))) is LateReply
    parts = [wanted(number % 3) for number in range(50)]
    assert isinstance(client.send(fetch, 10, fetch_body(("t", parts))), list)
    assert asyncio.all_tasks() == tasks
    await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_the_texts_of_a_long_answer_take_no_more_than_their_share(client: Client) -> None:
    read = entity_reader(schema.response_types("produce", 8).ProduceResponse)
    answer = await client.ask(produce, 8, produce_body(("t", EMPTY)))
    bare = await client.ask(produce, 8, produce_body(("nosuch", EMPTY)))
    (topic,) = read(answer, 0)[0].responses
    told = [one.error_message for one in topic.partition_responses]
    assert {one.error_code.name for one in topic.partition_responses} == {"invalid_record"}
    assert told[0] == "0 bytes are less than a batch header of 61"
    assert told[-1] is None
    assert told == sorted(told, key=lambda text: text is None)
    assert len(answer) - len(bare) <= TEXTS_BYTES_MAX
