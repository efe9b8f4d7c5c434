"""Deadlines of the journal on PostgreSQL, and the settings of each connection."""

from dataclasses import dataclass
from typing import Final

from penstock.system.backoff import Backoff

KEEPALIVE: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""libpq's parameters: a peer that is gone is noticed within 11 s also while nothing is sent."""

CONNECT_AGAIN: Final = Backoff(first_s=0.05, most_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings:
    """Every call has a deadline here, by asyncio: a hung server can't hang an agent."""

    connect_timeout_s: int = 5
    append_timeout_s: float = 10.0
    """After it the connection is given up and the outcome unknown."""
    call_timeout_s: float = 5.0
    lock_timeout_ms: int = 3_000
    """Server side: how long a seal waits for the append that holds its position."""
    backoff: Backoff = CONNECT_AGAIN
    """Between attempts to connect; calls in between fail at once."""
    notifies: bool = True
    """Send hints by NOTIFY and listen to them; false where there is no such thing."""
    notify_ms: int = 2
    """From the first append to the hint that covers it and those after it."""
    notify_quiet_ms: int = 50
    """No hint is sent within this time of another: the readers that it woke read often enough."""
    busy_poll_ms: int = 3
    """From read to read, where hints are left out, while `busy_ms` have not passed since a row:
    reading and applying included, else a follower at 1,000 rows/s lagged by as much again."""
    readers_at_full_pace: int = 10
    """Among more agents each reads as much less often, so that all of them together ask the
    database at most 3,300 times a second. An agent's own append is read at once all the same."""
    busy_pause_ms: int = 1
    """The least between reads, however long reading and applying take."""
    busy_ms: int = 100
    allow_fsync_off: bool = False
    """Serve on a server with `fsync = off`, which loses acknowledged records in a power cut."""
