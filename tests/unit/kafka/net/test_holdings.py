"""What goes on while the lanes are full, over real loopback sockets: small requests, group calls,
one large request or answer at a time."""

import asyncio
import os
import socket
import struct
from typing import Any

import pytest

from penstock.kafka.net.holdings import FREE_BYTES, notify
from penstock.kafka.net.lanes import Lane
from penstock.kafka.replies import SMALL_ANSWER_BYTES
from penstock.state.commands import CreateTopic
from support.loopback import (
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

LIMIT = 1 << 20
JOIN_GROUP, LIST_GROUPS, DESCRIBE_CONFIGS = 11, 16, 32


def sized(context: Any, body: memoryview) -> list[bytes]:
    return [b"%d" % len(body)]


async def exchange(client: Any, sent: bytes) -> bytes:
    reader, writer = client
    writer.write(sent)
    return (await reply(reader))[1]


async def test_a_small_request_is_answered_however_full_the_lanes_are(
    broker_with: Any, raw: Any
) -> None:
    raw(PRODUCE, sized)
    async with serving(broker_with(server_budget_bytes=LIMIT)) as (server, connect):
        server.data.take(2 * LIMIT)
        server.groups.take(server.groups.limit_bytes)
        client = await connect()
        for number in range(3):
            assert await exchange(client, request(PRODUCE, 3, number, bytes(3000))) == b"3000"
            await exchange(client, api_versions(number))
        assert server.data.used_bytes == 2 * LIMIT
        notify(server.data.take(-2 * LIMIT))
        notify(server.groups.take(-server.groups.limit_bytes))


async def test_a_group_call_comes_through_where_others_wait(broker_with: Any, raw: Any) -> None:
    raw(PRODUCE, sized)
    raw(JOIN_GROUP, sized)
    async with serving(broker_with(server_budget_bytes=LIMIT)) as (server, connect):
        above = server.data.reserve(Lane.ANSWER, 2 * LIMIT, object(), now_s=0.0)
        producer, member = await connect(), await connect()
        waiting = asyncio.ensure_future(exchange(producer, request(PRODUCE, 3, 1, bytes(200_000))))
        await until(lambda: server.data.waiting_count(Lane.REQUEST) == 1)
        assert await exchange(member, request(JOIN_GROUP, 0, 1, bytes(200_000))) == b"200000"
        assert server.data.used_bytes == 2 * LIMIT
        assert received_bytes(server) == FREE_BYTES
        notify(server.data.release(above))
        assert await waiting == b"200000"


async def test_what_the_log_has_of_a_peer_that_is_gone_counts_until_it_is_answered(
    broker_with: Any, raw: Any
) -> None:
    produce = Held()
    raw(PRODUCE, produce)
    broker = broker_with(server_budget_bytes=LIMIT)
    long = request(PRODUCE, 3, 1, bytes(LIMIT))
    async with serving(broker) as (server, connect):
        _, gone = await connect()
        gone.write(long)
        await until(lambda: len(produce.futures) == 1)
        gone.close()
        await until(lambda: server.connection_count == 0)
        assert server.data.used_bytes == len(long) - 4
        # One goes on above the limit, and keeps the place until it is answered.
        second = asyncio.ensure_future(exchange(await connect(), long))
        await until(lambda: len(produce.futures) == 2)
        third = asyncio.ensure_future(exchange(await connect(), long))
        await until(lambda: server.data.waiting_count(Lane.REQUEST) == 1)
        await turns(50)
        assert len(produce.futures) == 2
        produce.futures[1].set_result([b"second"])
        assert await second == b"second"
        await until(lambda: len(produce.futures) == 3)
        produce.futures[2].set_result([b"third"])
        assert await third == b"third"
        assert server.data.used_bytes == len(long) - 4
        produce.futures[0].set_result([b"no client reads this"])


async def test_a_reset_is_noticed_at_once_where_nothing_is_read(broker_with: Any, raw: Any) -> None:
    """Also with more of it in the socket; what came before an end in order is read first."""
    fetch, produce = Held(), Held()
    raw(FETCH, fetch)
    raw(PRODUCE, produce)
    broker = broker_with(server_budget_bytes=LIMIT)
    long = request(FETCH, 4, 1, bytes(2 * LIMIT))
    async with serving(broker) as (server, connect):
        for data in (b"", long):
            _, gone = await connect()
            gone.write(long)
            await until(lambda: len(fetch.futures) > 0)
            assert server.data.is_full
            gone.write(data)
            await turns()
            peer = gone.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.transport.abort()
            await until(lambda: server.connection_count == 0)
            assert fetch.futures.pop().cancelled()
            assert server.data.used_bytes == 0
        reader, closing = await connect()
        closing.write(request(PRODUCE, 3, 1, bytes(2 * LIMIT)) + request(PRODUCE, 3, 2, b"2"))
        await until(lambda: len(produce.futures) == 1)
        closing.write_eof()
        await turns(50)
        produce.futures[0].set_result([b"stored"])
        await until(lambda: len(produce.futures) == 2)
        await reader.read()
        produce.futures[1].set_result([b"stored"])
        await turns()


async def test_many_that_wait_to_receive_take_no_more_than_one_of_them(
    broker_with: Any, raw: Any
) -> None:
    """A little room is granted to all that wait, and each asks once more before it reads: the one
    that fills it is the last. One goes on above the limit."""
    produce = Held()
    raw(PRODUCE, produce)
    broker = broker_with(server_budget_bytes=LIMIT)
    count, byte_count = 30, 200_000
    async with serving(broker) as (server, connect):
        above = server.data.reserve(Lane.ANSWER, 2 * LIMIT, object(), now_s=0.0)
        answers = [
            asyncio.ensure_future(
                exchange(await connect(), request(PRODUCE, 3, 1, bytes(byte_count)))
            )
            for _ in range(count)
        ]
        await until(lambda: server.data.waiting_count(Lane.REQUEST) == count)
        server.data.take(LIMIT - 1000)
        notify(server.data.release(above))
        await until(lambda: len(produce.futures) == 1)
        await turns(100)
        assert LIMIT <= server.data.used_bytes < LIMIT + 2 * byte_count
        notify(server.data.take(1000 - LIMIT))
        while len(answers) > sum(answer.done() for answer in answers):
            for future in produce.futures:
                if not future.done():
                    future.set_result([b""])
            await asyncio.sleep(0.001)


async def test_group_calls_above_their_reserve_come_one_by_one(broker_with: Any, raw: Any) -> None:
    raw(JOIN_GROUP, sized)
    broker = broker_with(group_budget_bytes=LIMIT)
    async with serving(broker) as (server, connect):
        half = await connect()
        half[1].write(request(JOIN_GROUP, 0, 1, bytes(2 * LIMIT))[: LIMIT + 9000])
        await until(lambda: server.groups.is_full)
        first, second = await connect(), await connect()
        answers = [
            asyncio.ensure_future(exchange(one, request(JOIN_GROUP, 0, 1, bytes(200_000))))
            for one in (first, second)
        ]
        await until(lambda: server.groups.waiting_count(Lane.REQUEST) == 2)
        # Others are not held up by members.
        assert not server.data.used_bytes
        half[1].close()
        assert await asyncio.gather(*answers) == [b"200000"] * 2


async def test_one_read_of_a_group_call_goes_no_further_than_others(
    broker_with: Any, raw: Any
) -> None:
    raw(JOIN_GROUP, sized)
    broker = broker_with(group_budget_bytes=LIMIT)
    frame = request(JOIN_GROUP, 0, 1, bytes(60_000))
    async with serving(broker) as (server, connect):
        above = server.groups.reserve(Lane.ANSWER, 2 * LIMIT, object(), now_s=0.0)
        begun, whole = await connect(), await connect()
        begun[1].write(frame[:20])
        await until(lambda: received_bytes(server) > 0)
        answers = [asyncio.ensure_future(reply(client[0])) for client in (begun, whole)]
        begun[1].write(frame[20:])
        whole[1].write(frame)
        await until(lambda: server.groups.waiting_count(Lane.REQUEST) == 2)
        assert received_bytes(server) <= 2 * FREE_BYTES
        assert server.groups.used_bytes == 2 * LIMIT
        notify(server.groups.release(above))
        assert [body for _, body in await asyncio.gather(*answers)] == [b"60000"] * 2


@pytest.mark.parametrize("cut", range(1, 6))
async def test_a_group_call_whose_size_comes_in_parts_is_known_for_one(
    broker_with: Any, raw: Any, cut: int
) -> None:
    raw(JOIN_GROUP, sized)
    frame = request(JOIN_GROUP, 0, 1, bytes(200_000))
    async with serving(broker_with(server_budget_bytes=LIMIT)) as (server, connect):
        above = server.data.reserve(Lane.ANSWER, 2 * LIMIT, object(), now_s=0.0)
        reader, writer = await connect()
        writer.write(frame[:cut])
        framers = [connection._framer for connection in server._host.connections]
        await until(lambda: bool(framers[0].missing_bytes))
        writer.write(frame[cut:])
        assert (await reply(reader))[1] == b"200000"
        notify(server.data.release(above))


async def test_fetches_whose_own_frames_fill_the_lanes_are_answered(
    broker_with: Any, raw: Any
) -> None:
    raw(FETCH, sized)
    broker = broker_with(server_budget_bytes=LIMIT)
    async with serving(broker) as (_, connect):
        clients = [await connect() for _ in range(3)]
        for _, writer in clients:
            writer.write(request(FETCH, 4, 1, bytes(60_000)) * 40)
            writer.write(request(FETCH, 4, 1, bytes(2 * LIMIT)))
        for reader, _ in clients:
            for _ in range(40):
                assert (await reply(reader))[1] == b"60000"
            assert (await reply(reader))[1] == b"2097152"


async def test_small_fetches_wait_for_room_and_then_begin(broker_with: Any, raw: Any) -> None:
    fetch = Held()
    raw(FETCH, fetch)
    broker = broker_with(server_budget_bytes=LIMIT)
    async with serving(broker) as (server, connect):
        server.data.take(LIMIT)
        clients = [await connect() for _ in range(5)]
        for _, writer in clients:
            writer.write(request(FETCH, 4, 1, bytes(1000)))
        await until(lambda: server.data.waiting_count(Lane.FETCH) == 5)
        assert not fetch.futures
        notify(server.data.take(-LIMIT))
        await until(lambda: len(fetch.futures) == 5)
        for future in fetch.futures:
            future.set_result([b"records"])
        for reader, _ in clients:
            assert (await reply(reader))[1] == b"records"


class Large:
    """A raw handler whose answers are large, and unread by most."""

    def __init__(self, byte_count: int) -> None:
        self.byte_count = byte_count
        self.begun = 0

    def __call__(self, context: Any, body: memoryview) -> Any:
        return asyncio.get_running_loop().create_task(self._answer(context))

    async def _answer(self, context: Any) -> list[bytes]:
        waiting = context.connection.reserve_answer(2 * self.byte_count)
        if waiting is not None:
            await waiting
        self.begun += 1
        return [bytes(self.byte_count)]


async def test_large_answers_that_nobody_reads_are_made_one_by_one(
    broker_with: Any, raw: Any
) -> None:
    large = Large(2 * LIMIT)
    raw(LIST_GROUPS, large)
    broker = broker_with(server_budget_bytes=LIMIT)
    async with serving(broker) as (server, connect):
        clients = [await connect() for _ in range(4)]
        for _, writer in clients:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request(LIST_GROUPS, 0, 1, b""))
        await until(lambda: server.data.waiting_count(Lane.ANSWER) == 3)
        await turns(50)
        assert large.begun == 1
        # What was reserved beyond the answer is given back, and what left the socket.
        assert server.data.used_bytes < 2 * LIMIT
        await exchange(await connect(), api_versions(1))
        for reader, writer in clients:
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len((await reply(reader))[1]) == 2 * LIMIT
        assert large.begun == 4


async def test_one_that_leaves_while_its_answer_waits_makes_way(broker_with: Any, raw: Any) -> None:
    large = Large(2 * LIMIT)
    raw(LIST_GROUPS, large)
    broker = broker_with(server_budget_bytes=LIMIT)
    async with serving(broker) as (server, connect):
        clients = [await connect() for _ in range(3)]
        for number, (_, writer) in enumerate(clients, 1):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request(LIST_GROUPS, 0, 1, b""))
            await until(
                lambda n=number: server.data.waiting_count(Lane.ANSWER) == n - 1  # type: ignore[misc]
            )
        clients[1][1].close()
        await until(lambda: server.data.waiting_count(Lane.ANSWER) == 1)
        clients[0][1].close()
        clients[2][1].transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await reply(clients[2][0]))[1]) == 2 * LIMIT
        assert large.begun == 2


METADATA_OF_LARGE = b"\0\0\0\1\0\5large"
CONFIGS_OF_MANY = struct.pack(">i", 50) + b"".join(
    b"\2" + struct.pack(">h", 7) + b"topic%02d" % number + b"\xff\xff\xff\xff"
    for number in range(50)
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "body"),
    [(METADATA, METADATA_OF_LARGE), (DESCRIBE_CONFIGS, CONFIGS_OF_MANY + b"\1")],
    ids=["metadata", "configs"],
)
async def test_a_long_answer_waits_with_its_frame_alone_and_is_then_given(
    broker_with: Any, key: int, body: bytes
) -> None:
    broker = broker_with(server_budget_bytes=LIMIT, partitions_max=20_000)
    for number in range(50):
        name = f"topic{number:02}"
        broker.committer.apply(
            CreateTopic(name=name, topic_id=os.urandom(16), partitions=1, configs={})
        )
    broker.committer.apply(
        CreateTopic(name="large", topic_id=os.urandom(16), partitions=20_000, configs={})
    )
    async with serving(broker) as (server, connect):
        client = await connect()
        whole = await exchange(client, request(key, 1, 1, body))
        assert len(whole) > SMALL_ANSWER_BYTES
        above = server.data.reserve(Lane.ANSWER, 2 * LIMIT, object(), now_s=0.0)
        waiting = asyncio.ensure_future(exchange(client, request(key, 1, 1, body)))
        await until(lambda: server.data.waiting_count(Lane.ANSWER) == 1)
        # One that asks for little is answered meanwhile.
        small = await exchange(await connect(), request(METADATA, 1, 1, b"\0\0\0\1\0\7topic00"))
        assert len(small) < 1000
        notify(server.data.release(above))
        assert await waiting == whole
