"""The movement of a connection's bytes shows which peers stand still, are late, or are slow. Pure.

A connection is looked at about once a second while a request is received in part or a reply is
unsent. A look distinguishes three things:

* *stalled*: nothing moved for `stall_s`, though the peer owed bytes or had bytes to take.
* *late*: the peer has owed bytes of one request for longer than the request may take. One byte each
    half second is not a stall, but never ends.
* *slow*: since the last look it moved fewer than SLOW_BYTES_PER_S. A slow peer is not at fault;
  once the server's lanes are full, the slowest make room for the others
  (`penstock.kafka.net.watch`).

A sender owes bytes while nothing of its request waits in our socket: a connection that is not read
from, since the lanes are full, is not blamed for it.
"""

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

READABLE_BYTES: Final = 16 << 10
"""A sender with so many bytes in our socket has done its part: they are ours to read."""
SLOW_BYTES_PER_S: Final = 64 << 10


class Ending(enum.StrEnum):
    """The reason why a connection is ended; the label of penstock_ended_connections_total."""

    IDLE = "idle"
    ROOM = "room"
    STALLED = "stalled"
    LATE_REQUEST = "late_request"
    SLOW_REQUEST = "slow_request"
    SLOW_REPLY = "slow_reply"
    UNAUTHENTICATED = "unauthenticated"
    REVOKED = "revoked"
    CONNECTION_RATE = "connection_rate"


class Sample(NamedTuple):
    """The state of a connection at one look: bytes, and seconds of the monotonic clock."""

    at_s: float
    request: int
    """Number of the request that is being received."""
    received_bytes: int
    """Bytes of it that came; 0: none is being received."""
    missing_bytes: int
    readable_bytes: int
    """Bytes that wait in the socket."""
    unsent_bytes: int
    left_bytes: int
    """Bytes of all replies so far that are no longer unsent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The limits of waiting for a peer.

    A request may take `request_s`, and a second more for every SLOW_BYTES_PER_S that came of it.
    """

    stall_s: float
    request_s: float


class Movement:
    """The results of the looks at one connection so far.

    Args:
        first: the look that the next one is compared with.
    """

    __slots__ = ("_last", "bytes_per_s", "owed_s", "slow", "still_s")

    def __init__(self, first: Sample) -> None:
        self._last = first
        self.owed_s = 0.0
        """For how long the peer has owed bytes of the request that it has begun."""
        self.still_s = 0.0
        """For how long nothing moved."""
        self.slow: Ending | None = None
        """SLOW_REQUEST or SLOW_REPLY where that is true of the last span."""
        self.bytes_per_s = 0.0

    def follow(self, now: Sample, patience: Patience) -> Ending | None:
        """Compare with the look before.

        Returns:
            Why the connection must end; None: it may stay.
        """
        last, self._last = self._last, now
        span_s = now.at_s - last.at_s
        if span_s <= 0:
            return None
        is_same = now.request == last.request
        owes = now.received_bytes > 0 and now.readable_bytes < min(
            now.missing_bytes, READABLE_BYTES
        )
        arrived = now.received_bytes + now.readable_bytes
        if is_same:
            arrived -= last.received_bytes + last.readable_bytes
        left = max(0, now.left_bytes - last.left_bytes)
        self.owed_s = (self.owed_s if is_same else 0.0) + (span_s if owes else 0.0)
        unread = now.unsent_bytes > 0 and last.unsent_bytes > 0
        moves = left > 0 if unread else arrived != 0 or not owes
        self.still_s = 0.0 if moves else self.still_s + span_s
        self._note_slowness(
            Ending.SLOW_REPLY if unread else Ending.SLOW_REQUEST if owes and is_same else None,
            (left if unread else arrived) / span_s,
        )
        if self.still_s >= patience.stall_s:
            return Ending.STALLED
        if self.owed_s >= patience.request_s + now.received_bytes / SLOW_BYTES_PER_S:
            return Ending.LATE_REQUEST
        return None

    def _note_slowness(self, ending: Ending | None, bytes_per_s: float) -> None:
        self.slow = ending if bytes_per_s < SLOW_BYTES_PER_S else None
        self.bytes_per_s = bytes_per_s
