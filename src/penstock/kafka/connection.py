"""One client's connection: frames in, handlers called, replies out in the order of requests.

Order: Produce requests overlap one another; any other request starts only when those before it
are answered. A request does not start while the peer leaves an earlier reply unread.
Back-pressure: bytes of requests in progress and of unsent replies are counted per connection and
per server; above a limit the connection is not read from until they are gone.
Endings: an unknown API, an unsupported version, a malformed request or an oversized frame ends
this connection alone, after the requests before it were answered, with one log line. So does a
Produce with acks=0 that failed, since nothing else can tell its producer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

from typing_extensions import Buffer

from penstock.kafka import header, schema
from penstock.kafka.broker import Broker
from penstock.kafka.budget import ByteBudget
from penstock.kafka.context import JOIN_BYTES_MAX, ConnectionState, LateReply, Reply, RequestContext
from penstock.kafka.file_sender import FileSender
from penstock.kafka.framing import STAGING_BYTES, Framer
from penstock.kafka.registry import API_VERSIONS_KEY, APIS, Api
from penstock.kafka.waves import ProduceWaves
from penstock.log.fetch.regions import FileRegion
from penstock.model.errors import InvalidRequestError, PenstockError, RetryableError

logger = logging.getLogger(__name__)

FETCH_KEY: Final = 1
SEND_AT_BYTES: Final = 64 << 10


@dataclass(slots=True, kw_only=True)
class ConnectionHost:
    """What the connections of one server share."""

    broker: Broker
    budget: ByteBudget
    waves: ProduceWaves
    staging: memoryview = field(default_factory=lambda: memoryview(bytearray(STAGING_BYTES)))
    connections: "set[KafkaConnection]" = field(default_factory=set)
    next_connection_id: int = 1
    draining: bool = False
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last connection has gone; cleared by whoever is about to wait."""


class _Exchange:
    """A request and, later, its reply."""

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
        """None: ApiVersions in a version that is not served (KIP-511)."""
        self.frame_bytes = frame_bytes
        self.started_s = started_s
        self.pending: asyncio.Future[Any] | None = None
        self.ready = False
        self.error: BaseException | None = None
        self.reply: Reply = None


class KafkaConnection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket, on asyncio's loop or uvloop."""

    def __init__(self, host: ConnectionHost) -> None:
        self._host = host
        self._broker = host.broker
        self._clock = host.broker.clock
        self._instruments = host.broker.instruments
        self._limit_bytes = host.broker.settings.connection_budget_bytes
        self._framer = Framer(host.staging, host.broker.settings.request_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        # asyncio's own `writelines` does not tell of a full buffer in some releases of 3.12 and
        # 3.13 (gh-127655), and what is not told of is not bounded. uvloop is what servers run on.
        self._vectored = type(self._loop).__module__.startswith("uvloop")
        self.peer = "?"
        self._client_host = "?"
        self._state = ConnectionState(host.next_connection_id, self)
        host.next_connection_id += 1
        self._waiting: deque[_Exchange] = deque()
        self._in_flight: deque[_Exchange] = deque()
        self._out: list[Buffer | FileRegion] = []
        self._out_bytes = 0
        self._out_has_files = False
        self._files: FileSender | None = None
        """Made in `connection_made` where regions of files can be sent."""
        # What came in wrong: the connection ends once all that came before is answered. Or what
        # befell a request that gets no answer (`end_when_answered`).
        self._fault: PenstockError | None = None
        # What a handler raised: the connection ends now.
        self._failure: BaseException | None = None
        self._fault_api = ""
        self._closing = False
        self._pumping = False
        self._reading_paused = False
        self._writing_paused = False
        # Whether this connection waits for the server's budget, or may go on above it.
        self._known_to_budget = False
        # What is counted in the server's budget, by kind.
        self._request_bytes = 0
        self._partial_bytes = 0
        self._unsent_bytes = 0
        self._reserved_bytes = 0
        # The last time that bytes moved while they should, for `check_stalled`.
        self._moved_s = 0.0
        self._moved_mark = (0, 0)

    # -- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the server, or close at once when it is full or ending."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self._client_host = str(peer[0])
            self.peer = f"{peer[0]}:{peer[1]}"
        host = self._host
        if host.draining or len(host.connections) >= self._broker.settings.connections_max:
            self._instruments.count("refused_connections")
            if not host.draining:
                logger.warning(
                    "refused %s: %d connections are open, as many as connections_max allows",
                    self.peer,
                    len(host.connections),
                )
            self._closing = True
            self._transport.abort()
            return
        # No slack: with the high-water mark at zero `pause_writing` says that a reply did not
        # go out whole, and `resume_writing` that all of it has.
        self._transport.set_write_buffer_limits(high=0)
        if FileSender.fits(self._transport):
            self._files = FileSender(
                self._transport, emptied=self._files_sent, failed=self._files_failed
            )
        self._moved_s = self._clock.monotonic_s()
        host.connections.add(self)
        self._instruments.count("connections_opened")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the socket's bytes go."""
        return self._framer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Parse headers of whole frames and start what may start."""
        framer = self._framer
        frames = framer.buffer_updated(nbytes)
        if self._closing or self._fault is not None:
            return
        partial_bytes = framer.pending_bytes
        if partial_bytes != self._partial_bytes:
            self._host.budget.take(partial_bytes - self._partial_bytes)
            self._partial_bytes = partial_bytes
        if not frames and framer.failure is None:
            self._regulate_reading()
            return
        if framer.failure is not None:
            self._host.waves.release(self)
        elif self._host.waves.keep(self, frames):
            return
        self._receive_all(frames, self._clock.monotonic_s())
        self._fault = self._fault or framer.failure
        self._pump()

    def take_up(self, frames: Iterable[memoryview], arrived_s: float) -> None:
        """See `penstock.kafka.waves.TakesUp`."""
        self._receive_all(frames, arrived_s)
        self._pump_once()

    def eof_received(self) -> bool:
        """A peer that will send no more is gone, as Kafka sees it."""
        return False

    def pause_writing(self) -> None:
        """The socket took less than it was given."""
        self._writing_paused = True
        self._moved_s = self._clock.monotonic_s()

    def resume_writing(self) -> None:
        """Everything written has left."""
        self._count_unsent()
        if self._files is not None and self._files.busy:
            self._files.resume()
            return
        self._writing_paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Give back what was counted and stop what only this peer wanted."""
        host = self._host
        # A producer that wants no answer may be gone behind its last request.
        host.waves.release(self)
        self._closing = True
        if self not in host.connections:
            return
        host.connections.discard(self)
        self._instruments.count("connections_closed")
        for exchange in self._in_flight:
            # A Produce goes on: its bytes may be stored already. Whatever else is under way
            # serves nobody now.
            if exchange.pending is not None and not exchange.api.overlaps:
                exchange.pending.cancel()
        self._in_flight.clear()
        self._waiting.clear()
        self._out.clear()
        if self._files is not None:
            self._files.clear()
        held = self._request_bytes + self._partial_bytes + self._unsent_bytes + self._reserved_bytes
        self._request_bytes = self._partial_bytes = self._unsent_bytes = self._reserved_bytes = 0
        host.budget.take(-held)
        host.budget.release(self)
        if not host.connections:
            host.emptied.set()

    # -- the handlers' side (`ReplySink`) --------------------------------------------------------

    def unsent_bytes(self) -> int:
        """Reply bytes that wait in memory. Regions of files cost none."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def takes_files(self) -> bool:
        """Whether regions of files can be sent here."""
        return self._files is not None

    def reply_room_bytes(self) -> int:
        """What both budgets leave for a reply."""
        own = self._limit_bytes - self._request_bytes - self._unsent_bytes
        return max(0, min(own, self._host.budget.room_bytes))

    def reserve_reply(self, byte_count: int) -> None:
        """Count a reply that is being read already, until it is there."""
        self._reserved_bytes += byte_count
        self._host.budget.take(byte_count)

    def end_when_answered(self, error: PenstockError) -> None:
        """See `ReplySink`. A handler's, while its exchange is in flight."""
        if self._fault is None:
            self._fault = error
            self._fault_api = self._in_flight[0].api.name

    # -- the server's side ---------------------------------------------------------------------

    def drain(self) -> None:
        """Read no more; close once the requests that were started are answered."""
        self._host.waves.release(self)
        self._waiting.clear()
        self._set_reading(paused=True)
        self._pump()

    def abort(self) -> None:
        """Close now, whatever is unsent."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def check_stalled(self, now_s: float) -> None:
        """End the connection if its peer has left bytes standing for too long.

        Args:
            now_s: the clock's monotonic time.
        """
        transport = self._transport
        if transport is None:
            return
        receiving = self._framer.pending_bytes if not self._reading_paused else 0
        unsent = transport.get_write_buffer_size()
        if self._files is not None:
            unsent += self._files.unsent_bytes
        mark = (unsent, receiving)
        if mark != self._moved_mark or mark == (0, 0):
            self._moved_mark = mark
            self._moved_s = now_s
            self._count_unsent()
            return
        stalled_s = now_s - self._moved_s
        if stalled_s < self._broker.settings.stall_timeout_s:
            return
        self._instruments.count("stalled_connections")
        logger.warning(
            "closed %s: nothing moved for %.0f s with %d reply bytes unsent and %d bytes of a "
            "request received",
            self.peer,
            stalled_s,
            *mark,
        )
        self.abort()

    def budget_freed(self) -> None:
        """Look again whether there is room to read or to start a Fetch."""
        # From the loop rather than at once: the bytes were given back in the middle of another
        # connection's work.
        self._loop.call_soon(self._pump)

    # -- requests ------------------------------------------------------------------------------

    def _receive_all(self, frames: Iterable[memoryview], arrived_s: float) -> None:
        if self._closing or self._fault is not None:  # also since these frames came
            return
        try:
            for frame in frames:
                self._receive(frame, arrived_s)
        except InvalidRequestError as error:
            self._fault = error

    def _receive(self, frame: memoryview, arrived_s: float) -> None:
        key, version, correlation_id = header.parse_fixed(frame)
        api = APIS.get(key)
        if api is None:
            raise InvalidRequestError("serve", f"API key {key}", "it is not served")
        self._fault_api = api.name
        body: memoryview | None
        client_id: str | None
        if api.versions_min <= version <= api.versions_max:
            client_id, body_start = header.parse_rest(frame, flexible=version >= api.flexible_from)
            body = frame[body_start:]
        elif key == API_VERSIONS_KEY:
            # KIP-511: answered in version 0, whatever the body is, so that a newer client can
            # ask again.
            client_id, body, version = None, None, 0
        else:
            raise InvalidRequestError(
                "serve",
                api.name,
                f"version {version}, served are {api.versions_min} to {api.versions_max}",
            )
        context = RequestContext(
            key, version, correlation_id, client_id, self._client_host, self._broker, self._state
        )
        frame_bytes = len(frame)
        self._request_bytes += frame_bytes
        self._host.budget.take(frame_bytes)
        self._waiting.append(_Exchange(api, context, body, frame_bytes, arrived_s))

    def _pump(self) -> None:
        """Start what may start and send what is ready, until neither is left."""
        if self._pumping:
            return
        if not self._waiting:
            self._pump_once()
            return
        log = self._broker.log
        # What is appended by requests that came together shares a turn of the log.
        log.hold()
        try:
            self._pump_once()
        finally:
            log.settle()

    def _pump_once(self) -> None:
        self._pumping = True
        try:
            while not self._closing and self._failure is None:
                while self._waiting and self._may_start(self._waiting[0]):
                    self._start(self._waiting.popleft())
                if not self._collect_replies():
                    break
                # Small replies leave together; a large one at once, so that it is known whether
                # the peer takes it before the next request starts.
                if self._out_bytes >= SEND_AT_BYTES:
                    self._send()
                if not self._waiting:
                    break
        finally:
            self._pumping = False
        if self._closing:
            return
        if self._out:
            self._send()
        if self._failure is not None:
            self._end(self._failure)
        elif not self._in_flight and not self._waiting:
            if self._fault is not None:
                self._end(self._fault)
            elif self._host.draining:
                self._closing = True
                self._close_when_sent()
        self._regulate_reading()

    def _may_start(self, exchange: _Exchange) -> bool:
        if self._writing_paused:
            return False
        if self._in_flight:
            return exchange.api.overlaps and self._in_flight[0].api.overlaps
        # A Fetch makes bytes, so it waits for room; what others answer is small.
        if exchange.api.key == FETCH_KEY and self._host.budget.spent:
            self._host.budget.wait(self)
            self._known_to_budget = True
            return False
        return True

    def _start(self, exchange: _Exchange) -> None:
        self._in_flight.append(exchange)
        api = exchange.api
        try:
            handler = api.load()
            if exchange.body is None:
                exchange.reply = handler.unsupported_version()
            elif api.raw:
                result = handler.serve(exchange.context, exchange.body)
                if asyncio.isfuture(result):
                    exchange.pending = result
                    if type(result) is LateReply and not result.done():
                        result.taker = partial(self._take_reply, exchange)
                    else:
                        result.add_done_callback(partial(self._replied, exchange))
                    return
                exchange.reply = result
            else:
                task = self._loop.create_task(self._handle(handler, exchange))
                exchange.pending = task
                task.add_done_callback(partial(self._replied, exchange))
                return
        except Exception as error:  # noqa: BLE001 - a handler's bug must end this connection alone
            exchange.error = error
        exchange.ready = True

    async def _handle(self, handler: Any, exchange: _Exchange) -> Reply:
        context, body = exchange.context, exchange.body
        assert body is not None
        request = schema.decode_request(exchange.api.module, context.api_version, body)
        response = await handler.handle(context, request)
        return [schema.encode_response(response)]

    def _take_reply(self, exchange: _Exchange, reply: Reply) -> None:
        exchange.pending = None
        if not self._closing:
            exchange.reply = reply
            exchange.ready = True
            self._pump()

    def _replied(self, exchange: _Exchange, future: "asyncio.Future[Any]") -> None:
        exchange.pending = None
        if self._closing:
            if not future.cancelled():
                # Looked at, so that the loop does not report it as forgotten: the peer is gone.
                future.exception()
            return
        if future.cancelled():
            exchange.error = RetryableError("serve", exchange.api.name, "it was cancelled")
        else:
            exchange.error = future.exception()
            if exchange.error is None:
                exchange.reply = future.result()
        exchange.ready = True
        self._pump()

    def _collect_replies(self) -> bool:
        """Move the replies at the head of the queue to `_out`; whether there were any."""
        moved = False
        now_s = self._clock.monotonic_s() if self._in_flight else 0.0
        while self._in_flight and self._in_flight[0].ready:
            exchange = self._in_flight.popleft()
            moved = True
            if exchange.error is not None:
                # An error rather than an answer: the connection ends, but not before the
                # requests ahead of this one were answered.
                self._failure = exchange.error
                self._fault_api = exchange.api.name
            self._request_bytes -= exchange.frame_bytes
            self._host.budget.take(-exchange.frame_bytes)
            if self._reserved_bytes:
                self._host.budget.take(-self._reserved_bytes)
                self._reserved_bytes = 0
            self._instruments.observe(exchange.api.stage, now_s - exchange.started_s)
            reply = exchange.reply
            if self._failure is not None:
                break
            if reply is None:
                continue
            body_bytes = sum(map(len, reply))  # type: ignore[arg-type]
            context = exchange.context
            self._out.append(
                header.response_header(
                    exchange.api, context.api_version, context.correlation_id, body_bytes
                )
            )
            self._out.extend(reply)
            self._out_bytes += body_bytes
            if FileRegion in map(type, reply):
                self._out_has_files = True
        return moved

    def _send(self) -> None:
        transport = self._transport
        assert transport is not None
        out, self._out = self._out, []
        out_bytes, self._out_bytes = self._out_bytes, 0
        self._instruments.count("reply_bytes", out_bytes)
        files = self._files
        if files is not None and (self._out_has_files or files.busy):
            self._out_has_files = False
            files.send(out)
            # `_files_sent`, or else `resume_writing`, says when it's over.
            self._writing_paused |= files.busy
        elif self._vectored and out_bytes > JOIN_BYTES_MAX:
            transport.writelines(cast("list[bytes]", out))
        else:
            transport.write(b"".join(cast("list[bytes]", out)))
        if self._writing_paused:
            self._count_unsent()

    def _files_sent(self) -> None:
        """The last region has left the queue; what follows it may be in the transport still."""
        if self._closing:
            self._close_when_sent()
        elif not self.unsent_bytes():
            self._writing_paused = False
            self._pump()

    def _files_failed(self, error: BaseException) -> None:
        # A peer that went away is no news; a file that can't be read is.
        if not isinstance(error, (ConnectionError, TimeoutError)):
            logger.error("closed %s: %s", self.peer, error)
        self.abort()

    def _close_when_sent(self) -> None:
        """Close; what the transport holds is sent before, and regions of files are here."""
        if self._transport is not None and not (self._files is not None and self._files.busy):
            self._transport.close()

    # -- counting and ending -------------------------------------------------------------------

    def _count_unsent(self) -> None:
        unsent = self.unsent_bytes()
        if unsent != self._unsent_bytes:
            delta = unsent - self._unsent_bytes
            self._unsent_bytes = unsent
            self._host.budget.take(delta)

    def _regulate_reading(self) -> None:
        """Read on, or not, by what is in hand."""
        if self._closing:
            return
        host, budget = self._host, self._host.budget
        paused = (
            self._request_bytes + self._unsent_bytes >= self._limit_bytes
            or self._fault is not None
            or host.draining
        )
        if budget.spent and not paused:
            # One connection may finish receiving its request above the limit; once it has, it
            # makes way for the next.
            paused = not (self._partial_bytes and budget.elect(self))
            if paused:
                budget.release(self)
                budget.wait(self)
            self._known_to_budget = True
        elif self._known_to_budget:
            self._known_to_budget = False
            budget.release(self)
        if paused != self._reading_paused:
            self._set_reading(paused=paused)

    def _set_reading(self, *, paused: bool) -> None:
        if paused == self._reading_paused or self._transport is None:
            return
        self._reading_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _end(self, error: BaseException) -> None:
        self._closing = True
        if isinstance(error, PenstockError):
            if isinstance(error, InvalidRequestError):
                self._instruments.count("malformed_requests")
            logger.warning("closed %s: %s: %s", self.peer, self._fault_api or "no API", error)
        else:
            logger.error("closed %s: %s failed", self.peer, self._fault_api, exc_info=error)
        self._close_when_sent()
