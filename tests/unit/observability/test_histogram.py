"""A histogram counts each value once, under the least bound that is not below it."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.observability.histogram import SECONDS_BOUNDS, Histogram


@given(st.lists(st.floats(min_value=0, max_value=100)))
def test_cumulative_counts_are_the_numbers_of_values_up_to_each_bound(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    rows = histogram.cumulative()
    expected = [sum(value <= bound for value in values) for bound in SECONDS_BOUNDS]
    assert [count for _, count in rows] == [*expected, len(values)]
    assert rows[-1][0] == "+Inf"
    assert histogram.count == len(values)
    assert abs(histogram.sum - sum(values)) < 1e-6
