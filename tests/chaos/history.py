"""What clients did and saw, as values: the input of the checker.

Times are seconds of one monotonic clock, that of the machine all clients run on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """What the client library said of a send."""

    ACKED = "acked"
    FAILED = "failed"
    """Surely not stored: refused before it was sent."""
    UNKNOWN = "unknown"
    """A timeout, or an error after it was sent: stored or not."""


@dataclass(frozen=True, slots=True)
class Send:
    """One record sent. `number` counts a producer's sends to a partition, from 0; `value` is
    unique in the history."""

    producer: str
    library: str
    partition: int
    number: int
    value: str
    outcome: Outcome
    offset: int
    """As acknowledged; -1 where the library didn't say."""
    began_s: float
    ended_s: float
    idempotent: bool = True


class Seen(NamedTuple):
    """One record polled."""

    partition: int
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Poll:
    """Records that one poll returned. `session` changes with each assignment, rebalance or seek:
    order is promised within one only."""

    consumer: str
    library: str
    session: str
    seen: tuple[Seen, ...]
    ended_s: float


@dataclass(frozen=True, slots=True)
class EndOffset:
    """An answer to ListOffsets (latest)."""

    client: str
    partition: int
    offset: int
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's offset, committed (`is_fetch` false, answered without error) or fetched."""

    group: str
    partition: int
    offset: int
    is_fetch: bool
    began_s: float
    ended_s: float


@dataclass(slots=True)
class History:
    """Everything, in no particular order but within one client."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    end_offsets: list[EndOffset] = field(default_factory=list)
    committed: list[CommittedOffset] = field(default_factory=list)
    final: list[Seen] = field(default_factory=list)
    """All records, read from the beginning once everything was healed."""
