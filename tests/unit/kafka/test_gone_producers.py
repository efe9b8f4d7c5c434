"""Produces whose producer closes, and answers that come no sooner than what they are of."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.handlers import produce
from penstock.kafka.record_checks import RecordChecks
from penstock.state.answers import BatchStatus
from support.by_hand import ByHand
from support.loopback import PRODUCE, reply, request, serving
from support.waiting import turns, until
from unit.kafka.test_fetch_sharing import Sink
from unit.kafka.test_long_requests import BATCH, produce_body, records
from unit.kafka.test_produce import Appended, by_name, raw, uneven

VERSION = 7
MANY = 3_000
COMMIT_S = 0.02
UNKNOWN = 77
"""A partition that is not there."""


class SlowlyAppended(Appended):
    """A log whose commits take a while."""

    def append(self, appends: Any, *, done: Any, **_: Any) -> None:
        for append in appends:
            self.batches.append(bytes(append.batch.view))
            append.status = BatchStatus.STORED
            append.base_offset = len(self.batches)
        asyncio.get_running_loop().call_later(COMMIT_S, done, None)


class Heads:
    async def confirm_head(self) -> None:
        return


async def test_no_answer_comes_before_what_is_still_checked(
    broker: Any, add_topic: Callable[..., Any]
) -> None:
    """A partition that is not known here is asked for meanwhile, and that may end first."""
    add_topic("flights")
    appended, by_hand = Appended(broker), ByHand()
    broker.heads = Heads()
    broker.record_checks = RecordChecks(by_hand)
    long = raw(uneven(MANY), MANY)
    body = produce_body(("flights", [records(0, long), records(UNKNOWN, BATCH)]))
    async with serving(broker) as (_, connect):
        reader, writer = await connect()
        writer.write(request(PRODUCE, VERSION, 1, body))
        await until(lambda: by_hand.jobs)
        answer = asyncio.ensure_future(reply(reader))
        await turns(50)
        assert not answer.done()
        while by_hand.jobs:
            by_hand.run()
            await turns()
        _, answered = await answer
        assert len(appended.batches) == 1
        # Past the topics' count, its name, the partitions' count: number, error, offset.
        assert struct.unpack_from(">ihq", answered, 4 + 9 + 4) == (0, 0, 1)


@pytest.mark.slow
async def test_long_produces_of_a_producer_that_is_gone_hold_up_no_others(
    broker: Any, add_topic: Callable[..., Any]
) -> None:
    """One that goes on without an answer keeps its place: another, begun later, has the turn of
    the long ones only after it."""
    add_topic("flights")
    appended = Appended(broker)

    def send(state: ConnectionState, acks: int) -> Any:
        body = produce_body(("flights", [records(0, BATCH)] * 1000), acks=acks)
        context = RequestContext(0, VERSION, 1, "c", "h", broker, state)
        return produce.serve(context, memoryview(bytearray(body)))

    gone = ConnectionState(1, Sink(1 << 20, files=False))
    sent = [send(gone, -1), send(gone, 0)]
    await turns(2)
    sent.append(send(gone, 0))
    gone.leave()  # the first is forgotten
    other = send(ConnectionState(2, Sink(1 << 20, files=False)), -1)
    async with asyncio.timeout(30):
        await other
    await until(lambda: all(reply.done() for reply in sent))
    assert len(appended.batches) == 3_000


@pytest.mark.slow
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_wants_no_answer_is_appended_though_its_producer_closes(
    broker: Any, add_topic: Callable[..., Any], new_loop: Any
) -> None:
    add_topic("flights")
    appended = SlowlyAppended(broker)
    unanswered = by_name("flights", BATCH, acks=0)

    async def run() -> None:
        async with serving(broker) as (server, connect):
            _, writer = await connect()
            numbers = range(MANY)
            writer.write(b"".join(request(PRODUCE, VERSION, n, unanswered) for n in numbers))
            await writer.drain()
            writer.close()
            await until(lambda: server.connection_count == 0)
            await until(lambda: len(appended.batches) == MANY)
            await until(lambda: server.data.used_bytes == 0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
