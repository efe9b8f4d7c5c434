"""The real clock and randomness are what their ports say."""

import time

from penstock.ports.clock import Clock
from penstock.ports.random import Random
from penstock.system import SystemClock, SystemRandom


def test_the_clock_is_the_systems() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1_000_000
    assert before <= clock.now_ms() <= time.time_ns() // 1_000_000
    assert clock.monotonic_s() <= clock.monotonic_s()


def test_randomness_is_within_bounds_and_not_constant() -> None:
    random: Random = SystemRandom()
    assert len(random.token_bytes(33)) == 33
    assert random.token_bytes(16) != random.token_bytes(16)
    assert {random.below(3) for _ in range(200)} == {0, 1, 2}
