"""The log reports its events to this port, which the metrics implement."""

from typing import Protocol

from penstock.log.append.flight import Flight
from penstock.log.append.group_commit import GroupCommit
from penstock.log.findings import DamageKind


class LogInstruments(Protocol):
    """Called on the event loop, on the hot path: must cost about a microsecond."""

    def committed(self, group: GroupCommit) -> None:
        """A group commit is over; it carries its WAL and journal seconds and its bytes."""
        ...

    def flushed(self, flight: Flight) -> None:
        """A flush is over; it carries its seconds, and the error if it failed."""
        ...

    def damaged(self, kind: DamageKind) -> None:
        """Stored bytes were found damaged or missing."""
        ...

    def healed(self) -> None:
        """Bytes that came damaged were right when they were read once more."""
        ...

    def read_failed(self, kind: str) -> None:
        """A fetch got an error of a partition; `kind` is its type."""
        ...


class NoInstruments:
    """Ignores all events."""

    def committed(self, group: GroupCommit) -> None:
        """Ignore it."""

    def flushed(self, flight: Flight) -> None:
        """Ignore it."""

    def damaged(self, kind: DamageKind) -> None:
        """Ignore it."""

    def healed(self) -> None:
        """Ignore it."""

    def read_failed(self, kind: str) -> None:
        """Ignore it."""
