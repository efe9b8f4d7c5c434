"""A connection keeps this state from request to request, and handlers may read it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from penstock.kafka.access import Access
from penstock.kafka.alarm import Alarm
from penstock.security.principals import ANONYMOUS

if TYPE_CHECKING:
    from penstock.model.errors import PenstockError
    from penstock.security.sasl.session import SaslSession


NEVER_STALE: Final = (1 << 63) - 1
"""`seen_position` of a connection that has waited nowhere, such as one within a process."""


class Unhanded(Protocol):
    """A Produce that isn't handed to the log, or not all of it."""

    def append_if_checked(self) -> bool:
        """Hand it to the log if all of its batches are checked; whether all is handed over."""
        ...

    def forget(self) -> bool:
        """Let go of it, since its peer is gone; False: it goes on."""
        ...


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

    def authenticated(self) -> None:
        """The client has proven who it is: the limits before that are lifted."""
        ...

    def end_when_answered(self, error: "PenstockError") -> None:
        """Read no more, and close once what was received is answered."""
        ...


class ConnectionState:
    """The state that a connection keeps from request to request.

    `last_fetch`, `last_produce`, `share_relays`, `produces`, `fetch_alarm`, `principal` and
    `access` belong to the handlers that use them; the connection itself never looks at them.
    `items` are the topics and partitions of Produces that have begun and aren't answered; one whose
    number isn't known counts 500.
    `listener`: the name of the listener that the client came by; "": the first one. `session`: the
    states of SASL; None: the listener has none. `principal` is "User:ANONYMOUS" until the client
    has proven who it is.
    `seen_position`: the position of the journal that this agent had applied when it accepted the
    connection, or that what came by it since shows its client to have heard of.
    """

    __slots__ = (
        "_ends",
        "_sink",
        "access",
        "fetch_alarm",
        "id",
        "items",
        "last_fetch",
        "last_produce",
        "listener",
        "principal",
        "produces",
        "seen_position",
        "session",
        "share_relays",
    )

    def __init__(
        self,
        connection_id: int,
        sink: "ReplySink",
        *,
        seen_position: int = NEVER_STALE,
        listener: str = "",
        session: "SaslSession | None" = None,
    ) -> None:
        self.id = connection_id
        self.listener = listener
        self.session = session
        self.seen_position = seen_position
        self.last_fetch: object = None
        self.last_produce: object = None
        self.share_relays: object = None
        self.fetch_alarm: Alarm | None = None
        self.produces: deque[Unhanded] = deque()
        self.items = 0
        self.principal = ANONYMOUS
        self.access: Access | None = None
        self._sink = sink
        self._ends: dict[str, Callable[[ConnectionState], None]] = {}

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

    def saw(self, position: int) -> None:
        """The client has heard of the journal's entry at a position."""
        self.seen_position = max(self.seen_position, position)

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

    def watch_end(self, name: str, ended: "Callable[[ConnectionState], None]") -> None:
        """Call `ended` once the peer is gone; once for each name."""
        self._ends[name] = ended

    def leave(self) -> None:
        """The peer is gone: let go of the Produces that the log has nothing of, and tell those who
        watch."""
        ends, self._ends = self._ends, {}
        for ended in ends.values():
            ended(self)
        kept = [produce for produce in self.produces if not produce.forget()]
        self.produces.clear()
        self.produces.extend(kept)
        # They may have waited for those before them alone.
        while self.produces and self.produces[0].append_if_checked():
            self.produces.popleft()

    def authenticated(self, principal: str) -> None:
        """The client has proven to be a principal."""
        self.principal = principal
        self._sink.authenticated()

    def end(self, error: "PenstockError") -> None:
        """Close the connection once what has been received is answered; the log says why."""
        self._sink.end_when_answered(error)
