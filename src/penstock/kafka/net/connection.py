"""One client's connection: frames in, handlers called, replies out in the order of requests.

Order: Produce requests overlap one another; any other request starts only when those before it
are answered, and a Fetch before them waits for records no longer. A request does not start while
the peer leaves an earlier reply unread.
Back-pressure: bytes of requests in progress and of unsent replies are counted per connection and
per server (`penstock.kafka.net.holdings`); above a limit the connection is not read from until they
are gone. A large answer reserves its bytes before its work starts.
Endings: an unknown API, an unsupported version, a malformed request or an oversized frame ends
this connection alone, after the requests before it were answered, with one log line. So does a
Produce with acks=0 that failed, since nothing else can tell its producer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from itertools import takewhile
from typing import Final, cast

from penstock.kafka.connection_state import ConnectionState
from penstock.kafka.context import RequestContext
from penstock.kafka.net.authenticating import OF_AUTHENTICATION, Authenticating
from penstock.kafka.net.exchange import Exchange
from penstock.kafka.net.holdings import KIND_KNOWN_BYTES, Holdings
from penstock.kafka.net.host import ClientNames, ConnectionHost
from penstock.kafka.net.lanes import Lanes, Ticket
from penstock.kafka.net.movement import Ending, Movement, Sample
from penstock.kafka.net.reply_writer import SEND_AT_BYTES, ReplyWriter
from penstock.kafka.net.throttling import FETCH_KEY, Throttling
from penstock.kafka.net.unserved import UnservedError, api_versions_or_raise, note_unserved
from penstock.kafka.registry import APIS, SASL_TOKEN, is_of_groups
from penstock.kafka.replies import reply_bytes
from penstock.kafka.transactions import LateRequestError
from penstock.kafka.wire import header
from penstock.kafka.wire.framing import Framer
from penstock.kafka.wire.produce_codec import wants_no_answer
from penstock.model.errors import InvalidRequestError, PenstockError
from penstock.ports.clock import Clock
from penstock.security.listener import Listener
from penstock.security.quota import CONNECTION_CREATION_RATE, REQUEST_PERCENTAGE
from penstock.system.sockets import readable_bytes

logger = logging.getLogger(__name__)

STARTED_BYTES_MAX: Final = 64 << 10
"""A connection starts requests of this many bytes in one turn of the loop, and one more. While an
earlier request is answered, megabytes of other requests may come."""
KEPT_OUT_S: Final = 1.0
"""The longest pause before a connection is closed that is one too many of its address."""
ITEMS_MAX: Final = 2_000
"""A connection has Produces of this many items under way (`ConnectionState.items`), and one more:
that is four long Produces. Reading a request may take thirteen times its bytes."""


class KafkaConnection(asyncio.BufferedProtocol):
    """The protocol of one accepted socket, on asyncio's loop or uvloop."""

    def __init__(
        self,
        host: ConnectionHost,
        listener: Listener | None = None,
        name_client: ClientNames | None = None,
    ) -> None:
        """
        Args:
            listener: the one that the client came by; None: the first one, of PLAINTEXT.
            name_client: names a client by its certificate; None: clients show none.
        """
        self._name_client = name_client
        self._host = host
        self._broker = host.broker
        self._clock = host.broker.clock
        self._instruments = host.broker.instruments
        self._limit_bytes = host.broker.settings.connection_budget_bytes
        self._framer = Framer(host.staging, host.broker.settings.request_bytes_max, host.advances)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._held = Holdings(host, self, host.broker.clock, host.broker.instruments)
        self._writer: ReplyWriter
        """Made in `connection_made`."""
        self.peer = "?"
        self.client_host = "?"
        self._sasl: Authenticating | None = None
        """None: requests are taken at once."""
        if listener is not None and listener.protocol.has_sasl:
            self._sasl = Authenticating(host.broker, self._framer, self._end_unauthenticated)
        self._state = ConnectionState(
            host.next_connection_id,
            self,
            seen_position=host.accepted.of_new(),
            listener="" if listener is None else listener.name,
            session=None if self._sasl is None else self._sasl.session,
        )
        host.next_connection_id += 1
        self._quotas = host.broker.quotas
        self._throttling = Throttling(self._quotas, self._loop, self._instruments.count, self._pump)
        self._waiting: deque[Exchange] = deque()
        self._in_flight: deque[Exchange] = deque()
        self._answer_waiter: asyncio.Future[None] | None = None
        """Done once the ticket of an answer is granted."""
        # The error of what came in wrong: the connection ends once all that came before is
        # answered. Or the error of a request that gets no answer (`end_when_answered`).
        self._fault: PenstockError | None = None
        # What a handler raised: the connection ends now.
        self._failure: BaseException | None = None
        self._fault_api = ""
        self._closing = False
        self._pumping = False
        self._reading_paused = False
        self._descriptor = -1
        self._started_bytes = 0
        """Bytes of requests that were started in this turn of the loop."""
        self._next_turn: asyncio.Handle | None = None
        """In which more are started."""
        self._active_s = 0.0
        """When a request came or was answered last."""

    # -- asyncio's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the server, or close at once when it is full or ending."""
        self._transport = made = cast(asyncio.Transport, transport)
        self._writer = ReplyWriter(
            made, self._broker.turns, left=self._replies_left, failed=self._sending_failed
        )
        peer_socket = transport.get_extra_info("socket")
        if peer_socket is not None:
            self._descriptor = peer_socket.fileno()
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            # A listener of IPv6 names a peer of IPv4 so.
            self.client_host = str(peer[0]).removeprefix("::ffff:")
            self.peer = f"{peer[0]}:{peer[1]}"
        host = self._host
        self._active_s = self._clock.monotonic_s()
        if host.refusal(self, self._active_s):
            self.abort()
            return
        self._instruments.count("connections_opened")
        # No slack: with the high-water mark at zero `pause_writing` says that a reply did not
        # go out whole, and `resume_writing` that all of it has. A transport of TLS says that it is
        # paused at its mark, not above it.
        tls = transport.get_extra_info("ssl_object")
        made.set_write_buffer_limits(high=0 if tls is None else 1, low=0)
        if self._sasl is not None:
            self._sasl.start(self._loop)
        elif tls is not None and self._name_client is not None:
            self._identify(self._name_client, tls.getpeercert(binary_form=True))
        self._keep_out(self._quotas.connect(self.client_host))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the buffer into which the socket's bytes go."""
        buffer = self._framer.get_buffer()
        host = self._host
        if host.data.is_full or host.groups.is_full:
            return buffer[: self._held.receive_max()]
        return buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse headers of whole frames and start what may start."""
        if self._closing:
            return  # the framer may have been closed since its buffer was given
        framer = self._framer
        frames = framer.buffer_updated(nbytes)
        if self._fault is not None:
            return
        if not frames and framer.failure is None:
            self._count_partial()
            self._regulate_reading()
            return
        now_s = self._active_s = self._clock.monotonic_s()
        if framer.failure is not None:
            self._host.waves.release(self)
        elif self._host.waves.keep(self, frames):
            self._count_partial()
            return
        self._receive_all(frames, now_s)
        self._count_partial()
        self._fault = self._fault or framer.failure
        self._pump()

    def take_up(self, frames: Iterable[memoryview], arrived_s: float) -> None:
        """See `penstock.kafka.net.waves.TakesUp`."""
        self._receive_all(frames, arrived_s)
        self._pump_once()

    def eof_received(self) -> bool:
        """A peer that will send no more is gone, as Kafka sees it."""
        return False

    def pause_writing(self) -> None:
        """The socket took less than it was given."""
        self._writer.is_held_up = True
        self._host.watch.add(self)

    def resume_writing(self) -> None:
        """Everything written has left."""
        self._count_unsent()
        self._writer.resume()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Give back what was counted and stop what only this peer wanted."""
        self._leave()

    # -- the handlers' side (`ReplySink`) --------------------------------------------------------

    def unsent_bytes(self) -> int:
        """Reply bytes that wait in memory. Regions of files cost none."""
        return self._writer.buffered_bytes

    def is_asked_more(self) -> bool:
        """See `ReplySink`. Not a Fetch: a client that always has two under way would make each
        hurry the one before it, and neither would wait."""
        return bool(self._waiting) and self._waiting[0].api.key != FETCH_KEY

    def takes_files(self) -> bool:
        """Whether regions of files can be sent here."""
        return self._writer.takes_files

    def reply_room_bytes(self) -> int:
        """Return the bytes that the limits of connection and server leave for a reply."""
        held = self._held
        own = self._limit_bytes - held.request_bytes - held.unsent_bytes
        room = max(0, min(own, self._host.data.room_bytes))
        if self._quotas.is_on and self._in_flight:
            return self._throttling.fetch_room(self._in_flight[0], room)
        return room

    def reserve_answer(self, byte_count: int) -> "asyncio.Future[None] | None":
        """See `ReplySink`. A handler's, while its exchange is in flight."""
        if self._closing:  # the log is to get what came, and there is no answer
            return None
        api, held = self._in_flight[0].api, self._held
        if (
            held.reserve_produced(byte_count)
            if api.overlaps
            else held.reserve_answer(byte_count, of_groups=api.of_groups)
        ):
            return None
        self._answer_waiter = self._loop.create_future()
        return self._answer_waiter

    def authenticated(self) -> None:
        """See `ReplySink`."""
        assert self._sasl is not None
        self._sasl.succeeded()

    def end_when_answered(self, error: PenstockError) -> None:
        """See `ReplySink`. A handler's, while its exchange is in flight."""
        if self._closing:
            logger.warning("%s is gone, and does not get this error: %s", self.peer, error)
        elif self._fault is None:
            self._fault = error
            self._fault_api = self._in_flight[0].api.name

    # -- the server's side ---------------------------------------------------------------------

    def drain(self) -> None:
        """Read no more; close once the requests that were started are answered."""
        self._host.waves.release(self)
        # Produces behind one another are started, if some at a time.
        kept = takewhile(lambda one: one.api.overlaps, self._waiting) if self.is_appending() else ()
        self._waiting = deque(kept)
        self._set_reading(paused=True)
        self._throttling.end()
        self._pump()

    def abort(self) -> None:
        """Close now, whatever is unsent."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def sample(self, now_s: float) -> Sample | None:
        """See `penstock.kafka.net.watch.Watched`."""
        transport, framer, writer = self._transport, self._framer, self._writer
        assert transport is not None
        self._count_unsent()
        unsent = writer.unsent_bytes
        received = framer.pending_bytes
        if not unsent and not received:
            return None
        peer_socket = transport.get_extra_info("socket")
        return Sample(
            at_s=now_s,
            request=framer.begun_count,
            received_bytes=received,
            missing_bytes=framer.missing_bytes,
            readable_bytes=readable_bytes(peer_socket.fileno()) if peer_socket else 0,
            unsent_bytes=unsent,
            left_bytes=writer.given_bytes - unsent,
        )

    def end_slow(self, ending: Ending, movement: Movement) -> None:
        """See `penstock.kafka.net.watch.Watched`."""
        unsent = self._writer.unsent_bytes
        self._cut(
            ending,
            f"nothing moved for {movement.still_s:.1f} s, bytes of a request were owed for "
            f"{movement.owed_s:.1f} s, {movement.bytes_per_s:.0f} bytes/s moved last; {unsent} "
            f"reply bytes unsent, {self._framer.pending_bytes} bytes of a request received",
        )

    def holds_of(self, lanes: Lanes) -> bool:
        """See `penstock.kafka.net.watch.Watched`."""
        return self._held.holds_of(lanes)

    def idle_since_s(self) -> float | None:
        """See `penstock.kafka.net.admission.Admitted`."""
        if (
            self._in_flight
            or self._waiting
            or self._writer.is_held_up
            or self._framer.pending_bytes
            or self._closing
        ):
            return None
        return self._active_s

    def end_idle(self, *, for_room: bool) -> None:
        """See `penstock.kafka.net.admission.Admitted`."""
        idle_s = self._clock.monotonic_s() - self._active_s
        self._cut(Ending.ROOM if for_room else Ending.IDLE, f"idle for {idle_s:.0f} s")

    def end_revoked(self) -> None:
        """See `penstock.kafka.net.host.HostedConnection`."""
        if self._sasl is not None and self._sasl.is_revoked() and not self._closing:
            self._cut(Ending.REVOKED, f"{self._state.principal} has no credential any more")

    def room_granted(self, ticket: Ticket) -> None:
        """See `penstock.kafka.net.holdings.TakesRoom`."""
        waiter = self._answer_waiter
        if not self._held.is_of_answer(ticket):
            # From the loop rather than at once: bytes were given back in the middle of another
            # connection's work.
            self._loop.call_soon(self._pump)
        elif waiter is not None and not waiter.done():
            waiter.set_result(None)

    def peer_ended(self, *, is_reset: bool) -> None:
        """See `penstock.system.peer_ends.HasPeer`."""
        # What a peer sent before it closed in order is read first: producers that want no answer
        # close so.
        if is_reset or not readable_bytes(self._descriptor):
            self._leave()
            self.abort()

    def is_appending(self) -> bool:
        """See `penstock.kafka.net.holdings.TakesRoom`."""
        return bool(self._in_flight) and self._in_flight[0].api.overlaps

    # -- requests ------------------------------------------------------------------------------

    def _receive_all(self, frames: Iterable[memoryview], arrived_s: float) -> None:
        if self._closing or self._fault is not None:  # also since these frames came
            return
        if self._next_turn is None:
            self._started_bytes = 0
        try:
            for frame in frames:
                self._receive(frame, arrived_s)
        except InvalidRequestError as error:
            self._fault = error

    def _receive(self, frame: memoryview, arrived_s: float) -> None:
        sasl = self._sasl
        if sasl is not None and not sasl.session.sends_headers:
            self._fault_api = SASL_TOKEN.name
            self._held.add_request(len(frame), of_groups=SASL_TOKEN.of_groups)
            self._waiting.append(sasl.token(frame, self._state, self.client_host, arrived_s))
            return
        key, version, correlation_id = header.parse_fixed(frame)
        body: memoryview | None
        api = APIS.get(key)
        if (
            api is not None
            and api.versions_min <= version <= api.versions_max
            and api.level <= self._broker.view.feature_level
        ):
            self._fault_api = api.name
            client_id, body_start = header.parse_rest(frame, flexible=version >= api.flexible_from)
            body = frame[body_start:]
        else:
            # KIP-511: ApiVersions is answered in version 0, whatever the body is, so that a newer
            # client can ask again.
            api = api_versions_or_raise(key, version, frame)
            client_id, body, version = None, None, 0
        context = RequestContext(
            key, version, correlation_id, client_id, self.client_host, self._broker, self._state
        )
        frame_bytes = len(frame)
        self._held.add_request(frame_bytes, of_groups=api.of_groups)
        self._waiting.append(Exchange(api, context, body, frame_bytes, arrived_s))

    def _identify(self, name_client: ClientNames, certificate: bytes | None) -> None:
        """Find the principal of a client of SSL by its certificate, or close."""
        if certificate is None:
            return
        try:
            self._state.principal = name_client(certificate)
        except PenstockError as error:
            self._instruments.count("failed_authentications")
            self._say_seldom(f"authentication {self.client_host}", error, logging.WARNING)
            self.abort()

    def _admits(self, exchange: Exchange) -> bool:
        """Whether a request is taken before its client has authenticated, or since it has."""
        return self._sasl is None or self._sasl.is_admitted(exchange, self._clock.monotonic_s())

    def _end_unauthenticated(self, waited_s: float) -> None:
        self._cut(Ending.UNAUTHENTICATED, f"not authenticated after {waited_s:g} s")

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
                    if self._started_bytes >= STARTED_BYTES_MAX:
                        self._pump_later()
                        break
                    exchange = self._waiting.popleft()
                    self._started_bytes += exchange.frame_bytes
                    self._in_flight.append(exchange)
                    if self._admits(exchange):
                        exchange.start(self._loop, self._pump, self._measuring())
                if not self._collect_replies():
                    break
                # Small replies leave together; a large one at once, so that it is known whether
                # the peer takes it before the next request starts.
                if self._writer.out_bytes >= SEND_AT_BYTES:
                    self._send()
                if not self._waiting:
                    break
        finally:
            self._pumping = False
        if self._closing:
            if self._held.orphan_bytes:
                self._start_orphans()
                self._count_orphans()
            return
        if not self._writer.is_empty:
            self._send()
        if self._failure is not None:
            self._end(self._failure)
        elif self._in_flight:
            if self.is_asked_more():
                # Most clients look for coordinators and leaders over the connections by which they
                # fetch: what they ask would wait for as long as their Fetch waits for records.
                self._state.hurry_fetch()
        elif not self._waiting:
            if self._fault is not None:
                self._end(self._fault)
            elif self._host.draining:
                self._closing = True
                self._close_when_sent()
        self._regulate_reading()

    def _pump_later(self) -> None:
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._pump_on)

    def _pump_on(self) -> None:
        self._next_turn = None
        self._started_bytes = 0
        self._pump()

    def _measuring(self) -> Clock | None:
        return self._clock if self._quotas.has(REQUEST_PERCENTAGE) else None

    def _may_start(self, exchange: Exchange) -> bool:
        if self._writer.is_held_up or self._throttling.is_muted:
            return False
        if self._in_flight:
            return (
                exchange.api.overlaps
                and self._in_flight[0].api.overlaps
                and self._state.items < ITEMS_MAX
            )
        # A Fetch gives what there is room for. What others answer is small, or reserved.
        return exchange.api.key != FETCH_KEY or self._held.may_fetch()

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
            self._active_s = now_s
            self._held.add_request(-exchange.frame_bytes, of_groups=exchange.api.of_groups)
            self._instruments.observe(exchange.api.stage, now_s - exchange.started_s)
            if self._failure is not None:
                break
            reply = exchange.reply
            if self._quotas.is_on:
                reply = self._throttling.answered(exchange, now_s)
            if reply is None:
                continue
            body_bytes = reply_bytes(reply)
            context = exchange.context
            self._writer.add(
                header.response_header(
                    exchange.api, context.api_version, context.correlation_id, body_bytes
                ),
                reply,
                body_bytes,
            )
            if exchange.api.overlaps:
                if context.reserved_bytes:
                    self._held.produced_made(body_bytes)
            elif self._held.answer is not None:
                self._held.answer_made()
                if body_bytes < SEND_AT_BYTES:
                    self._held.answer_left()
        return moved

    def _send(self) -> None:
        self._instruments.count("reply_bytes", self._writer.flush())
        if self._writer.is_held_up:
            self._host.watch.add(self)
            self._count_unsent()
        elif self._held.is_sending:
            self._held.answer_left()

    def _replies_left(self) -> None:
        """All that was held up has left."""
        self._count_unsent()
        if self._closing:
            self._close_when_sent()
        else:
            self._pump()

    def _sending_failed(self, error: BaseException) -> None:
        # A peer that went away needs no log line; a file that can't be read does.
        if not isinstance(error, (ConnectionError, TimeoutError)):
            is_bug = not isinstance(error, (PenstockError, OSError))
            logger.error("closed %s: %s", self.peer, error, exc_info=error if is_bug else None)
        self.abort()

    def _close_when_sent(self) -> None:
        """Close; what the transport holds is sent before, and what the writer holds is here."""
        if self._transport is not None and not self._writer.is_busy:
            self._transport.close()

    # -- counting and ending -------------------------------------------------------------------

    def _count_partial(self) -> None:
        framer, held = self._framer, self._held
        partial_bytes = framer.pending_bytes
        if not (partial_bytes or held.partial_bytes):
            return
        if held.partial_bytes < KIND_KNOWN_BYTES:  # up to now its key may not have been known
            held.set_partial_kind(of_groups=is_of_groups(framer.pending_key))
        held.set_partial(partial_bytes)
        if partial_bytes:
            self._host.watch.add(self)

    def _start_orphans(self) -> None:
        """Start what wants no answer, as far as there is room: its peer may close behind it."""
        while self._waiting and (not self._in_flight or self._state.items < ITEMS_MAX):
            if self._started_bytes >= STARTED_BYTES_MAX:
                self._pump_later()
                break
            exchange = self._waiting.popleft()
            self._started_bytes += exchange.frame_bytes
            body = exchange.body
            if (
                body is not None
                and wants_no_answer(body, exchange.context.api_version)
                and self._admits(exchange)
            ):
                self._in_flight.append(exchange)
                exchange.start(self._loop, self._pump, self._measuring())
            else:
                self._held.orphans_answered(exchange.frame_bytes)

    def _count_orphans(self) -> None:
        """Give back what is answered of the requests that outlive their peer, in their order."""
        byte_count = 0
        while self._in_flight and self._in_flight[0].ready:
            byte_count += self._in_flight.popleft().frame_bytes
        self._held.orphans_answered(byte_count)

    def _count_unsent(self) -> None:
        self._held.set_unsent(self._writer.buffered_bytes)
        self._held.answer_left(self._writer.held_bytes)

    def _regulate_reading(self) -> None:
        """Read on, or not, by what is in hand."""
        if self._closing:
            return
        held = self._held
        paused = (
            held.request_bytes + held.unsent_bytes >= self._limit_bytes
            or self._fault is not None
            or self._throttling.is_muted
            or self._host.draining
            or not held.may_receive(is_idle=not (self._in_flight or self._waiting))
        )
        if paused != self._reading_paused:
            self._set_reading(paused=paused)

    def _set_reading(self, *, paused: bool) -> None:
        if paused == self._reading_paused or self._transport is None:
            return
        self._reading_paused = paused
        if paused:
            self._transport.pause_reading()
            if not self._closing and self._descriptor >= 0:
                self._host.ends.add(self._descriptor, self)
        else:
            self._host.ends.remove(self._descriptor, self)
            self._transport.resume_reading()

    def _keep_out(self, wait_s: float) -> None:
        """Close a connection whose address opens too many, after a pause, as Kafka does: at once it
        would be opened again at once."""
        if wait_s > 0:
            self._instruments.count(f"throttled:{CONNECTION_CREATION_RATE}")
            # It may be that what came is read still.
            self._throttling.is_muted = True
            self._set_reading(paused=True)
            self._loop.call_later(min(wait_s, KEPT_OUT_S), self._end_kept_out)

    def _end_kept_out(self) -> None:
        if not self._closing:
            self._cut(Ending.CONNECTION_RATE, f"{self.client_host} has opened too many")

    def _cut(self, ending: Ending, detail: str) -> None:
        self._host.note_ended(self.peer, ending, detail)
        # At once, since another connection waits for the place or the bytes.
        self._leave()
        self.abort()

    def _leave(self) -> None:
        """Give back what was counted and stop what only this peer wanted. Idempotent."""
        host = self._host
        # A producer that wants no answer may be gone behind its last request.
        host.waves.release(self)
        self._closing = True
        self._throttling.end()
        self._framer.close()
        if self._sasl is not None:
            self._sasl.close()
        if not host.admission.leave(self):
            return
        host.watch.discard(self)
        host.ends.remove(self._descriptor, self)
        self._instruments.count("connections_closed")
        for exchange in self._in_flight:
            # Records of a Produce that the log has may be stored already; the request is held until
            # the outcome is known. Other requests under way have no client any more.
            if not exchange.api.overlaps:
                exchange.drop()
        self._state.leave()
        orphans = [one for one in self._in_flight if one.pending is not None and one.api.overlaps]
        self._in_flight.clear()
        self._in_flight.extend(orphans)
        waiting = deque(one for one in self._waiting if one.api.overlaps)
        self._waiting = waiting
        self._writer.clear()
        self._held.leave(sum(exchange.frame_bytes for exchange in (*orphans, *waiting)))
        if waiting:
            self._pump_later()
        if not host.connections:
            host.emptied.set()

    def _end(self, error: BaseException) -> None:
        self._closing = True
        if isinstance(error, UnservedError):
            self._instruments.count("malformed_requests")
            note_unserved(
                self._broker,
                error.kind,
                error.subject,
                error.detail,
                client_id=error.client_id,
                client=self.peer,
            )
        elif isinstance(error, OF_AUTHENTICATION):
            # A client that tries again and again must not fill the log.
            self._say_seldom(f"authentication {self.client_host}", error, logging.WARNING)
        elif isinstance(error, LateRequestError):
            self._instruments.count("late_transaction_requests")
            self._say_seldom("late transaction requests", error, logging.INFO)
        elif isinstance(error, PenstockError):
            if isinstance(error, InvalidRequestError):
                self._instruments.count("malformed_requests")
            logger.warning("closed %s: %s: %s", self.peer, self._fault_api or "no API", error)
        else:
            logger.error("closed %s: %s failed", self.peer, self._fault_api, exc_info=error)
        self._close_when_sent()

    def _say_seldom(self, what: str, error: PenstockError, level: int) -> None:
        count = self._host.seldom.due(what)
        if count:
            text = "closed %s: %s (%d since the last such line)"
            logger.log(level, text, self.peer, error, count)
