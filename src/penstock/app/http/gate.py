"""A gate decides which connections and requests an HTTP port serves. No sockets, no HTTP.

Three bounds keep clients that send half a request, or read no answer, from harming the others:

* *Places* are connections. When all are taken and one more comes, a connection is closed that has
  sent no whole request: among the connections of the address that has the most, the one that has
  waited for longest. If there is none, a connection is closed whose body has not come; else one
  that does not take its answer. A probe of health is the newest connection, so it goes last.
* *Slots* are requests being answered. There are half as many as places, so that some connection
  can always be closed. When all slots are taken, a request whose body has not come, or whose answer
  is not taken, loses its slot; else the new request is answered 503. Health and metrics need none.
* *Body bytes* are those of all requests that hold their bodies in memory.

Three times are bounded as well: for a head, for a body (a second more for every 64 KiB that came),
and for an answer of which nothing is taken.
"""

import enum
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.model.errors import OverloadedError
from penstock.ports.clock import Clock
from penstock.system.seldom import Seldom

logger = logging.getLogger(__name__)

BODY_BYTES_PER_S: Final = 64 << 10
BODIES_BYTES_MAX: Final = 128 << 20
"""All requests of one port together hold at most this many bytes of bodies in memory. One request
holds at most 64 MiB, which is the largest body that a call allows."""
SETTLED_S: Final = 1.0
"""A connection is not closed in favour of another one sooner than this after its phase began."""


class Phase(enum.Enum):
    """A phase says what a connection waits for."""

    IDLE = "idle"
    """The connection is kept alive after an answer; the HTTP library closes it after a while."""
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"


class HttpEnding(enum.StrEnum):
    """The reason why a connection is closed; a label of penstock_http_ended_connections_total."""

    HEAD = "head"
    BODY = "body"
    STALLED = "stalled"
    ROOM = "room"
    MALFORMED = "malformed"


class HttpRefusal(enum.StrEnum):
    """The reason why a client is turned away; a label of penstock_http_refused_total."""

    CONNECTIONS = "connections"
    REQUESTS = "requests"
    BODIES = "bodies"
    HOST = "host"
    CREDENTIALS = "credentials"
    DENIED = "denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of one port. Times are in seconds."""

    connections_max: int = 200
    header_s: float = 10.0
    body_s: float = 30.0
    stall_s: float = 30.0
    bodies_bytes_max: int = BODIES_BYTES_MAX

    @property
    def requests_max(self) -> int:
        """The number of slots."""
        return self.connections_max // 2


@dataclass(frozen=True, slots=True)
class HttpState:
    """The state of a connection at one moment.

    `since_s`: when the phase began, moved on by the time in which this server didn't read;
    `body_bytes`: bytes of the body that came in this phase; `unsent_bytes`: bytes of answers that
    wait to be sent.
    """

    phase: Phase
    since_s: float
    body_bytes: int
    unsent_bytes: int


class Gated(Protocol):
    """A connection, as a gate sees it."""

    client_host: str
    peer_name: str

    def state(self, now_s: float) -> HttpState:
        """Return the connection's state now."""
        ...

    def cut(self) -> None:
        """Close the connection at once."""
        ...


class HttpGate:
    """Keeps count of the connections and requests of one HTTP port. Event loop only.

    Args:
        name: the port's name in the log and in metrics: "http" or "peer".
        count: called with the port's name and an HttpEnding or HttpRefusal.
    """

    def __init__(
        self,
        name: str,
        limits: HttpLimits,
        clock: Clock,
        count: Callable[[str, enum.StrEnum], None],
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.name = name
        self._count = count
        self._seldom = Seldom(clock)
        self._open: dict[Gated, tuple[int, float]] = {}
        """Open connections in the order of arrival, each with its unsent bytes at the last look,
        and the time since when that number hasn't changed."""
        self.running = 0
        """The number of slots that are taken."""
        self.bodies_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, connection: Gated) -> None:
        """Give a new connection a place. If there is none, close another connection or this one."""
        now_s = self.clock.monotonic_s()
        while len(self._open) >= self.limits.connections_max:
            other = self._waiting_longest() or self._unfinished(now_s)
            if other is None:
                self._refuse(HttpRefusal.CONNECTIONS, connection.peer_name)
                connection.cut()
                return
            self._end(other, HttpEnding.ROOM, now_s)
        self._open[connection] = (0, now_s)

    def leave(self, connection: Gated) -> None:
        """Free the place of a connection that is gone. Idempotent."""
        self._open.pop(connection, None)

    def note_malformed(self, connection: Gated) -> None:
        """Count a connection that sent something other than HTTP. uvicorn answers 400 and
        closes."""
        self._note(connection, HttpEnding.MALFORMED, self.clock.monotonic_s())

    def take_slot(self, peer_name: str) -> bool:
        """Take a slot for a request; return whether there was one. Then call `give_slot`."""
        if self.running >= self.limits.requests_max:
            now_s = self.clock.monotonic_s()
            other = self._unfinished(now_s)
            if other is None:
                self._refuse(HttpRefusal.REQUESTS, peer_name)
                return False
            self._end(other, HttpEnding.ROOM, now_s)
        self.running += 1
        return True

    def give_slot(self) -> None:
        """Free the slot of a request that has ended."""
        self.running -= 1

    def take_body(self, path: str, byte_count: int) -> None:
        """Count bytes of a body that are kept in memory. A negative number gives bytes back.

        Raises:
            OverloadedError: other bodies hold too much. The bytes were not counted.
        """
        if byte_count > 0 and self.bodies_bytes + byte_count > self.limits.bodies_bytes_max:
            self._refuse(HttpRefusal.BODIES, path)
            raise OverloadedError(
                "read body",
                path,
                f"{self.bodies_bytes} bytes of bodies are in memory, and "
                f"{self.limits.bodies_bytes_max} are allowed",
            )
        self.bodies_bytes += byte_count

    def look(self) -> None:
        """Close connections whose time is over. The caller calls this about once a second."""
        now_s = self.clock.monotonic_s()
        for connection, (last_unsent, still_since_s) in list(self._open.items()):
            state = connection.state(now_s)
            if not state.unsent_bytes or state.unsent_bytes != last_unsent:
                still_since_s = now_s
            self._open[connection] = (state.unsent_bytes, still_since_s)
            ending = self._overdue(state, now_s, still_since_s)
            if ending is not None:
                self._end(connection, ending, now_s)

    def _overdue(self, state: HttpState, now_s: float, still_since_s: float) -> HttpEnding | None:
        limits, waited_s = self.limits, now_s - state.since_s
        if now_s - still_since_s >= limits.stall_s:
            return HttpEnding.STALLED
        if state.phase is Phase.HEAD and waited_s >= limits.header_s:
            return HttpEnding.HEAD
        body_s = limits.body_s + state.body_bytes / BODY_BYTES_PER_S
        if state.phase is Phase.BODY and waited_s >= body_s:
            return HttpEnding.BODY
        return None

    def _waiting_longest(self) -> Gated | None:
        """Return the connection to close first among those that have sent no whole head."""
        by_address = Counter(connection.client_host for connection in self._open)
        now_s = self.clock.monotonic_s()
        waiting = []
        for number, connection in enumerate(self._open):
            state = connection.state(now_s)
            if state.phase in {Phase.IDLE, Phase.HEAD}:
                held = by_address[connection.client_host]
                waiting.append((-held, state.since_s, number, connection))
        return min(waiting)[-1] if waiting else None

    def _unfinished(self, now_s: float) -> Gated | None:
        """Return the oldest connection whose body has not come, else whose answer is not taken."""
        found: dict[Phase, tuple[float, int, Gated]] = {}
        for number, connection in enumerate(self._open):
            state = connection.state(now_s)
            if now_s - state.since_s < SETTLED_S:
                continue
            is_left = state.unsent_bytes > 0 and now_s - self._open[connection][1] >= SETTLED_S
            if state.phase is Phase.BODY or (state.phase is Phase.ANSWER and is_left):
                row = (state.since_s, number, connection)
                found[state.phase] = min(found.get(state.phase, row), row)
        row_or_none = found.get(Phase.BODY) or found.get(Phase.ANSWER)
        return row_or_none[-1] if row_or_none else None

    def _end(self, connection: Gated, ending: HttpEnding, now_s: float) -> None:
        self._note(connection, ending, now_s)
        self.leave(connection)
        connection.cut()

    def _note(self, connection: Gated, ending: HttpEnding, now_s: float) -> None:
        state = connection.state(now_s)
        self._count(self.name, ending)
        count = self._seldom.due(ending.value)
        if count:
            logger.warning(
                "closed %s on the %s port (%s): in phase %s for %.1f s, %d bytes of a body came, "
                "%d bytes of an answer unsent; %d closed so since the last such line",
                connection.peer_name,
                self.name,
                ending.value,
                state.phase.value,
                now_s - state.since_s,
                state.body_bytes,
                state.unsent_bytes,
                count,
            )

    def turn_away(self, refusal: HttpRefusal, address: str, reason: str) -> None:
        """Count a request that is not served to its sender."""
        self._count(self.name, refusal)
        count = self._seldom.due(f"{refusal.value} {address}")
        if count:
            logger.warning(
                "refused %s on the %s port (%s): %s; %d refused since the last such line",
                address,
                self.name,
                refusal.value,
                reason,
                count,
            )

    def _refuse(self, refusal: HttpRefusal, subject: str) -> None:
        self._count(self.name, refusal)
        count = self._seldom.due(refusal.value)
        if count:
            logger.warning(
                "refused %s on the %s port: %d connections, %d requests and %d bytes of bodies "
                "are open, and no more %s may be; %d refused since the last such line",
                subject,
                self.name,
                len(self._open),
                self.running,
                self.bodies_bytes,
                refusal.value,
                count,
            )
