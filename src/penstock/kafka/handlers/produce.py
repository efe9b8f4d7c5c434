"""Produce, versions 3 to 13 (KIP-896 floor; 13 by topic id, KIP-516).

Raw: the records stay where the socket put them. Batches are checked here, at the border, then
handed to the log; the answer is made when the commit's answer is known. Requests of one
connection may overlap here; the connection answers them in order. One that names more than
STEP_ITEMS topics and partitions is read, checked, appended and answered in turns of the loop.

Order: a request takes its place in its connection's queue when it arrives, and is handed to the
log once its batches are checked and nothing of that connection is ahead. So a batch whose records
are checked in a thread is not overtaken by a later one of its producer.

An agent that is being drained refuses with NOT_LEADER_OR_FOLLOWER once others lead all partitions:
producers ask for metadata then, where they would otherwise stay for minutes.
"""

import asyncio
from typing import Final

from penstock.kafka.answer_bounds import produce_bound
from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.produce.long_produce import LongProduce
from penstock.kafka.produce.work import ProduceWork
from penstock.kafka.replies import SMALL_ANSWER_BYTES, LateReply, ReplyFuture
from penstock.kafka.wire.produce_codec import (
    ANSWER_BYTES,
    ProduceRequest,
    acks_of,
    encode_produce,
    produce_steps,
)
from penstock.kafka.wire.produce_repeat import KnownProduce, known_produce
from penstock.model.steps import at_once, if_short

RAW: Final = True


def serve(context: RequestContext, body: memoryview) -> ReplyFuture:
    """Check the request's batches and hand them to the log; the future is the answer."""
    broker = context.broker
    started_s = broker.clock.monotonic_s()
    request = _parse(context.connection, body, context.api_version)
    broker.instruments.observe("parse:Produce", broker.clock.monotonic_s() - started_s)
    if request is None:
        return LongProduce(context, acks_of(body, context.api_version)).begin(body)
    operation = _Produce(context)
    operation.start(request)
    return operation.reply


class _Produce(ProduceWork):
    """One of few partitions, which its connection's callbacks carry on."""

    __slots__ = ("_items", "reply")

    def start(self, request: ProduceRequest) -> None:
        """Check the batches, and hand them to the log as soon as it is this request's turn."""
        self.reply = LateReply(loop=asyncio.get_running_loop())
        self._acks, self._timeout_ms = request.acks, request.timeout_ms
        self._transactional_id = request.transactional_id
        items = 0
        for topic in request.topics:
            items += 1 + len(topic.partitions)
            self._topics.append((topic, self._check_topic(topic, topic.partitions)))
        self._items = items
        self._context.connection.items += items
        self._doubt()
        produces = self._context.connection.produces
        if self._checking or produces:
            produces.append(self)
        else:
            self._append_all()

    def append_if_checked(self) -> bool:
        """Whether all batches are checked; if so, they are handed to the log."""
        if not self._checking:
            self._append_all()
        return not self._checking

    def forget(self) -> bool:
        """See `Unhanded`. One with acks=0 goes on: a producer may close once it has sent it."""
        if self._acks == 0:
            return False
        self._let_go()
        self.reply.give(None)
        return True

    def _append_all(self) -> None:
        self._append()
        self._one_is_over()

    def _finish(self) -> None:
        self._context.connection.items -= self._items
        if self.reply.done():  # the connection is gone; what was stored stays stored
            return
        if self._acks != 0:
            self.reply.give([encode_produce(self._topics, self._version)])
            return
        self._end_if_failed()
        self.reply.give(None)


def _parse(connection: ConnectionState, body: memoryview, version: int) -> ProduceRequest | None:
    """The request; where it begins as the connection's last one, only what differs is parsed. None:
    it is a long one, or may have a long answer."""
    known = connection.last_produce
    request = known.parse(body, version) if isinstance(known, KnownProduce) else None
    if request is None:
        # Of a long one what was read is let go: many may wait, and it takes thirteen times the
        # bytes.
        request = if_short(produce_steps(body, version))
        if request is None or at_once(produce_bound(request, ANSWER_BYTES)) > SMALL_ANSWER_BYTES:
            return None
        connection.last_produce = known_produce(body, version, request)
    return request
