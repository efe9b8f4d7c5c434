"""One line a minute per kind, and no event uncounted."""

from penstock.system.seldom import INTERVAL_S, KINDS_MAX, Seldom
from support.simulated.clock import ManualClock


def test_a_kind_has_one_line_a_minute_with_the_count_of_those_between() -> None:
    clock = ManualClock()
    seldom = Seldom(clock)
    assert seldom.due("full") == 1
    assert [seldom.due("full") for _ in range(5)] == [0] * 5
    clock.advance(INTERVAL_S - 1)
    assert seldom.due("full") == 0
    clock.advance(1)
    assert seldom.due("full") == 7
    assert seldom.due("full") == 0


def test_kinds_have_minutes_of_their_own() -> None:
    seldom = Seldom(ManualClock())
    assert seldom.due("full") == 1
    assert seldom.due("late") == 1


def test_of_more_kinds_than_are_kept_the_oldest_line_is_forgotten() -> None:
    seldom = Seldom(ManualClock())
    for number in range(KINDS_MAX + 1):
        assert seldom.due(f"client {number}") == 1
    assert seldom.due(f"client {KINDS_MAX}") == 0
    assert seldom.due("client 0") == 1
