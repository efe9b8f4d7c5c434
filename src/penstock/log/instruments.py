"""What the log tells about itself: a port that the metrics implement."""

from typing import Protocol

from penstock.log.append.lane import Delivery


class LogInstruments(Protocol):
    """Called on the event loop, on the hot path: must cost about a microsecond."""

    def committed(self, delivery: Delivery) -> None:
        """A group commit is over; it carries its WAL and journal seconds and its bytes."""
        ...


class NoInstruments:
    """Tells nobody."""

    def committed(self, delivery: Delivery) -> None:
        """Ignore it."""
