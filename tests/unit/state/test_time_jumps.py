"""A process that starts after a jump of journal time compares its clock with the time before."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.believed_time import START_GAP_MS
from penstock.state.commands import Noop, SetFeatureLevel, SetJournalTime
from penstock.state.read.queries import Queries
from penstock.state.schema import TRANSACTIONS_LEVEL
from penstock.state.time_jumps import (
    JUMP_MS,
    MARK_MS,
    YOUNG_MS,
    Jump,
    Marks,
    decoded,
    encoded,
    moved,
    without,
)
from unit.state.test_journal_time import DAY, NOW, Journal

MINUTE = 60_000


def after(*times_ms: int) -> Marks:
    marks = Marks(0, None)
    for time_ms in times_ms:
        marks = moved(marks, time_ms)
    return marks


def test_time_that_goes_on_has_no_jump() -> None:
    times = [NOW + step * 10 * MINUTE for step in range(20)]
    marks = after(*times)
    assert marks.jump is None
    assert times[-1] - marks.mark_ms < MARK_MS


def test_a_jump_is_left_out_for_an_hour() -> None:
    marks = after(NOW, NOW + 1, NOW + 18 * 60 * MINUTE)
    at = NOW + 18 * 60 * MINUTE
    assert marks.jump == Jump(NOW, at)
    assert without(marks.jump, at) == NOW
    assert without(marks.jump, at + 7 * MINUTE) == NOW + 7 * MINUTE
    assert without(marks.jump, at + YOUNG_MS) == at + YOUNG_MS
    assert without(marks.jump, NOW + 1) == NOW + 1, "of a state from before it"


def test_two_jumps_within_an_hour_are_one() -> None:
    marks = after(NOW, NOW + DAY, NOW + DAY + 20 * MINUTE, NOW + 2 * DAY)
    assert marks.jump == Jump(NOW + 20 * MINUTE, NOW + 2 * DAY)
    later = after(
        NOW, NOW + DAY, *(NOW + DAY + n * 20 * MINUTE for n in range(1, 5)), NOW + 2 * DAY
    )
    assert later.jump == Jump(NOW + DAY + 80 * MINUTE, NOW + 2 * DAY)


def test_a_jump_that_is_set_back_is_forgotten() -> None:
    assert after(NOW, NOW + DAY, NOW + MINUTE) == Marks(NOW + MINUTE, None)
    assert after(NOW, NOW + DAY, NOW + 2 * DAY, NOW + DAY) == Marks(NOW + DAY, None)


@given(st.lists(st.integers(0, 4 * START_GAP_MS), max_size=30))
def test_each_gap_that_a_start_would_see_is_a_jump(steps: list[int]) -> None:
    """And no shorter one is, but for what the mark trails by."""
    marks, time_ms = moved(Marks(0, None), NOW), NOW
    for step in steps:
        before, jump = time_ms, marks.jump
        time_ms += step
        marks = moved(marks, time_ms)
        assert 0 <= time_ms - marks.mark_ms < MARK_MS
        if step > JUMP_MS:
            assert marks.jump is not None
            assert marks.jump.to_ms == time_ms
            assert without(marks.jump, time_ms) <= before
        elif step <= JUMP_MS - MARK_MS:
            assert marks.jump == jump
        assert decoded(encoded(marks.jump)) == marks.jump


def test_the_state_keeps_the_jump_and_a_query_leaves_it_out(tmp_path: Path) -> None:
    below = TRANSACTIONS_LEVEL - 1
    with closing(
        Journal(tmp_path, level=below, level_max=TRANSACTIONS_LEVEL, stamp_ms=NOW)
    ) as journal:
        assert journal.time_ms == NOW

        def at(time_ms: int, *commands: object) -> int:
            journal.send(*(commands or (Noop(),)), stamp_ms=time_ms, agent_ms=time_ms)  # type: ignore[arg-type]
            journal.replica.commit()
            with closing(Queries(tmp_path / "state.sqlite")) as queries:
                return queries.steady_ms(journal.time_ms)

        assert at(NOW + DAY) == NOW + DAY, "below the level nothing is kept"
        at(NOW + DAY, SetFeatureLevel(level=TRANSACTIONS_LEVEL))
        assert at(NOW + DAY + MINUTE) == NOW + DAY + MINUTE
        assert at(NOW + 9 * DAY) == NOW + DAY + MINUTE
        assert at(NOW + 9 * DAY + MINUTE) == NOW + DAY + 2 * MINUTE
        back_ms = NOW + DAY + 5 * MINUTE
        command = SetJournalTime(time_ms=back_ms, begins=True, rows_max=100)
        assert at(back_ms, command) == back_ms
        assert journal.time_ms == back_ms


def test_an_entry_that_comes_again_leaves_the_marks_alone(tmp_path: Path) -> None:
    """As it leaves all of the state alone, however late it comes."""
    with closing(
        Journal(tmp_path, level=TRANSACTIONS_LEVEL, level_max=TRANSACTIONS_LEVEL, stamp_ms=NOW)
    ) as journal:
        journal.send(Noop(), stamp_ms=NOW + 1, agent_ms=NOW + DAY)
        _, body = journal.rows[-1]
        journal.take(NOW + DAY, body)
        assert journal.time_ms == NOW + DAY
        journal.replica.commit()
        with closing(Queries(tmp_path / "state.sqlite")) as queries:
            assert queries.steady_ms(journal.time_ms) == NOW + DAY
