"""Requests for metadata create so many topics a second."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.auto_creation import AutoCreation

ASKED = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 60)), min_size=1, max_size=30)
"""Seconds since the last request, and new names."""


@given(per_s=st.integers(1, 20), asked=ASKED)
def test_no_stretch_of_time_has_more_than_its_seconds_and_one_more(
    per_s: int, asked: list[tuple[float, int]]
) -> None:
    limit = AutoCreation(per_s)
    now_s = 1000.0
    allowed: list[tuple[float, int]] = []
    for rest_s, wanted in asked:
        now_s += rest_s
        count = limit.take(wanted, now_s)
        assert 0 <= count <= wanted
        allowed.append((now_s, count))
    for first, (start_s, _) in enumerate(allowed):
        total = 0
        for end_s, count in allowed[first:]:
            total += count
            assert total <= per_s * (end_s - start_s + 1) + 1e-6


def test_names_beyond_the_rate_are_created_in_the_seconds_after() -> None:
    limit = AutoCreation(500)
    created = [limit.take(2_000, 10.0)]
    while sum(created) < 2_000:
        created.append(limit.take(2_000 - sum(created), 10.0 + len(created)))
    assert created == [500, 500, 500, 500]
