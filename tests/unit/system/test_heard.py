"""An error after which the program goes on is counted each time and said once a minute."""

import logging

import pytest

from penstock.model.errors import RetryableError
from penstock.system.heard import Cause, Heard
from support.simulated.clock import ManualClock

logger = logging.getLogger(__name__)
CAUSE = Cause.EVENT_LOOP


def test_a_cause_has_one_line_a_minute_with_the_number_of_those_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    heard = Heard(clock)
    assert heard.counts[CAUSE] == 0
    error = RetryableError("put", "object", "the store is away")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            heard.count(CAUSE, error, logger, "going on without it")
        clock.advance(60)
        heard.count(CAUSE, error, logger, "going on without it")
    text = "going on without it: put object: the store is away"
    assert [record.getMessage() for record in caplog.records] == [
        text,
        f"{text} (2 more since the last such line)",
    ]
    assert heard.counts[CAUSE] == 4
    assert all(record.exc_info is None for record in caplog.records)


def test_an_unforeseen_error_has_its_traceback_and_one_without_text_its_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    heard = Heard(clock)
    with caplog.at_level(logging.WARNING):
        heard.count(CAUSE, ValueError("a bug"), logger, "going on")
        clock.advance(60)
        heard.count(CAUSE, TimeoutError(), logger, "going on")
    first, second = caplog.records
    assert first.exc_info is not None
    assert second.getMessage() == "going on: TimeoutError"


def test_a_line_below_the_level_that_is_written_uses_up_no_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard(ManualClock())
    with caplog.at_level(logging.INFO):
        heard.count(CAUSE, "quiet", logger, "going on", logging.DEBUG)
        heard.count(CAUSE, "loud", logger, "going on")
    assert [record.getMessage() for record in caplog.records] == ["going on: loud"]
