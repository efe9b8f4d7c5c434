"""Who is suspected, by positions and time alone."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.membership.silence import SilenceDetector, Standing


def test_only_silence_while_the_journal_answers_counts():
    detector = SilenceDetector(1.5)
    detector.look([Standing(2, 1, 100)], 10.0)
    assert detector.suspects(11.6, answering_since_s=0.0) == [Standing(2, 1, 100)]
    assert detector.suspects(11.5, answering_since_s=0.0) == []
    assert detector.suspects(99.0, answering_since_s=None) == []
    assert detector.suspects(99.0, answering_since_s=97.6) == []
    for now_s, suspected in ((10.7, []), (10.8, [Standing(2, 1, 100)])):
        assert detector.suspects(now_s, answering_since_s=0.0, longer_than_s=0.75) == suspected


def test_an_entry_or_a_new_epoch_begins_the_count_anew():
    detector = SilenceDetector(1.5)
    detector.look([Standing(2, 1, 100), Standing(3, 1, 50)], 10.0)
    detector.look([Standing(2, 1, 101), Standing(3, 2, 50)], 11.0)
    assert detector.suspects(12.0, answering_since_s=0.0) == []
    assert detector.silent_s(2, 12.0) == 1.0
    detector.look([Standing(2, 1, 101)], 12.9)
    # What is suspected is what was seen; agents that are gone are forgotten.
    assert detector.suspects(12.9, answering_since_s=0.0) == [Standing(2, 1, 101)]
    assert detector.silent_s(3, 12.9) == 0.0


@given(
    st.lists(st.tuples(st.floats(0.01, 1.0), st.booleans()), max_size=60),
    st.floats(0.5, 3.0),
)
def test_whoever_speaks_often_enough_is_never_suspected(steps, timeout_s):
    detector = SilenceDetector(timeout_s)
    now_s, position, last_s = 0.0, 1, 0.0
    detector.look([Standing(7, 1, position)], now_s)
    for step_s, speaks in steps:
        now_s += step_s
        if speaks:
            position += 1
            last_s = now_s
        detector.look([Standing(7, 1, position)], now_s)
        suspected = bool(detector.suspects(now_s, answering_since_s=0.0))
        assert suspected == (now_s - last_s > timeout_s)
