"""Lanes decide which requests and answers take memory, and in which order, below one limit. Pure.

Two kinds of bytes count against the limit. Bytes that are *there* (received, or unsent) are taken
without asking. Bytes of work that has not begun are *reserved*: the work starts when its ticket is
granted. A ticket is granted at once where nothing of its lane waits and its
bytes fit; otherwise it waits in its lane, first come, first served.

One owner at a time goes above the limit, until less than the limit is used. So a request or an
answer that is longer than the limit comes through, and many requests that are each received in part
cannot hold all of the memory with none of them ever complete.

| lane | what a ticket is for | bytes | above the limit |
| --- | --- | --- | --- |
| request | receiving the rest of a request | 0: they are taken as they come | yes |
| answer | the work on a large answer | the answer's bound | yes |
| fetch | a Fetch, which gives what there is room for | 0 | no: it would have nothing to give |

State machine of a ticket, and what a server has of these lanes: docs/decisions/0019.
"""

import enum
from collections.abc import Sequence
from typing import Final


class Lane(enum.StrEnum):
    """The kind of work that waits, which is a label of metrics."""

    REQUEST = "request"
    ANSWER = "answer"
    FETCH = "fetch"


class TicketState(enum.Enum):
    """Waiting, then granted, then released; each may be left out."""

    WAITING = enum.auto()
    GRANTED = enum.auto()
    RELEASED = enum.auto()


class Ticket:
    """One reservation. Changed by `Lanes` alone.

    `owner` is whom the grant concerns; one owner may hold several tickets.
    """

    __slots__ = ("byte_count", "is_above", "lane", "lanes", "number", "owner", "since_s", "state")

    def __init__(
        self,
        lanes: "Lanes",
        lane: Lane,
        byte_count: int,
        owner: object,
        *,
        number: int,
        since_s: float,
    ) -> None:
        self.lanes = lanes
        self.lane = lane
        self.byte_count = byte_count
        self.owner = owner
        self.number = number
        """The ticket's place among all, in the order of asking."""
        self.since_s = since_s
        self.state = TicketState.WAITING
        self.is_above = False
        """It goes above the limit, which is reached."""

    @property
    def is_granted(self) -> bool:
        """Whether the work may go on."""
        return self.state is TicketState.GRANTED


class Lanes:
    """The lanes before one limit.

    Methods that make room return the tickets that were granted for it: their owners go on.
    """

    __slots__ = ("_above", "_number", "_queued", "_waiting", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes: Final = limit_bytes
        self.used_bytes = 0
        self._number = 0
        # In dictionaries, so that one that leaves the middle costs no search.
        self._waiting: dict[Lane, dict[Ticket, None]] = {lane: {} for lane in Lane}
        self._queued = 0
        """Tickets that wait, in all lanes."""
        self._above: dict[Ticket, None] = {}
        """The tickets above the limit: of one owner at a time."""

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self.used_bytes >= self.limit_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes below the limit; 0 above it."""
        return max(0, self.limit_bytes - self.used_bytes)

    def waiting_count(self, lane: Lane) -> int:
        """Tickets that wait in a lane."""
        return len(self._waiting[lane])

    def longest_wait_s(self, now_s: float) -> float:
        """Return for how long the ticket that has waited for longest waits; 0: none does."""
        heads = self._heads()
        return now_s - heads[0].since_s if heads else 0.0

    def take(self, byte_count: int) -> Sequence[Ticket]:
        """Count bytes that are there; negative ones are gone."""
        self.used_bytes += byte_count
        if byte_count < 0 and (self._queued or self._above):
            return self._grant()
        return ()

    def reserve(self, lane: Lane, byte_count: int, owner: object, *, now_s: float) -> Ticket:
        """Ask for room for work that has not begun. Look at the ticket's `is_granted`."""
        self._number += 1
        ticket = Ticket(self, lane, byte_count, owner, number=self._number, since_s=now_s)
        if not self._waiting[lane] and self._fits(ticket):
            self._let_in(ticket)
        elif self._may_exceed(ticket):
            self._let_in_above(ticket)
        else:
            self._waiting[lane][ticket] = None
            self._queued += 1
        return ticket

    def resize(self, ticket: Ticket, byte_count: int) -> Sequence[Ticket]:
        """The work of a granted ticket needs another number of bytes, which aren't asked for."""
        assert ticket.is_granted
        more = byte_count - ticket.byte_count
        ticket.byte_count = byte_count
        return self.take(more)

    def release(self, ticket: Ticket) -> Sequence[Ticket]:
        """The work is done, or not wanted any more. Idempotent."""
        state, ticket.state = ticket.state, TicketState.RELEASED
        if state is TicketState.RELEASED:
            return ()
        if state is TicketState.WAITING:
            self._leave_lane(ticket)
        else:
            self.used_bytes -= ticket.byte_count
            self._above.pop(ticket, None)
            ticket.is_above = False
        return self._grant()

    def _fits(self, ticket: Ticket) -> bool:
        # A ticket without bytes needs room for at least one: its bytes come later.
        return self.used_bytes + (ticket.byte_count or 1) <= self.limit_bytes

    def _may_exceed(self, ticket: Ticket) -> bool:
        if ticket.lane is Lane.FETCH:
            return False
        return all(above.owner is ticket.owner for above in self._above)

    def _let_in(self, ticket: Ticket) -> None:
        ticket.state = TicketState.GRANTED
        self.used_bytes += ticket.byte_count

    def _let_in_above(self, ticket: Ticket) -> None:
        self._above[ticket] = None
        ticket.is_above = True
        self._let_in(ticket)

    def _leave_lane(self, ticket: Ticket) -> None:
        del self._waiting[ticket.lane][ticket]
        self._queued -= 1

    def _heads(self) -> list[Ticket]:
        """The first ticket of each lane, the oldest first."""
        heads = [next(iter(waiting)) for waiting in self._waiting.values() if waiting]
        heads.sort(key=lambda ticket: ticket.number)
        return heads

    def _grant(self) -> Sequence[Ticket]:
        """Let in all that now can, the oldest first."""
        if self._above and self.used_bytes < self.limit_bytes:
            for above in self._above:
                above.is_above = False
            self._above.clear()
        granted = []
        while self._queued and (ticket := self._next()) is not None:
            self._leave_lane(ticket)
            granted.append(ticket)
        return granted

    def _next(self) -> Ticket | None:
        """Let one of the heads in."""
        heads = self._heads()
        for ticket in heads:
            if self._fits(ticket):
                self._let_in(ticket)
                return ticket
        for ticket in heads:
            if self._may_exceed(ticket):
                self._let_in_above(ticket)
                return ticket
        return None
