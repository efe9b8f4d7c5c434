"""Logs: one line per event on standard error, and a limit for lines that could be endless."""

import logging
import sys
import time
from typing import Final

from penstock.ports.clock import Clock

FORMAT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s"
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%S"


class OneLineFormatter(logging.Formatter):
    """A record on one line, so that whoever reads lines never reads half of one. Tracebacks, which
    tell of our own bugs, keep theirs. Times are UTC, so that logs of machines can be laid side by
    side."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        message = record.getMessage()
        if "\n" in message or "\r" in message:
            record = logging.makeLogRecord(record.__dict__)
            record.msg = message.replace("\r", "\\r").replace("\n", "\\n")
            record.args = None
        return super().format(record)


def configure_logs(level: str) -> None:
    """Write lines of at least `level` (debug, info, warning, error) to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter(FORMAT, TIME_FORMAT))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


class RateLimit:
    """Says which of many like events may have a line: so many per interval, then a count.

    Args:
        clock: measures the interval.
        interval_s: its length, in seconds.
        line_count_max: lines in one interval.
    """

    def __init__(self, clock: Clock, *, interval_s: float = 10.0, line_count_max: int = 5) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._line_count_max = line_count_max
        self._started_s = clock.monotonic_s()
        self._line_count = 0
        self._suppressed_count = 0

    def allow(self) -> int | None:
        """None: say nothing. Otherwise a line may be written, and the number is how many were
        kept back since the last one."""
        now_s = self._clock.monotonic_s()
        if now_s - self._started_s >= self._interval_s:
            self._started_s = now_s
            self._line_count = 0
        if self._line_count >= self._line_count_max:
            self._suppressed_count += 1
            return None
        self._line_count += 1
        suppressed, self._suppressed_count = self._suppressed_count, 0
        return suppressed
