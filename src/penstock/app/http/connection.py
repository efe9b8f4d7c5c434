"""An `HttpGate` guards uvicorn's HTTP/1.1 connections, and gives requests their slots.

uvicorn (0.34 to 0.54) has a time-out for idle connections alone, none for heads, for bodies, and
for peers that don't take their answer. And once its limit of connections is reached, it answers
every request with 503, those for health too.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.app.http.gate import HttpGate, HttpState, Phase
from penstock.model.errors import InvalidRequestError

_errors: Final = logging.getLogger(f"{__name__}.errors")
_errors.setLevel(logging.ERROR)

OPEN_PATHS: Final = ("/", "/metrics", "/healthz", "/readyz")
"""These paths are answered without the secret and without a slot. Load balancers and scrapers ask
for them, and their answers have numbers but no data."""
SMALL_BODY_BYTES_MAX: Final = 64 << 10
"""The largest body of calls that take a few words."""
_HOLD: Final = "penstock.hold_body"
"""This key of a request's scope has the function that counts the bytes of the request's body."""


class GatedConnection(H11Protocol):
    """One accepted connection."""

    def __init__(self, gate: HttpGate, **uvicorns: Any) -> None:
        """
        Args:
            uvicorns: the arguments that uvicorn gives its protocols.
        """
        super().__init__(**uvicorns)
        # uvicorn's logger warns of each request that isn't HTTP or asks for a WebSocket, so that
        # strangers could fill the log. The gate counts such requests instead.
        self.logger = _errors
        self._gate = gate
        self._phase = Phase.HEAD
        self._since_s = 0.0
        self._body_bytes = 0
        self._looked_s = 0.0
        self.client_host = "?"
        self.peer_name = "?"

    # -- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        if self.client is not None:
            self.client_host = self.client[0]
            self.peer_name = f"{self.client[0]}:{self.client[1]}"
        self._since_s = self._looked_s = self._gate.clock.monotonic_s()
        self._gate.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._gate.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self.transport.is_closing():
            return
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        elif self._phase is Phase.BODY:
            self._body_bytes += len(data)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """See uvicorn."""
        self._enter(Phase.IDLE)
        super().on_response_complete()
        self._follow()

    def send_400_response(self, msg: str) -> None:
        """See uvicorn."""
        self._gate.note_malformed(self)
        super().send_400_response(msg)

    # -- the gate's side (`Gated`) ---------------------------------------------------------------

    def state(self, now_s: float) -> HttpState:
        """See `Gated`."""
        self._follow()
        if self.flow.read_paused:
            # While this server doesn't read, the sender can't send, and its time doesn't run.
            self._since_s += now_s - self._looked_s
        self._looked_s = now_s
        unsent = self.transport.get_write_buffer_size()
        return HttpState(self._phase, self._since_s, self._body_bytes, unsent)

    def cut(self) -> None:
        """See `Gated`."""
        self.transport.abort()

    def _follow(self) -> None:
        """Find out what this connection waits for now."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            if self._phase not in {Phase.IDLE, Phase.HEAD}:
                self._enter(Phase.IDLE)
        else:
            phase = Phase.BODY if cycle.more_body else Phase.ANSWER
            if self._phase is not phase:
                self._enter(phase)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._since_s = self._looked_s = self._gate.clock.monotonic_s()
        self._body_bytes = 0


class RequestSlots:
    """ASGI middleware that takes a slot of the gate for each request, except for `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, gate: HttpGate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if not self._gate.take_slot(scope["path"]):
            await _too_many()(scope, receive, send)
            return
        held = 0

        def hold(byte_count: int) -> None:
            nonlocal held
            self._gate.take_body(scope["path"], byte_count)
            held += byte_count

        scope[_HOLD] = hold
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            # The peer left, or was cut off, before its body was whole: it doesn't wait for an
            # answer.
            pass
        finally:
            self._gate.take_body(scope["path"], -held)
            self._gate.give_slot()


class BodyTooLargeError(InvalidRequestError):
    """A body is longer than its call allows."""


async def read_body(request: Request, bytes_max: int = SMALL_BODY_BYTES_MAX) -> bytearray:
    """Receive a request's body into memory. `RequestSlots`, where it is in use, counts the bytes.

    Raises:
        BodyTooLargeError: the body is longer than `bytes_max`, as its head says or as came.
        OverloadedError: the bodies of other requests fill the room for all bodies.
        ClientDisconnect: the peer is gone.
    """
    path = request.url.path
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise BodyTooLargeError("read body", path, f"{announced} bytes; {bytes_max} are allowed")
    hold: Callable[[int], None] | None = request.scope.get(_HOLD)
    body = bytearray()
    async for part in request.stream():
        if len(body) + len(part) > bytes_max:
            raise BodyTooLargeError("read body", path, f"more than {bytes_max} bytes came")
        if hold is not None:
            hold(len(part))
        body += part
    return body


def _too_many() -> Response:
    return Response(
        b'{"error":"too many requests are being answered; try again"}',
        503,
        {"retry-after": "1", "connection": "close"},
        media_type="application/json",
    )
