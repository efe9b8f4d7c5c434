"""What a handler gets with a request: who asks, in which version, and the broker that answers."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from typing_extensions import Buffer

from penstock.log.fetch.regions import FileRegion

if TYPE_CHECKING:
    from penstock.kafka.broker import Broker
    from penstock.model.errors import PenstockError


Piece = tuple[Buffer, int]


class PiecedReply:
    """A long response's body, made in pieces as the peer takes them.

    Args:
        pieces: gives the next one, and how many items making it took; together `byte_count` bytes.
        held_bytes: what the pieces are made of, for as long as there are some.
    """

    __slots__ = ("byte_count", "held_bytes", "pieces")

    def __init__(self, pieces: Iterator[Piece], *, byte_count: int, held_bytes: int) -> None:
        self.pieces = pieces
        self.byte_count = byte_count
        self.held_bytes = held_bytes


PIECE_BYTES: Final = 64 << 10
PIECE_ITEMS: Final = 250
"""A piece has about so many, whichever is reached first."""

Reply = Sequence[Buffer | FileRegion] | None
"""A response's body as buffers of bytes, without size and header; None: the request gets no
answer (a Produce with acks=0). `len(buffer)` must be its size in bytes. Regions of files only in
a Fetch's, and only where `takes_files`."""

AnyReply = Reply | PiecedReply


def reply_bytes(reply: Sequence[Buffer | FileRegion] | PiecedReply) -> int:
    """The length of a response's body."""
    if type(reply) is PiecedReply:
        return reply.byte_count
    return sum(map(len, reply))  # type: ignore[arg-type]


JOIN_BYTES_MAX: Final = 4096
"""Up to this, joining the buffers of a reply costs less than a vector of them."""

SMALL_ANSWER_BYTES: Final = 64 << 10
"""A shorter answer waits for nothing."""

ReplyFuture = asyncio.Future[Reply]


class LateReply(asyncio.Future[Reply]):
    """A reply that comes later, and goes to its taker at once.

    One commit may answer hundreds of fetches, and a plain future hands over its result a turn of
    the loop later, each through a callback of its own. Where nobody took it, it's a plain one.
    """

    taker: Callable[[Reply], None] | None = None

    def give(self, reply: Reply) -> None:
        """Answer. Once."""
        taker, self.taker = self.taker, None
        if taker is None:
            self.set_result(reply)
        else:
            taker(reply)


class Unhanded(Protocol):
    """A Produce that isn't handed to the log, or not all of it."""

    def append_if_checked(self) -> bool:
        """Hand it to the log if all of its batches are checked; whether all is handed over."""
        ...

    def forget(self) -> bool:
        """Let go of it, since its peer is gone; False: it goes on."""
        ...


class ConnectionState:
    """What a connection holds beyond one request.

    `last_fetch`, `last_produce`, `produces`, `fetch_alarm` and `principal` belong to the handlers
    that use them; the connection itself never looks at them. `items` are the topics and partitions
    of Produces that have begun and aren't answered; one whose number isn't known counts 500.
    """

    __slots__ = (
        "_sink",
        "fetch_alarm",
        "id",
        "items",
        "last_fetch",
        "last_produce",
        "principal",
        "produces",
    )

    def __init__(self, connection_id: int, sink: "ReplySink") -> None:
        self.id = connection_id
        self.last_fetch: Any = None
        self.last_produce: Any = None
        self.fetch_alarm: Any = None
        self.produces: deque[Unhanded] = deque()
        self.items = 0
        self.principal: str = "User:ANONYMOUS"
        self._sink = sink

    @property
    def unsent_bytes(self) -> int:
        """Reply bytes that the peer has not taken yet."""
        return self._sink.unsent_bytes()

    @property
    def reply_room_bytes(self) -> int:
        """Reply bytes for which connection and server have room now; 0 when there is none. A Fetch
        keeps to it, except for its first batch."""
        return self._sink.reply_room_bytes()

    @property
    def is_asked_more(self) -> bool:
        """Whether another request waits for the answer to a Fetch that is under way."""
        return self._sink.is_asked_more()

    def hurry_fetch(self) -> None:
        """A Fetch that waits for records is to be answered with what there is."""
        if self.fetch_alarm is not None:
            self.fetch_alarm.hurry()

    @property
    def takes_files(self) -> bool:
        """Whether a reply may hold regions of files."""
        return self._sink.takes_files()

    def reserve_answer(self, byte_count: int) -> "asyncio.Future[None] | None":
        """See `ReplySink`."""
        return self._sink.reserve_answer(byte_count)

    def leave(self) -> None:
        """The peer is gone: let go of the Produces that the log has nothing of."""
        kept = [produce for produce in self.produces if not produce.forget()]
        self.produces.clear()
        self.produces.extend(kept)
        # They may have waited for those before them alone.
        while self.produces and self.produces[0].append_if_checked():
            self.produces.popleft()

    def end(self, error: "PenstockError") -> None:
        """Close the connection once what has been received is answered; the log says why."""
        self._sink.end_when_answered(error)


class ReplySink(Protocol):
    """The side of a connection that `ConnectionState` asks."""

    def unsent_bytes(self) -> int:
        """Reply bytes not yet taken by the peer."""
        ...

    def reply_room_bytes(self) -> int:
        """Reply bytes that may be added without exceeding a limit."""
        ...

    def is_asked_more(self) -> bool:
        """Whether a request that is not a Fetch waits for the answers to those before it."""
        ...

    def takes_files(self) -> bool:
        """Whether regions of files can be sent."""
        ...

    def reserve_answer(self, byte_count: int) -> "asyncio.Future[None] | None":
        """Reserve the bound of an answer of more than `SMALL_ANSWER_BYTES`, before its work starts.

        Returns:
            None: go on. Else let go of all but the request's frame, wait, and begin again.
        """
        ...

    def end_when_answered(self, error: "PenstockError") -> None:
        """Read no more, and close once what was received is answered."""
        ...


class RequestContext:
    """One request's header, its connection and the broker. Made for every request: no dataclass,
    since a plain `__init__` over slots is the cheapest that Python has."""

    __slots__ = (
        "api_key",
        "api_version",
        "broker",
        "client_host",
        "client_id",
        "connection",
        "correlation_id",
        "reserved_bytes",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        client_host: str,
        broker: "Broker",
        connection: ConnectionState,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.broker = broker
        self.connection = connection
        self.reserved_bytes = 0
        """What was reserved last."""

    def reserve_answer(self, byte_count: int) -> "asyncio.Future[None] | None":
        """As `ReplySink.reserve_answer`, and nothing where the answer is small.

        A handler that gets a future returns it in place of its answer, and is called again.
        """
        if byte_count <= SMALL_ANSWER_BYTES:
            return None
        self.reserved_bytes = byte_count
        return self.connection.reserve_answer(byte_count)

    async def wait_for_room(self, byte_count: int) -> None:
        """Reserve an answer that is known only once its request's work is done: of what the
        server has in memory anyway, so that waiting for room holds little."""
        waiting = self.reserve_answer(byte_count)
        if waiting is not None:
            await waiting
