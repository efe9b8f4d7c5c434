"""Percentiles by nearest rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.load.spread import percentile_ms, spread


@given(
    durations_ns=st.lists(st.integers(0, 10**12), min_size=1, max_size=50),
    percent=st.sampled_from([1.0, 50.0, 99.0, 99.9, 100.0]),
)
def test_a_percentile_is_the_least_duration_that_so_many_dont_exceed(
    durations_ns: list[int], percent: float
) -> None:
    ordered = sorted(durations_ns)
    enough = [
        duration
        for duration in ordered
        if sum(other <= duration for other in ordered) >= percent / 100 * len(ordered) - 1e-9
    ]
    assert percentile_ms(ordered, percent) == round(enough[0] / 1e6, 3)


def test_the_order_of_durations_doesnt_matter() -> None:
    found = spread([3_000_000, 1_000_000, 2_000_000])
    assert (found.count, found.p50_ms, found.p99_ms, found.max_ms) == (3, 2.0, 3.0, 3.0)


@pytest.mark.parametrize("percent", [50, 100])
def test_of_no_durations_every_percentile_is_0(percent: int) -> None:
    assert percentile_ms([], percent) == 0.0
