"""A request and, later, its reply: how its handler is called."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import ModuleType
from typing import Final

from penstock.kafka.answer_bounds import bound_of
from penstock.kafka.context import RequestContext
from penstock.kafka.long_answer import Answer, LongAnswer
from penstock.kafka.registry import Api
from penstock.kafka.replies import AnyReply, LateReply, Reply
from penstock.kafka.wire import schema
from penstock.kafka.wire.encode import Entity
from penstock.model.errors import RetryableError
from penstock.ports.clock import Clock

LONG_REQUEST_BYTES: Final = 1 << 20
"""Decoded, such a request may take 20 times as much: one at a time, until its answer is reserved.
Shorter ones, which members of groups send, wait for no others."""


class Exchange:
    """One request of a connection, from its frame until its reply is handed to the socket."""

    __slots__ = (
        "api",
        "body",
        "context",
        "error",
        "frame_bytes",
        "pending",
        "ready",
        "reply",
        "started_s",
        "work_s",
    )

    def __init__(
        self,
        api: Api,
        context: RequestContext,
        body: memoryview | None,
        frame_bytes: int,
        started_s: float,
    ) -> None:
        self.api = api
        self.context = context
        self.body = body
        """The bytes after the header. None: ApiVersions in a version that is not served
        (KIP-511)."""
        self.frame_bytes = frame_bytes
        self.started_s = started_s
        self.pending: asyncio.Future[Reply] | asyncio.Future[AnyReply] | None = None
        self.ready = False
        self.error: BaseException | None = None
        self.reply: AnyReply = None
        self.work_s = 0.0
        """Seconds of the event loop that its handler took; 0, where they are not measured."""

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        changed: Callable[[], None],
        measured_by: Clock | None = None,
    ) -> None:
        """Call the handler. Nothing is raised: what goes wrong is this exchange's `error`.

        Args:
            changed: called once the reply, or an error, is there, if that is later.
            measured_by: measures `work_s`; None: that is not asked for.
        """
        try:
            handler = self.api.load()
            if self.body is None:
                self.reply = handler.unsupported_version(self.context)
            elif self.api.raw:
                began_s = 0.0 if measured_by is None else measured_by.monotonic_s()
                result = handler.serve(self.context, self.body)
                if measured_by is not None:
                    self.work_s = measured_by.monotonic_s() - began_s
                if asyncio.isfuture(result):
                    self.pending = result
                    if type(result) is LateReply and not result.done():
                        result.taker = partial(self._take, changed)
                    else:
                        result.add_done_callback(partial(self._replied, changed))
                    return
                self.reply = result
            else:
                work = self._handle(handler, self.body)
                if measured_by is not None:
                    work = self._measured(work, measured_by)
                task = loop.create_task(work)
                self.pending = task
                task.add_done_callback(partial(self._replied, changed))
                return
        except Exception as error:  # noqa: BLE001 - a handler's bug must end this connection alone
            self.error = error
        self.ready = True

    def drop(self) -> None:
        """End it without a reply: the peer is gone. Lets go of the frame at once: a late reply and
        its taker are a reference cycle."""
        self.body = None
        pending, self.pending = self.pending, None
        if pending is not None:
            if type(pending) is LateReply:
                pending.taker = None
            pending.cancel()

    async def _handle(self, handler: ModuleType, body: memoryview) -> AnyReply:
        context, turns = self.context, self.context.broker.turns
        while True:
            if self.frame_bytes < LONG_REQUEST_BYTES:
                request, waiting = await self._decode(body)
            else:
                async with context.broker.long_requests:
                    request, waiting = await self._decode(body)
            if waiting is None:
                response: Answer = await handler.handle(context, request)
                if isinstance(response, LongAnswer):
                    return await response.reply(turns)
                if not isinstance(response, asyncio.Future):
                    if context.reserved_bytes:
                        long = LongAnswer(response, held_bytes=context.reserved_bytes)
                        return await long.reply(turns)
                    return [await schema.encode_in_turns(turns, response)]
                waiting = response
            # Many may wait: each holds its frame alone.
            del request
            await waiting

    @types.coroutine
    def _measured(
        self, work: Coroutine[object, object, AnyReply], clock: Clock
    ) -> Generator[object, object, AnyReply]:
        """Run the handler, and add up the time of its steps, without its waiting."""
        step: Callable[[], object] = partial(work.send, None)
        try:
            while True:
                began_s = clock.monotonic_s()
                try:
                    waited_for = step()
                except StopIteration as end:
                    done: AnyReply = end.value
                    return done
                finally:
                    self.work_s += clock.monotonic_s() - began_s
                try:
                    step = partial(work.send, (yield waited_for))
                except BaseException as error:  # noqa: BLE001 - the handler gets it, as without this
                    step = partial(work.throw, error)
        finally:
            work.close()

    async def _decode(self, body: memoryview) -> tuple[Entity, asyncio.Future[None] | None]:
        """The request, with its answer reserved; or what to wait for before it is decoded again."""
        context, name = self.context, self.api.module
        turns, version = context.broker.turns, context.api_version
        request = await schema.decode_in_turns(turns, name, version, body)
        return request, context.reserve_answer(bound_of(context, name, request, self.frame_bytes))

    def _take(self, changed: Callable[[], None], reply: Reply) -> None:
        self.pending = None
        self.reply = reply
        self.ready = True
        changed()

    def _replied(self, changed: Callable[[], None], future: "asyncio.Future[AnyReply]") -> None:
        self.pending = None
        if future.cancelled():
            self.error = RetryableError("serve", self.api.name, "it was cancelled")
        else:
            # Looked at also where the peer is gone, so that the loop does not report it.
            self.error = future.exception()
            if self.error is None:
                self.reply = future.result()
        self.ready = True
        changed()
