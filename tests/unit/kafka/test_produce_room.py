"""Produces whose answers may be long: they wait for room, keep their order, and let others by."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.kafka.answer_bounds import explanation_bytes, produce_bound
from penstock.kafka.net.holdings import FREE_BYTES, notify
from penstock.kafka.net.lanes import Lane, Ticket
from penstock.kafka.replies import SMALL_ANSWER_BYTES
from penstock.kafka.wire.produce_codec import (
    ANSWER_BYTES,
    TEXTS_BYTES_MAX,
    PartitionAnswer,
    PartitionData,
    ProduceRequest,
    TopicData,
    encode_produce,
)
from penstock.model.steps import at_once
from penstock.records.batch import RecordError
from penstock.state.commands import CreateTopic
from support.loopback import PRODUCE, api_versions, reply, request, serving
from support.waiting import turns, until
from unit.kafka.test_held_bytes import LIMIT as SMALL_LIMIT
from unit.kafka.test_held_bytes import clients
from unit.kafka.test_long_requests import BATCH, produce_body, records
from unit.kafka.test_produce import Appended, by_name

LIMIT = 1 << 20
PARTITIONS = 20_000
NAMELESS = produce_body(("nosuch", [records(0, None)] * PARTITIONS))
"""A bound of 3 MB, and an answer of 440 KB."""
TIMES = 1_000
LONG = produce_body(("t", [records(0, BATCH)] * TIMES))
LONG_NAMES = produce_body(*[("n" * 300, [records(0, None)])] * 240)
"""Of fewer items than are read at once, and yet answered by 80 KB."""


@pytest.fixture
def limited(broker_with: Any) -> Any:
    """A broker of a limit that one bound goes above."""
    broker = broker_with(server_budget_bytes=LIMIT)
    broker.committer.apply(CreateTopic(name="t", topic_id=bytes(16), partitions=3))
    return broker


@asynccontextmanager
async def received(broker: Any, server: Any, clients: Any, *bodies: bytes) -> AsyncIterator[Ticket]:
    """Each client's requests are received and none is begun; then another owner is above the limit,
    and then they begin. Gives that one's ticket."""
    async with broker.long_produces:
        for _, writer in clients:
            for number, body in enumerate(bodies):
                writer.write(request(PRODUCE, 3, number, body))
        byte_count = len(clients) * (sum(map(len, bodies)) - FREE_BYTES)
        await until(lambda: server.data.used_bytes >= byte_count)
        above = server.data.reserve(Lane.ANSWER, 2 * LIMIT, object(), now_s=0.0)
    yield above
    await until(lambda: server.data.used_bytes == 0)


@pytest.mark.slow
@pytest.mark.parametrize("body", [NAMELESS, LONG_NAMES])
async def test_long_answers_wait_for_room_before_their_work_begins(
    limited: Any, body: bytes
) -> None:
    async with serving(limited) as (server, connect):
        clients = [await connect() for _ in range(4)]
        async with received(limited, server, clients, body) as above:
            await until(lambda: server.data.waiting_count(Lane.ANSWER) == 4)
            other = await connect()
            other[1].write(api_versions(1))
            await reply(other[0])
            notify(server.data.release(above))
            for reader, _ in clients:
                assert len((await reply(reader))[1]) > SMALL_ANSWER_BYTES


async def test_produces_behind_one_that_waits_for_room_keep_their_order(limited: Any) -> None:
    appended = Appended(limited)
    counts = [TIMES, TIMES, 1, TIMES]
    async with serving(limited) as (server, connect):
        client = await connect()
        bodies = [LONG, LONG, by_name("t", BATCH), LONG]
        async with received(limited, server, [client], *bodies) as above:
            await until(lambda: server.data.waiting_count(Lane.ANSWER) == 1)
            await turns(50)
            # The others wait behind it: one connection has one ticket that waits.
            assert server.data.waiting_count(Lane.ANSWER) == 1
            assert not appended.batches
            notify(server.data.release(above))
            before = 0
            for number, count in enumerate(counts):
                correlation_id, answer = await reply(client[0])
                assert correlation_id == number
                assert struct.unpack_from(">q", answer, 17) == (before + 1,)
                before += count


@pytest.mark.slow
async def test_one_that_leaves_while_it_waits_makes_way(limited: Any) -> None:
    Appended(limited)
    async with serving(limited) as (server, connect):
        gone, stays = await connect(), await connect()
        async with received(limited, server, [gone, stays], LONG, LONG) as above:
            await until(lambda: server.data.waiting_count(Lane.ANSWER) == 2)
            gone[1].close()
            await until(lambda: server.data.waiting_count(Lane.ANSWER) == 1)
            notify(server.data.release(above))
            for _ in range(2):
                await reply(stays[0])


async def test_one_without_an_answer_waits_for_no_room(limited: Any) -> None:
    appended = Appended(limited)
    unanswered = produce_body(("t", [records(0, BATCH)] * TIMES), acks=0)
    async with (
        serving(limited) as (server, connect),
        received(limited, server, [await connect()], unanswered) as above,
    ):
        await until(lambda: len(appended.batches) == TIMES)
        notify(server.data.release(above))


async def test_one_without_an_answer_goes_on_when_its_peer_and_those_before_it_are_gone(
    limited: Any,
) -> None:
    appended = Appended(limited)
    unanswered = produce_body(("t", [records(0, BATCH)] * TIMES), acks=0)
    async with serving(limited) as (server, connect):
        client = await connect()
        async with received(limited, server, [client], LONG, LONG, unanswered) as above:
            await until(lambda: server.data.waiting_count(Lane.ANSWER) == 1)
            client[1].close()
            await until(lambda: len(appended.batches) == TIMES)
            notify(server.data.release(above))


def test_an_answer_that_is_not_read_keeps_the_place_above_the_limit() -> None:
    server, (one, other) = clients(2)
    held = one.held
    assert held.reserve_produced(2 * SMALL_LIMIT)
    assert held.reserve_produced(SMALL_LIMIT), "the owner above the limit waits for nothing"
    assert not other.held.reserve_answer(1, of_groups=False)
    for _ in range(2):
        held.produced_made(SMALL_LIMIT)
    held.set_unsent(2 * SMALL_LIMIT)
    held.answer_left()
    assert server.data.used_bytes == 2 * SMALL_LIMIT
    held.set_unsent(1)
    held.answer_left()
    assert other.granted, "less than the limit is used"
    held.set_unsent(0)
    held.answer_left()
    assert not held.is_sending
    assert server.data.used_bytes == 1
    assert held.reserve_produced(7)
    held.leave()
    assert server.data.used_bytes == 1


texts = st.text(max_size=60)
explained = st.tuples(
    st.none() | texts, st.lists(st.builds(RecordError, st.integers(0, 1 << 30), texts), max_size=9)
)


@given(
    st.integers(3, 13),
    st.lists(st.tuples(texts, st.lists(explained, max_size=6)), max_size=6),
)
@pytest.mark.slow
def test_no_answer_is_longer_than_its_bound(version: int, asked: list[Any]) -> None:
    topics = []
    texts_bytes = 0
    for name, parts in asked:
        answers = []
        for message, errors in parts:
            texts_bytes += explanation_bytes(message or "", errors)
            answers.append(
                PartitionAnswer(
                    1 << 30, 87, 1 << 60, 1 << 60, message=message, record_errors=tuple(errors)
                )
            )
        data = [PartitionData(0, None) for _ in answers]
        topics.append((TopicData(name, bytes(16), data), answers))
    request_ = ProduceRequest(None, -1, 0, [topic for topic, _ in topics])
    bound = at_once(produce_bound(request_, ANSWER_BYTES)) - TEXTS_BYTES_MAX
    assert len(encode_produce(topics, version)) <= bound + texts_bytes
