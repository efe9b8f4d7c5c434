"""Pauses between attempts: they double, end at a bound, and are spread by chance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.system.backoff import Backoff
from support.simulated.randomness import SeededRandom

PAUSES = Backoff(first_s=0.5, most_s=3.0)


@pytest.mark.parametrize(
    ("failures", "longest_s"),
    [(-1, 0.0), (0, 0.0), (1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (5, 3.0), (10**6, 3.0)],
)
def test_a_pause_doubles_with_each_failure_up_to_the_bound(failures: int, longest_s: float) -> None:
    assert PAUSES.after(failures) == longest_s


@given(failures=st.integers(1, 100), seed=st.integers(0, 99), least=st.floats(0, 1))
def test_chance_stays_between_the_least_share_and_the_longest_pause(
    failures: int, seed: int, least: float
) -> None:
    drawn_s = PAUSES.jittered(failures, SeededRandom(seed), least=least)
    longest_s = PAUSES.after(failures)
    assert least * longest_s - 1e-9 <= drawn_s <= longest_s + 1e-9
    assert drawn_s > 0


def test_callers_that_failed_together_dont_return_together() -> None:
    random = SeededRandom(1)
    assert len({PAUSES.jittered(3, random) for _ in range(20)}) == 20


@pytest.mark.parametrize(("first_s", "most_s"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0)])
def test_a_backoff_that_never_waits_or_begins_past_its_bound_is_a_bug(
    first_s: float, most_s: float
) -> None:
    with pytest.raises(AssertionError):
        Backoff(first_s=first_s, most_s=most_s)
