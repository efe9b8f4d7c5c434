"""Three times of one wall clock: to stamp, to measure ages, and to tell others."""

import time

import pytest

from penstock.ports.clock import AgeClock, Clock
from penstock.system import BelievedClock, SystemClock
from penstock.system.clock import _clock_through_sleep, elapsed_s
from support.simulated.clock import ManualClock

NOW = 1_790_000_000_000
DAY = 86_400_000


def test_in_doubt_stamps_take_the_later_time_and_ages_wait() -> None:
    wall = ManualClock(now_ms=NOW)
    clock = BelievedClock(wall, after_ms=600_000)
    for off_ms in (DAY, -DAY):
        wall.set_wall(wall.now_ms() + off_ms)
        before, after = sorted((wall.now_ms(), wall.now_ms() - off_ms))
        assert (clock.now_ms(), clock.believed_ms(), clock.least_ms()) == (after, None, before)
        assert clock.doubted_ms == off_ms
        wall.advance(601)
        now_ms = wall.now_ms()
        assert (clock.now_ms(), clock.believed_ms(), clock.least_ms()) == (now_ms,) * 3
        assert clock.doubted_ms == 0


def test_a_start_after_a_gap_is_in_doubt_until_the_clock_has_stood() -> None:
    wall = ManualClock(now_ms=NOW)
    clock = BelievedClock(wall, after_ms=600_000)
    clock.start_from(NOW - 21 * DAY)
    assert (clock.now_ms(), clock.believed_ms(), clock.least_ms()) == (NOW, None, NOW - 21 * DAY)
    wall.advance(600)
    assert clock.believed_ms() == NOW + 600_000


def test_a_new_journal_has_no_time_to_compare_with() -> None:
    clock = BelievedClock(ManualClock(now_ms=NOW), after_ms=600_000)
    clock.start_from(0)
    assert clock.believed_ms() == NOW


def test_a_suspended_machine_is_no_step() -> None:
    """The clock that the wall clock is compared with goes on meanwhile."""
    wall = ManualClock(now_ms=NOW)
    clock = BelievedClock(wall, after_ms=600_000, elapsed_s=lambda: wall.now_ms() / 1000)
    wall.set_wall(NOW + 21 * DAY)
    assert clock.believed_ms() == NOW + 21 * DAY


def test_the_system_has_a_clock_that_counts_suspension() -> None:
    before_s = elapsed_s()
    assert before_s <= elapsed_s()
    assert before_s >= time.monotonic() - 1.0
    clock: Clock = BelievedClock(SystemClock(), after_ms=1, elapsed_s=elapsed_s)
    ages: AgeClock = BelievedClock(SystemClock(), after_ms=1)
    assert abs(clock.now_ms() - ages.least_ms()) < 60_000


def test_a_doubt_is_described_with_numbers() -> None:
    wall = ManualClock(now_ms=NOW)
    clock = BelievedClock(wall, after_ms=600_000)
    assert (clock.describe(), clock.believed_in_s) == ("", 0.0)
    wall.set_wall(NOW - 3_600_000)
    clock.look()
    wall.advance(100)
    assert clock.describe() == "this host's clock is 3600.0 s behind what was to be expected"
    assert clock.believed_in_s == 500.0


def test_where_no_clock_goes_on_in_sleep_the_monotonic_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: int) -> float:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert _clock_through_sleep() is time.monotonic
