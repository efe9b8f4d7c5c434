"""A bucket's rate over any time, whatever was taken when."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka.quotas.bucket import Bucket

rates = st.floats(0.5, 1e6)
steps = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 30)), min_size=1, max_size=50)


@given(rates, st.floats(1, 20), steps)
def test_who_waits_as_told_gets_the_rate_and_a_burst(rate, burst_s, taken):
    """Amounts are in seconds of the rate."""
    bucket = Bucket(rate, burst_s, 0.0)
    now_s = total = 0.0
    for pause_s, seconds in taken:
        now_s += pause_s + bucket.wait_s(now_s + pause_s)
        bucket.take(seconds * rate, now_s)
        total += seconds
    end_s = now_s + bucket.wait_s(now_s)
    assert total <= (end_s + burst_s) * (1 + 1e-6) + 1e-6
    # Not held up for longer than the rate asks for: where something is owed, all was given.
    if bucket.wait_s(now_s) > 1e-3:
        assert total >= burst_s * (1 - 1e-6)


@given(rates, st.floats(1, 20), st.floats(0, 100))
def test_what_is_above_the_limit_is_waited_for_as_in_windows(rate, burst_s, extra_s):
    bucket = Bucket(rate, burst_s, 0.0)
    bucket.take((burst_s + extra_s) * rate, 0.0)
    # Kafka: (observed - limit) / limit * window.
    assert abs(bucket.wait_s(0.0) - extra_s) <= 1e-6 * (1 + extra_s)
    assert bucket.is_overdrawn(0.0) == (bucket.wait_s(0.0) > 0)


def test_another_rate_holds_from_now_on_and_what_is_owed_stays():
    bucket = Bucket(100, 10, 0.0)
    bucket.take(1_500, 0.0)
    assert bucket.wait_s(0.0) == 5
    bucket.set_rate(10, 0.0)
    assert bucket.wait_s(0.0) == 5, "as long as before, in the new rate's tokens"
    assert bucket.size == 100
    assert not bucket.is_full(14.9)
    assert bucket.is_full(15.0)
    bucket.set_rate(1_000, 20.0)
    bucket.take(10_000, 20.0)
    assert bucket.wait_s(20.0) == 0


def test_a_clock_that_stands_still_gives_nothing():
    bucket = Bucket(1, 10, 5.0)
    bucket.take(11, 5.0)
    assert bucket.wait_s(4.0) == bucket.wait_s(5.0) == 1
