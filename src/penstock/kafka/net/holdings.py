"""A connection holds requests, unsent replies and tickets in the server's lanes.

Each connection may hold FREE_BYTES of requests that don't count, so that a small request is read
and answered however full the lanes are. More bytes count in the lanes of their kind.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, cast

from penstock.kafka.net.lanes import Lane, Lanes, Ticket
from penstock.kafka.wire.framing import KEY_BYTES, PREFIX_BYTES
from penstock.ports.clock import Clock

FREE_BYTES: Final = 4 << 10
"""Bytes of requests that each connection may hold uncounted, per kind: 40 MiB of 10,000."""
KIND_KNOWN_BYTES: Final = PREFIX_BYTES + KEY_BYTES
"""Fewer bytes of a request may be part of its size, or half of its key."""
UNLIMITED: Final = 1 << 62


class TakesRoom(Protocol):
    """The owner of tickets: a connection."""

    def room_granted(self, ticket: Ticket) -> None:
        """A ticket that waited was granted. Called in the middle of another connection's work."""
        ...

    def is_appending(self) -> bool:
        """Whether its oldest request under way is a Produce, which waits for the log alone."""
        ...


class CountsWaits(Protocol):
    """Counts waits."""

    def count(self, event: str, amount: int = 1) -> None:
        """One of "waited:<Lane>"."""
        ...


class HasLanes(Protocol):
    """The server's side: one pair of lanes for all connections."""

    data: Lanes
    groups: Lanes


def notify(granted: Sequence[Ticket]) -> None:
    """Let the owners of granted tickets know."""
    for ticket in granted:
        cast(TakesRoom, ticket.owner).room_granted(ticket)


class _Share:
    """The requests of one kind."""

    __slots__ = ("counted_bytes", "held_bytes", "lanes")

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.held_bytes = 0
        self.counted_bytes = 0

    def add(self, byte_count: int) -> None:
        held = self.held_bytes = self.held_bytes + byte_count
        if held > FREE_BYTES or self.counted_bytes:
            more = max(0, held - FREE_BYTES) - self.counted_bytes
            if more:
                self.counted_bytes += more
                if granted := self.lanes.take(more):
                    notify(granted)


class Holdings:
    """The bytes and tickets of one connection. Event loop only.

    At most one ticket waits at a time; so a connection that goes above the limit waits for nothing
    that another one above the limit would have to give back.

    Args:
        owner: the connection.
    """

    __slots__ = (
        "_clock",
        "_data",
        "_fetching",
        "_groups",
        "_instruments",
        "_owner",
        "_partial_share",
        "_produced",
        "_receiving",
        "_told",
        "answer",
        "orphan_bytes",
        "partial_bytes",
        "request_bytes",
        "sending",
        "unsent_bytes",
    )

    def __init__(
        self, host: HasLanes, owner: TakesRoom, clock: Clock, instruments: CountsWaits
    ) -> None:
        self._data = _Share(host.data)
        self._groups = _Share(host.groups)
        self._owner = owner
        self._clock = clock
        self._instruments = instruments
        self._partial_share = self._data
        self._receiving: Ticket | None = None
        self._fetching: Ticket | None = None
        self.answer: Ticket | None = None
        """The ticket of the answer in the making."""
        self.sending: Ticket | None = None
        """The ticket of the answer that is made, until all of it was sent."""
        self._produced: deque[Ticket] = deque()
        """Tickets of Produces' answers in the making, in the order of the requests."""
        self._told: list[Ticket] = []
        """Tickets of Produces' answers that are made, until all of them were sent."""
        self.request_bytes = 0
        """Bytes of whole requests that aren't answered."""
        self.partial_bytes = 0
        """Bytes of the request that is being received."""
        self.unsent_bytes = 0
        self.orphan_bytes = 0
        """Bytes of requests that go on though the peer is gone."""

    def add_request(self, byte_count: int, *, of_groups: bool) -> None:
        """Count a whole request; with a negative number one that is answered."""
        self.request_bytes += byte_count
        (self._groups if of_groups else self._data).add(byte_count)

    def set_partial(self, byte_count: int) -> None:
        """Count what there is of a request that isn't whole."""
        self._partial_share.add(byte_count - self.partial_bytes)
        self.partial_bytes = byte_count

    def set_partial_kind(self, *, of_groups: bool) -> None:
        """Say of what kind the request is that isn't whole."""
        share = self._groups if of_groups else self._data
        if share is not self._partial_share:
            self._partial_share.add(-self.partial_bytes)
            share.add(self.partial_bytes)
            self._partial_share = share

    def set_unsent(self, byte_count: int) -> None:
        """Count reply bytes that the peer has not taken."""
        more = byte_count - self.unsent_bytes
        if more:
            self.unsent_bytes = byte_count
            notify(self._data.lanes.take(more))

    def holds_of(self, lanes: Lanes) -> bool:
        """Whether something of this connection counts in these lanes."""
        for ticket in (self.answer or self.sending, *self._produced):
            if ticket is None or ticket.lanes is not lanes:
                continue
            if ticket.is_granted and ticket.byte_count:
                return True
        if lanes is self._data.lanes:
            return self._data.counted_bytes > 0 or self.unsent_bytes > 0
        return self._groups.counted_bytes > 0

    # -- receiving -----------------------------------------------------------------------------

    def may_receive(self, *, is_idle: bool) -> bool:
        """Whether more may be read from the peer now; else it is waited for, if need be.

        Args:
            is_idle: no request of this connection is under way, nor waits for its start.
        """
        share = self._partial_share if self.partial_bytes else self._data
        lanes = share.lanes
        if lanes.used_bytes < lanes.limit_bytes:
            if self._receiving is not None:
                self._stop_receiving()
            return True
        if share.held_bytes < FREE_BYTES:
            # What comes next may be a heartbeat.
            self._stop_receiving()
            return is_idle and not self.unsent_bytes
        # With requests under way there will be another look once they are answered. A connection
        # that went above the limit for one request more would hold the place until then.
        if not (self.partial_bytes and is_idle):
            # A Produce needs nothing more and ends by itself. Until then it is what is above the
            # limit: the next one's bytes would be added to it, and so on.
            if not self._owner.is_appending():
                self._stop_receiving()
            return False
        ticket = self._receiving
        if ticket is None or (ticket.is_granted and not ticket.is_above):
            self._stop_receiving()
            ticket = self._receiving = self._reserve(lanes, Lane.REQUEST, 0)
        return ticket.is_granted

    def receive_max(self) -> int:
        """Return how many bytes may be read at once while the lanes of a kind are full."""
        receiving = self._receiving
        if receiving is not None and receiving.is_granted:
            return UNLIMITED
        # Of what nothing is there yet, either kind may come.
        is_known = self.partial_bytes >= KIND_KNOWN_BYTES
        shares = (self._partial_share,) if is_known else (self._data, self._groups)
        room = [FREE_BYTES - share.held_bytes for share in shares if share.lanes.is_full]
        return max(1, min(room)) if room else UNLIMITED

    def _stop_receiving(self) -> None:
        ticket = self._receiving
        if ticket is not None:
            self._receiving = None
            notify(ticket.lanes.release(ticket))

    # -- answering -----------------------------------------------------------------------------

    def may_fetch(self) -> bool:
        """Whether a Fetch may begin now; else its turn is waited for."""
        ticket, lanes = self._fetching, self._data.lanes
        if ticket is None and not lanes.is_full:
            return True
        if ticket is not None and not ticket.is_granted:
            return False
        if ticket is None or (lanes.is_full and not ticket.is_above):
            self._stop_fetching()
            # One whose own frame counts can't wait for room: without its answer there may never be
            # any. So it may go above the limit.
            lane = Lane.ANSWER if self._data.counted_bytes else Lane.FETCH
            ticket = self._fetching = self._reserve(lanes, lane, 0)
            if not ticket.is_granted:
                return False
        self._stop_fetching()
        return True

    def _stop_fetching(self) -> None:
        ticket = self._fetching
        if ticket is not None:
            self._fetching = None
            notify(ticket.lanes.release(ticket))

    def reserve_answer(self, byte_count: int, *, of_groups: bool) -> bool:
        """Reserve the bound of an answer; whether it was granted at once.

        A second time for one request says how long the answer is by now.
        """
        ticket = self.answer
        if ticket is not None:
            notify(ticket.lanes.resize(ticket, byte_count))
            return True
        share = self._groups if of_groups else self._data
        ticket = self.answer = self._reserve(share.lanes, Lane.ANSWER, byte_count)
        return ticket.is_granted

    def reserve_produced(self, byte_count: int) -> bool:
        """Reserve the bound of one more answer to a Produce; whether it was granted at once. If it
        was not, the next one is not asked for before it is."""
        assert not self._produced or self._produced[-1].is_granted
        ticket = self._reserve(self._data.lanes, Lane.ANSWER, byte_count)
        self._produced.append(ticket)
        return ticket.is_granted

    def is_of_answer(self, ticket: Ticket) -> bool:
        """Whether it was asked for last for an answer."""
        return ticket is self.answer or bool(self._produced and ticket is self._produced[-1])

    @property
    def is_sending(self) -> bool:
        """Whether an answer whose bytes were reserved has not left."""
        return self.sending is not None or bool(self._told)

    def produced_made(self, byte_count: int) -> None:
        """The bytes of the first answer to a Produce are there, and about to be sent."""
        ticket = self._produced.popleft()
        notify(ticket.lanes.resize(ticket, byte_count))
        self._told.append(ticket)

    def answer_made(self) -> None:
        """The answer's bytes are there, and about to be sent."""
        self.sending, self.answer = self.answer, None

    def answer_left(self, byte_count: int = 0) -> None:
        """Keep this many reserved bytes for the rest of the answer that is being made; unsent bytes
        count separately. At 0 the reservation ends, and once nothing is unsent another owner may go
        above the limit."""
        self._produced_left()
        ticket = self.sending
        if ticket is None:
            return
        if byte_count or self.unsent_bytes:
            notify(ticket.lanes.resize(ticket, byte_count))
        else:
            self.sending = None
            notify(ticket.lanes.release(ticket))

    def _produced_left(self) -> None:
        if self.unsent_bytes:
            for ticket in self._told:
                notify(ticket.lanes.resize(ticket, 0))
            return
        told, self._told = self._told, []
        for ticket in told:
            notify(ticket.lanes.release(ticket))

    def _reserve(self, lanes: Lanes, lane: Lane, byte_count: int) -> Ticket:
        ticket = lanes.reserve(lane, byte_count, self._owner, now_s=self._clock.monotonic_s())
        if not ticket.is_granted:
            self._instruments.count(f"waited:{lane.value}")
        return ticket

    def leave(self, orphan_bytes: int = 0) -> None:
        """Give everything back: the connection is gone.

        Args:
            orphan_bytes: of requests that the log has something of. They count as long as they go
                on, and keep their owner's place above the limit. All of them count: of
                connections that come and go, what is free of each would be without bound.
        """
        self.orphan_bytes = orphan_bytes
        self._data.lanes.take(orphan_bytes)
        if not (orphan_bytes and self._receiving is not None and self._receiving.is_granted):
            self._stop_receiving()
        self._stop_fetching()
        tickets = (self.answer, self.sending, *self._produced, *self._told)
        self.answer = self.sending = None
        self._produced.clear()
        self._told.clear()
        for ticket in tickets:
            if ticket is not None:
                notify(ticket.lanes.release(ticket))
        self._partial_share.add(-self.partial_bytes)
        self.request_bytes = self.partial_bytes = 0
        for share in (self._data, self._groups):
            share.add(-share.held_bytes)
        self.set_unsent(0)

    def orphans_answered(self, byte_count: int) -> None:
        """So many bytes of requests of the peer that is gone are no longer held."""
        self.orphan_bytes -= byte_count
        notify(self._data.lanes.take(-byte_count))
        if not self.orphan_bytes:
            self._stop_receiving()
