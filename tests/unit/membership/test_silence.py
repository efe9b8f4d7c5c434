"""Which agents are suspected, by positions and time alone."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.membership.silence import SilenceDetector, Standing

TWO = [Standing(2, 1, 100)]


def detector_of(timeout_s: float, *, rejoin_s: float = 3.0) -> SilenceDetector:
    return SilenceDetector(timeout_s, away_s=0.5, rejoin_s=rejoin_s)


def test_silence_beyond_the_timeout_is_suspected():
    detector = detector_of(1.5)
    detector.look(TWO, 10.0, answered_s=10.0)
    for now_s, suspected in ((11.5, []), (11.6, TWO)):
        assert detector.suspects(now_s) == suspected
    for now_s, suspected in ((10.7, []), (10.8, TWO)):
        assert detector.suspects(now_s, longer_than_s=0.75) == suspected


def test_an_entry_or_a_new_epoch_begins_the_count_again():
    detector = detector_of(1.5)
    detector.look([*TWO, Standing(3, 1, 50)], 10.0, answered_s=10.0)
    for now_s in (10.4, 10.8):
        detector.look([*TWO, Standing(3, 1, 50)], now_s, answered_s=now_s)
    detector.look([Standing(2, 1, 101), Standing(3, 2, 50)], 11.0, answered_s=11.0)
    assert detector.suspects(12.0) == []
    assert detector.silent_s(2, 12.0) == 1.0
    for now_s in (11.5, 12.0, 12.5, 12.9):
        detector.look([Standing(2, 1, 101)], now_s, answered_s=now_s)
    # What is suspected is what was seen; agents that are gone are forgotten.
    assert detector.suspects(12.9) == [Standing(2, 1, 101)]
    assert detector.silent_s(3, 12.9) == 0.0


def looked(detector: SilenceDetector, first_s: float, last_s: float, answered_s: float | None):
    """Looks each 0.1 s at an agent without an entry; with None the journal answers all the time."""
    for step in range(round((last_s - first_s) * 10) + 1):
        now_s = first_s + step / 10
        detector.look(TWO, now_s, answered_s=now_s if answered_s is None else answered_s)


def test_the_time_that_the_journal_was_away_counts_not_and_as_much_again():
    detector = detector_of(1.5)
    looked(detector, 10.0, 10.4, None)
    looked(detector, 10.5, 12.4, 10.4)
    assert detector.is_away
    assert detector.suspects(99.0) == [], "no agent can be heard"
    looked(detector, 12.5, 12.5, None)
    # 0.4 s before, and from 12.5 s on after 2.1 s of grace.
    for now_s, suspected in ((15.6, []), (15.8, TWO)):
        assert detector.suspects(now_s) == suspected


def test_the_grace_is_bounded_and_what_was_heard_meanwhile_is_given_no_more():
    detector = detector_of(1.5, rejoin_s=1.0)
    looked(detector, 10.0, 10.4, None)
    looked(detector, 10.5, 69.0, 10.4)
    # The row came, though none of the observer's own did.
    detector.look([Standing(2, 1, 101)], 69.1, answered_s=10.4)
    detector.look([Standing(2, 1, 101)], 69.2, answered_s=69.2)
    for now_s, suspected in ((71.6, []), (71.8, [Standing(2, 1, 101)])):
        assert detector.suspects(now_s) == suspected


def test_an_observer_that_was_stopped_accuses_at_no_look_that_comes_late():
    detector = detector_of(1.5)
    looked(detector, 10.0, 10.4, None)
    detector.look(TWO, 13.0, answered_s=13.0)
    assert detector.is_away
    assert detector.suspects(13.0) == []
    detector.look(TWO, 13.1, answered_s=13.1)
    assert detector.suspects(13.1) == []
    assert detector.suspects(13.1 + 0.4 + 2.7 + 1.5) == TWO


# A step of 0.5 s, by sums of which now is made, may be longer than `away_s` in its last bit.
@given(
    st.lists(st.tuples(st.floats(0.01, 0.49), st.booleans()), max_size=60),
    st.floats(0.5, 3.0),
)
def test_an_agent_that_speaks_often_enough_is_never_suspected(steps, timeout_s):
    detector = detector_of(timeout_s)
    now_s, position, last_s = 0.0, 1, 0.0
    detector.look([Standing(7, 1, position)], now_s, answered_s=now_s)
    for step_s, speaks in steps:
        now_s += step_s
        if speaks:
            position += 1
            last_s = now_s
        detector.look([Standing(7, 1, position)], now_s, answered_s=now_s)
        suspected = bool(detector.suspects(now_s))
        assert suspected == (now_s - last_s > timeout_s)


@given(
    before_s=st.floats(0.0, 0.4),
    away_s=st.floats(0.6, 30.0),
    late=st.floats(0.0, 1.0),
    timeout_s=st.floats(1.0, 10.0),
)
def test_an_agent_may_come_back_later_by_the_time_of_the_outage_and_a_dead_one_is_found(
    before_s, away_s, late, timeout_s
):
    """Where it comes back at all: with a timeout of more than its silence before the outage."""
    detector = detector_of(timeout_s)
    detector.look(TWO, 0.0, answered_s=0.0)
    detector.look(TWO, before_s, answered_s=before_s)
    now_s = before_s
    while now_s < before_s + away_s:
        now_s += 0.1
        detector.look(TWO, now_s, answered_s=before_s)
        assert detector.suspects(now_s) == []
    back_s = now_s + 0.1
    until_s = back_s + late * min(away_s, 3.0)
    now_s = back_s
    while now_s < until_s:
        detector.look(TWO, now_s, answered_s=now_s)
        assert detector.suspects(now_s) == []
        now_s += 0.1
    while now_s < back_s + 3.0 + timeout_s:
        detector.look(TWO, now_s, answered_s=now_s)
        now_s += 0.1
    assert detector.suspects(now_s + 0.2) == TWO
