"""Logs: one line per event on standard error."""

import logging
import sys
import time
from typing import Final

FORMAT: Final = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s"
TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%S"


class OneLineFormatter(logging.Formatter):
    """Writes a record on one line, so that programs that read lines never read half of one.
    Tracebacks, which come of our own bugs, keep their lines. Times are UTC, so that logs of several
    machines can be merged."""

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
