"""Answers above 64 KiB, of each API that may have such: they leave in pieces, and are encoded while
they are looked up where entities would take more memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.kafka.net.exchange import LONG_REQUEST_BYTES, Exchange
from penstock.kafka.registry import APIS, BY_MODULE
from penstock.kafka.replies import PIECE_BYTES, SMALL_ANSWER_BYTES, PiecedReply
from penstock.kafka.wire import schema
from penstock.system.turns import Turns
from support.replies import body_of
from support.slow import slow_unless
from unit.kafka.conftest import StandInLog
from unit.kafka.handlers import test_answer_bounds
from unit.kafka.handlers.test_answer_bounds import asked, context_of, fill
from unit.kafka.handlers.test_turns_of_requests import is_everyday

SHORT = ("api_versions", "describe_cluster", "heartbeat", "init_producer_id", "sync_group")
"""No array in the request or in what there is makes these long."""
CASES = [
    (api.module, api.versions_max)
    for api in APIS.values()
    if api.module not in ("produce", "fetch", *SHORT)
]


async def exchanged(broker: Any, api: str, version: int, body: memoryview) -> Any:
    """The reply to one request, as a connection gets it."""
    context = context_of(broker, api, version)
    exchange = Exchange(BY_MODULE[api], context, body, len(body), 0.0)
    there = asyncio.Event()
    exchange.start(asyncio.get_running_loop(), there.set)
    if not exchange.ready:
        await there.wait()
    return None if exchange.error else exchange.reply


@pytest.mark.parametrize(("api", "version"), slow_unless(is_everyday, CASES))
async def test_a_long_answer_leaves_in_pieces(
    face: Any, monkeypatch: pytest.MonkeyPatch, api: str, version: int
) -> None:
    monkeypatch.setattr(test_answer_bounds, "TOPICS", 120)
    monkeypatch.setattr("penstock.kafka.handlers.join_group.PROTOCOLS_MAX", 1 << 20)
    broker = face.broker
    broker.log = StandInLog()
    broker.turns = Turns(items_max=1 << 30, rows_max=1 << 30)
    await fill(face)
    for request in asked(api, version):
        body = memoryview(schema.encode_request(request))
        reply = await exchanged(broker, api, version, body)
        if isinstance(reply, PiecedReply):
            pieces = [bytes(piece) for piece, _ in reply.pieces]
            assert sum(map(len, pieces)) == reply.byte_count > SMALL_ANSWER_BYTES
            assert max(map(len, pieces)) < 3 * PIECE_BYTES
        elif reply is not None:
            assert len(body_of(reply)) <= SMALL_ANSWER_BYTES


@pytest.mark.parametrize(("shorter", "at_once"), [(0, 1), (1, 3)])
async def test_one_long_request_at_a_time_is_decoded(
    face: Any, monkeypatch: pytest.MonkeyPatch, shorter: int, at_once: int
) -> None:
    decode = schema.decode_in_turns
    counts = [0]

    async def counted(*arguments: Any) -> Any:
        counts.append(counts[-1] + 1)
        request = await decode(*arguments)
        counts.append(counts[-1] - 1)
        return request

    monkeypatch.setattr(schema, "decode_in_turns", counted)
    version = BY_MODULE["list_offsets"].versions_max
    body = memoryview(schema.encode_request(asked("list_offsets", version)[0]))
    broker = face.broker
    broker.log = StandInLog()
    broker.turns = Turns(items_max=100)
    exchanges = []
    for _ in range(3):
        context = context_of(broker, "list_offsets", version)
        frame_bytes = LONG_REQUEST_BYTES - shorter
        exchanges.append(Exchange(BY_MODULE["list_offsets"], context, body, frame_bytes, 0.0))
    ended = asyncio.Event()
    for exchange in exchanges:
        exchange.start(asyncio.get_running_loop(), ended.set)
    while not all(exchange.ready for exchange in exchanges):
        await ended.wait()
        ended.clear()
    assert not any(exchange.error for exchange in exchanges)
    assert max(counts) == at_once
