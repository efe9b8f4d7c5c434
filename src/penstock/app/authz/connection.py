"""One accepted connection of the authorization service. Answers go out in the order of requests.

Most calls are answered in the callback that read them. While one isn't, nothing more of its
connection is read, so that a client which sends without reading costs one request.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable
from typing import Final, cast

from penstock.app.authz.http1 import (
    CONTINUE,
    LAST_CHUNK,
    BadRequestError,
    Request,
    RequestReader,
    chunk,
    response,
    streamed_response,
)
from penstock.app.http.gate import HttpGate, HttpState, Phase
from penstock.authz.service.call import Answer, Call, failure
from penstock.authz.service.handling import Answering
from penstock.model.errors import OverloadedError
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

REQUEST_ID: Final = "X-Request-ID"
_ECHOED: Final = re.compile(r"[!-~]{1,200}", re.ASCII)
_COUNTED_BYTES: Final = 64 << 10
"""A connection's bytes are counted against the room for all bodies from here on."""
_UNSENT_BYTES_MAX: Final = 1 << 20
_DROPPED_BYTES_MAX: Final = 32 << 20
"""A client that was answered with an error may send so much more."""


class ApiConnection(asyncio.Protocol):
    """Implements `asyncio.Protocol` and `Gated`.

    Args:
        serve: answers at once, or later; raises nothing.
        answered: is called with each call and the seconds that its answer took.
    """

    def __init__(
        self,
        gate: HttpGate,
        serve: Callable[[Call], Answering],
        answered: Callable[[Call, int, float], None],
    ) -> None:
        self._gate = gate
        self._serve = serve
        self._answered = answered
        self._reader = RequestReader()
        self._task: asyncio.Task[Answer] | None = None
        self._phase = Phase.HEAD
        self._since_s = 0.0
        self._body_bytes = 0
        self._held_bytes = 0
        self._is_full = False
        self._is_ending = False
        self._is_streaming = False
        self._room: asyncio.Future[None] | None = None
        """A stream waits for it while the client doesn't read."""
        self.client_host = "?"
        self.peer_name = "?"

    # -- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        if peer:
            self.client_host, self.peer_name = peer[0], f"{peer[0]}:{peer[1]}"
        self._enter(Phase.HEAD)
        self._gate.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio."""
        self._gate.leave(self)
        self._hold(0)
        self._is_ending = True
        # What was asked goes on: a write that is under way can't be taken back. A stream ends.
        if self._is_streaming and self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._is_ending or self._is_streaming:
            self._drop(len(data))
            return
        self._reader.feed(data)
        if self._phase is Phase.BODY:
            self._body_bytes += len(data)
        if self._reader.buffered_bytes > _COUNTED_BYTES or self._held_bytes:
            try:
                self._hold(self._reader.buffered_bytes)
            except OverloadedError:
                self._refuse(503, "too many large bodies are being received; try again")
                return
        if self._task is None and not self._is_full:
            self._serve_all()

    def eof_received(self) -> bool:
        """See asyncio. A client that has closed its side still gets its answer."""
        if self._task is None:
            return False
        self._is_ending = True
        if self._is_streaming:
            self._task.cancel()
        return True

    def pause_writing(self) -> None:
        """See asyncio."""
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._is_full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if self._is_streaming:
            self._transport.resume_reading()
        elif self._task is None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._serve_all()

    # -- the gate's side (`Gated`) ---------------------------------------------------------------

    def state(self, now_s: float) -> HttpState:  # noqa: ARG002
        """See `Gated`."""
        unsent = self._transport.get_write_buffer_size()
        return HttpState(self._phase, self._since_s, self._body_bytes, unsent)

    def cut(self) -> None:
        """See `Gated`."""
        self._transport.abort()

    def drain(self) -> None:
        """Close once what is under way is answered."""
        self._is_ending = True
        if self._task is None:
            self._transport.close()
        elif self._is_streaming:
            self._task.cancel()

    # -- requests --------------------------------------------------------------------------------

    def _serve_all(self) -> None:
        """Answer what has come whole."""
        while not self._is_full and not self._transport.is_closing():
            try:
                request = self._reader.next()
            except BadRequestError as error:
                self._gate.note_malformed(self)
                self._refuse(error.status, error.message)
                return
            if request is None:
                self._wait()
                return
            self._hold(0)
            if not self._begin(request):
                return

    def _begin(self, request: Request) -> bool:
        """Answer a request; return whether it is answered already."""
        call = Call(request.method, request.path, request.query, request.headers, request.body)
        now_s = self._gate.clock.monotonic_s()
        self._enter(Phase.ANSWER, now_s)
        found = self._serve(call)
        if isinstance(found, Answer) and found.stream is None:
            self._finish(call, request, found, now_s)
            return not self._is_ending
        if not self._gate.take_slot(call.path):
            found.close() if asyncio.iscoroutine(found) else None
            self._finish(call, request, _too_many(), now_s)
            return not self._is_ending
        self._transport.pause_reading()
        task = asyncio.get_running_loop().create_task(
            self._later(call, found), name=f"answer {call.path}"
        )
        self._task = task

        def done(_: object) -> None:
            self._gate.give_slot()
            self._task = None
            if self._is_streaming:
                self._end_stream(task)
                return
            if task.cancelled() or self._transport.is_closing():
                return
            self._finish(call, request, task.result(), now_s)
            if not self._is_ending and not self._is_full:
                self._transport.resume_reading()
                self._serve_all()

        task.add_done_callback(done)
        return False

    async def _later(self, call: Call, found: Answering) -> Answer:
        """Wait for an answer; send it here if it is a stream, which ends the connection."""
        answer = found if isinstance(found, Answer) else await found
        if answer.stream is None or self._transport.is_closing():
            return answer
        self._is_streaming = True
        self._transport.resume_reading()  # to see the client's end
        self._transport.write(
            streamed_response(answer.status, answer.content_type, self._headers(call, answer))
        )
        self._answered(call, answer.status, 0.0)
        async with contextlib.aclosing(answer.stream) as stream:
            async for part in stream:
                self._transport.write(chunk(part))
                if self._is_full:
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
        return answer

    def _end_stream(self, task: "asyncio.Task[Answer]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            heard(Cause.AUTHZ_CALL, error, logger, f"a stream to {self.peer_name} is cut off")
        elif not self._transport.is_closing():
            self._transport.write(LAST_CHUNK)
        self._transport.close()

    def _headers(self, call: Call, answer: Answer) -> tuple[tuple[str, str], ...]:
        request_id = call.headers.get("x-request-id")
        if request_id is None or not _ECHOED.fullmatch(request_id):
            return answer.headers
        return (*answer.headers, (REQUEST_ID, request_id))

    def _finish(self, call: Call, request: Request, answer: Answer, since_s: float) -> None:
        keeps_alive = request.keeps_alive and not self._is_ending
        self._transport.write(
            response(
                answer.status,
                answer.body,
                content_type=answer.content_type,
                headers=self._headers(call, answer),
                keeps_alive=keeps_alive,
                without_body=call.method == "HEAD",
            )
        )
        now_s = self._gate.clock.monotonic_s()
        self._answered(call, answer.status, now_s - since_s)
        self._enter(Phase.IDLE, now_s)
        if not keeps_alive:
            self._is_ending = True
            self._transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Answer what isn't a request that is served, and close."""
        self._is_ending = True
        answer = failure(status, message)
        self._transport.write(
            response(status, answer.body, content_type=answer.content_type, keeps_alive=False)
        )
        # A client that is still sending reads the answer after it has sent: were the connection
        # closed at once, the kernel would reset it, and the answer would be lost.
        self._transport.write_eof()
        self._enter(Phase.BODY)

    def _drop(self, byte_count: int) -> None:
        """Count what comes after the last answer; the gate bounds its time."""
        self._body_bytes += byte_count
        if self._body_bytes > _DROPPED_BYTES_MAX:
            self._transport.abort()

    def _wait(self) -> None:
        """More of a request has to come."""
        if self._reader.wants_continue:
            self._transport.write(CONTINUE)
        if self._reader.is_in_body:
            if self._phase is not Phase.BODY:
                self._enter(Phase.BODY)
        elif not self._reader.is_empty and self._phase is not Phase.HEAD:
            self._enter(Phase.HEAD)

    def _hold(self, byte_count: int) -> None:
        """Count the bytes that wait here. Raises: OverloadedError."""
        if byte_count != self._held_bytes:
            self._gate.take_body(self.peer_name, byte_count - self._held_bytes)
            self._held_bytes = byte_count

    def _enter(self, phase: Phase, now_s: float | None = None) -> None:
        self._phase = phase
        self._since_s = self._gate.clock.monotonic_s() if now_s is None else now_s
        self._body_bytes = 0


def _too_many() -> Answer:
    text = "too many requests are being answered; try again"
    return failure(503, text, (("Retry-After", "1"),))
