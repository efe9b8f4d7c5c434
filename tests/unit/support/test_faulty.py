"""The faulty store does what its seed says, and the manual clock what the test says."""

import pytest

from penstock.model.errors import NotFoundError, RetryableError
from penstock.objects import LocalStore
from support.simulated.clock import ManualClock
from support.simulated.device import SimulatedDevice
from support.simulated.faulty import Faulty
from support.simulated.randomness import SeededRandom


async def test_a_failed_put_did_nothing_and_a_lost_one_all() -> None:
    inner = LocalStore(SimulatedDevice())
    failing = Faulty(inner, random=SeededRandom(1), fail_percent=100)
    with pytest.raises(RetryableError, match="request was lost"):
        await failing.put("k", [b"x"])
    with pytest.raises(NotFoundError):
        await inner.size("k")
    losing = Faulty(inner, random=SeededRandom(1), lost_percent=100)
    with pytest.raises(RetryableError, match="reply was lost"):
        await losing.put("k", [b"x"])
    assert await inner.size("k") == 1
    assert (failing.fault_count, losing.fault_count) == (1, 1)


async def test_delays_pass_on_the_tests_clock() -> None:
    clock = ManualClock()
    store = Faulty(
        LocalStore(SimulatedDevice()),
        random=SeededRandom(2),
        delay_percent=100,
        delay_s_max=10.0,
        wait=clock.wait,
    )
    await store.put("k", [b"x"])
    assert 0 < clock.monotonic_s() < 10


def test_the_manual_clock_stands_still_and_its_wall_may_step_back() -> None:
    clock = ManualClock(now_ms=1000)
    assert (clock.now_ms(), clock.monotonic_s()) == (1000, 0.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic_s()) == (2500, 1.5)
    clock.set_wall(7)
    assert (clock.now_ms(), clock.monotonic_s()) == (7, 1.5)
