"""Since when the journal answers: breaks of it, and of the one that looks."""

from penstock.order.head_watch import HeadWatch


def test_it_answers_from_the_first_answer_on():
    watch = HeadWatch(1.0)
    watch.look(10.0, float("-inf"))
    assert watch.since_s is None
    assert watch.answered_for_s(10.0) == 0.0
    watch.look(10.2, 10.1)
    assert watch.since_s == 10.2
    for tenth in range(1, 50):
        watch.look(10.2 + tenth / 10, 10.1 + tenth / 10)
    assert watch.since_s == 10.2
    assert round(watch.answered_for_s(15.2), 3) == 5.0


def test_an_answer_that_is_too_old_is_a_break():
    watch = HeadWatch(1.0)
    watch.look(10.0, 10.0)
    watch.look(10.5, 10.0)
    watch.look(11.0, 10.0)
    assert watch.since_s == 10.0
    watch.look(11.1, 10.0)
    assert watch.since_s is None
    watch.look(11.2, 11.2)
    assert watch.since_s == 11.2


def test_a_look_that_comes_late_is_a_break_whatever_it_finds():
    """The process was stopped: in that time it would have heard nothing."""
    watch = HeadWatch(1.0)
    watch.look(10.0, 10.0)
    watch.look(40.0, 40.0)
    assert watch.since_s == 40.0
