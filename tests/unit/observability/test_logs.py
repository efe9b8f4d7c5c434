"""Logs are one line per event, and endless ones are cut short."""

import logging

import pytest

from penstock.observability.logs import FORMAT, TIME_FORMAT, OneLineFormatter, RateLimit


class StillClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.now_s


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "forged\n2026 INFO x: y"])
def test_a_message_of_several_lines_is_written_as_one(text: str) -> None:
    record = logging.LogRecord("n", logging.INFO, "p", 1, "client %s", (text,), None)
    record.created = 0.0
    record.msecs = 7
    line = OneLineFormatter(FORMAT, TIME_FORMAT).format(record)
    assert "\n" not in line
    assert "\r" not in line
    assert line.startswith("1970-01-01T00:00:00.007Z INFO    n: client ")


def test_a_rate_limit_lets_some_lines_pass_and_counts_the_others() -> None:
    clock = StillClock()
    limit = RateLimit(clock, interval_s=10, line_count_max=2)
    assert [limit.allow() for _ in range(5)] == [0, 0, None, None, None]
    clock.now_s += 10
    assert [limit.allow() for _ in range(3)] == [3, 0, None]
