"""Logs are one line per event."""

import logging

import pytest

from penstock.observability.logs import FORMAT, TIME_FORMAT, OneLineFormatter


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "forged\n2026 INFO x: y"])
def test_a_message_of_several_lines_is_written_as_one(text: str) -> None:
    record = logging.LogRecord("n", logging.INFO, "p", 1, "client %s", (text,), None)
    record.created = 0.0
    record.msecs = 7
    line = OneLineFormatter(FORMAT, TIME_FORMAT).format(record)
    assert "\n" not in line
    assert "\r" not in line
    assert line.startswith("1970-01-01T00:00:00.007Z INFO    n: client ")
