"""A wall clock's step is believed only after the clock has stood there; drift is followed."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.believed_time import STEP_MS, BelievedTime, Reading, Turn

NOW = 1_790_000_000_000
DAY = 86_400_000
AFTER_S = 600.0


def believing(after_s: float = AFTER_S) -> BelievedTime:
    return BelievedTime(Reading(NOW, 0.0), after_ms=round(after_s * 1000))


def at(elapsed_s: float, off_ms: int = 0) -> Reading:
    return Reading(NOW + round(elapsed_s * 1000) + off_ms, elapsed_s)


def test_a_step_is_believed_after_it_has_stood() -> None:
    time = believing()
    assert time.look(at(1, DAY)) is Turn.DOUBTED
    assert time.look(at(300, DAY)) is None
    assert time.look(at(600.5, DAY)) is None
    assert time.doubt is not None
    assert time.anchor.at(600.5) == at(600.5).wall_ms
    assert time.look(at(601, DAY)) is Turn.BELIEVED
    assert time.doubt is None
    assert time.anchor == at(601, DAY)


def test_a_clock_that_comes_back_was_never_believed() -> None:
    time = believing()
    assert time.look(at(1, -DAY)) is Turn.DOUBTED
    assert time.look(at(599, 3)) is Turn.RETURNED
    assert time.look(at(600, -DAY)) is Turn.DOUBTED
    assert time.look(at(602, -DAY)) is None, "it has not stood: it was back meanwhile"


def test_another_step_begins_anew() -> None:
    time = believing()
    time.look(at(1, DAY))
    assert time.look(at(590, 2 * DAY)) is Turn.DOUBTED
    assert time.look(at(1_100, 2 * DAY)) is None
    assert time.look(at(1_190, 2 * DAY)) is Turn.BELIEVED


def test_drift_is_followed_before_and_while_a_step_stands() -> None:
    time = believing()
    drift = 50  # ms per second, as fast as a daemon slews
    for second in range(1, 2_000):
        assert time.look(at(second, drift * second)) is None
    step = DAY + drift * 2_000
    turns = [
        time.look(at(second, step + drift * (second - 2_000))) for second in range(2_000, 2_700)
    ]
    assert [turn for turn in turns if turn] == [Turn.DOUBTED, Turn.BELIEVED]


def test_a_clock_that_runs_twice_as_fast_is_in_doubt() -> None:
    time = believing()
    turns = [time.look(at(second, 1_000 * second)) for second in range(1, 60)]
    assert Turn.DOUBTED in turns


def test_at_the_start_a_gap_of_an_hour_is_in_doubt() -> None:
    for gap_ms, turn in (
        (3_600_000, None),
        (3_600_001, Turn.DOUBTED),
        (-3_600_001, Turn.DOUBTED),
        (21 * DAY, Turn.DOUBTED),
    ):
        time = believing()
        assert time.start_from(NOW - gap_ms, at(0)) is turn
        if turn is not None:
            assert time.anchor.at(10.0) == NOW - gap_ms + 10_000
            assert time.look(at(599)) is None
            assert time.look(at(600)) is Turn.BELIEVED


def test_with_no_time_to_stand_a_step_is_believed_at_once() -> None:
    assert believing(0).look(at(1, DAY)) is Turn.BELIEVED


@given(
    steps=st.lists(
        st.tuples(st.floats(0.1, 400.0), st.sampled_from([0, 2_000, DAY, -DAY, 3_650 * DAY])),
        max_size=20,
    )
)
def test_what_is_believed_has_stood(steps: list[tuple[float, int]]) -> None:
    """The believed time leaves where it goes on by itself only for a clock that every reading of
    the last ten minutes agreed with."""
    time = believing()
    now_s = 0.0
    readings: list[Reading] = []
    believed_off = 0
    for wait_s, off_ms in steps:
        now_s += wait_s
        reading = at(now_s, off_ms)
        readings.append(reading)
        turn = time.look(reading)
        assert (turn is Turn.DOUBTED) <= (time.doubt is not None)
        if turn is Turn.BELIEVED:
            believed_off = off_ms
            recent = [one for one in readings if one.elapsed_s > now_s - AFTER_S]
            assert all(abs(one.at(now_s) - reading.wall_ms) <= STEP_MS for one in recent)
        assert abs(time.anchor.at(now_s) - at(now_s, believed_off).wall_ms) <= STEP_MS
