"""What a handler gets with a request: who asks, in which version, and the broker that answers."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from typing_extensions import Buffer

from penstock.log.fetch.regions import FileRegion

if TYPE_CHECKING:
    from penstock.kafka.broker import Broker
    from penstock.model.errors import PenstockError

Reply = Sequence[Buffer | FileRegion] | None
"""A response's body as buffers of bytes, without size and header; None: the request gets no
answer (a Produce with acks=0). `len(buffer)` must be its size in bytes. Regions of files only in
a Fetch's, and only where `takes_files`."""

JOIN_BYTES_MAX: Final = 4096
"""Up to this, joining the buffers of a reply costs less than a vector of them."""

ReplyFuture = asyncio.Future[Reply]


class LateReply(asyncio.Future[Reply]):
    """A reply that comes later, and goes to its taker at once.

    One commit may answer hundreds of fetches, and a plain future tells of its result a turn of
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


class ConnectionState:
    """What a connection holds beyond one request.

    `last_fetch`, `last_produce`, `fetch_alarm` and `principal` belong to the handlers that use
    them; the connection itself never looks at them.
    """

    __slots__ = ("_sink", "fetch_alarm", "id", "last_fetch", "last_produce", "principal")

    def __init__(self, connection_id: int, sink: "ReplySink") -> None:
        self.id = connection_id
        self.last_fetch: Any = None
        self.last_produce: Any = None
        self.fetch_alarm: Any = None
        self.principal: str = "User:ANONYMOUS"
        self._sink = sink

    @property
    def unsent_bytes(self) -> int:
        """Reply bytes that the peer has not taken yet."""
        return self._sink.unsent_bytes()

    @property
    def reply_room_bytes(self) -> int:
        """Reply bytes that fit into the budgets of connection and server now; 0 when there are
        none left. A Fetch keeps to it, save for its first batch."""
        return self._sink.reply_room_bytes()

    @property
    def takes_files(self) -> bool:
        """Whether a reply may hold regions of files."""
        return self._sink.takes_files()

    def reserve_reply(self, byte_count: int) -> None:
        """Count a reply that is being read from storage, so that others see less room. Given
        back when the request is answered."""
        self._sink.reserve_reply(byte_count)

    def end(self, error: "PenstockError") -> None:
        """Close the connection once what has been received is answered; the log says why."""
        self._sink.end_when_answered(error)


class ReplySink(Protocol):
    """The side of a connection that `ConnectionState` asks."""

    def unsent_bytes(self) -> int:
        """Reply bytes not yet taken by the peer."""
        ...

    def reply_room_bytes(self) -> int:
        """Reply bytes that may be added without exceeding a budget."""
        ...

    def takes_files(self) -> bool:
        """Whether regions of files can be sent."""
        ...

    def reserve_reply(self, byte_count: int) -> None:
        """Count reply bytes in the making."""
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
