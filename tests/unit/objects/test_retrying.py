"""Retries end at the deadline, wait with jitter, and never turn one put into a conflict."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from typing_extensions import Buffer

from penstock.model.errors import (
    ConflictError,
    NotFoundError,
    OverloadedError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.objects import LocalStore, Retrying
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.system.waiting import wait
from support.simulated.clock import ManualClock
from support.simulated.device import SimulatedDevice
from support.simulated.faulty import Faulty
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualClock, VirtualLoop, run


class _Failing:
    """A store of which every call fails in one way; counts them."""

    def __init__(self, error: PenstockError) -> None:
        self.error = error
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        raise self.error

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self._fail()

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        self._fail()
        return b""

    async def size(self, key: str) -> int:
        self._fail()
        return 0

    async def delete(self, keys: Sequence[str]) -> None:
        self._fail()

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        self._fail()
        yield ObjectInfo(key="", size_bytes=0, modified_ms=0)


def _retrying(store: ObjectStore, clock: ManualClock, deadline_s: float = 30.0) -> Retrying:
    return Retrying(
        store, clock=clock, random=SeededRandom(9), deadline_s=deadline_s, wait=clock.wait
    )


async def test_the_last_error_comes_out_before_the_deadline() -> None:
    clock = ManualClock()
    failing = _Failing(RetryableError("get", "k", "503"))
    with pytest.raises(RetryableError, match="503"):
        await _retrying(failing, clock).get_range("k", 0, 1)
    assert 8 < failing.calls < 100
    assert 15 < clock.monotonic_s() < 30
    with pytest.raises(RetryableError, match="503"):
        async for _ in _retrying(failing, clock).list(""):
            pass
    assert clock.monotonic_s() < 60


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("get", "k", "none"),
        ConflictError("get", "k", "there"),
        StorageFullError("get", "k", "full"),
    ],
)
async def test_what_waiting_does_not_mend_is_not_tried_again(error: PenstockError) -> None:
    clock = ManualClock()
    failing = _Failing(error)
    with pytest.raises(type(error)):
        await _retrying(failing, clock).put("k", [b"x"])
    assert (failing.calls, clock.monotonic_s()) == (1, 0.0)


@pytest.mark.parametrize("seed", range(30))
async def test_a_conditional_put_whose_reply_was_lost_has_succeeded(seed: int) -> None:
    clock, inner = ManualClock(), LocalStore(SimulatedDevice())
    faulty = Faulty(inner, random=SeededRandom(seed), fail_percent=30, lost_percent=40)
    store = _retrying(faulty, clock, deadline_s=1e6)
    await store.put("k", [b"mi", b"ne"], if_absent=True)
    assert await inner.get_range("k", 0, 4) == b"mine"


@pytest.mark.parametrize("seed", range(30))
async def test_a_conditional_put_that_lost_to_another_is_a_conflict(seed: int) -> None:
    clock, inner = ManualClock(), LocalStore(SimulatedDevice())
    await inner.put("k", [b"else"])
    faulty = Faulty(inner, random=SeededRandom(seed), fail_percent=60)
    with pytest.raises(ConflictError):
        await _retrying(faulty, clock, deadline_s=1e6).put("k", [b"mine"], if_absent=True)
    assert await inner.get_range("k", 0, 4) == b"else"


@pytest.mark.parametrize("seed", range(10))
async def test_a_broken_listing_goes_on_where_it_was(seed: int) -> None:
    clock, inner = ManualClock(), LocalStore(SimulatedDevice())
    keys = [f"k/{n:02d}" for n in range(20)]
    for key in keys:
        await inner.put(key, [])
    faulty = Faulty(inner, random=SeededRandom(seed), fail_percent=10)
    listed = [info.key async for info in _retrying(faulty, clock, deadline_s=1e6).list("k/")]
    assert listed == keys


async def test_the_real_wait_ends_and_can_be_cancelled() -> None:
    await wait(0)
    task = asyncio.ensure_future(wait(3600))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class _Away:
    """A store that is away from a moment on, until it is back; counts tries while it is away."""

    def __init__(self, loop: VirtualLoop, error: RetryableError) -> None:
        self._loop = loop
        self._error = error
        self.back_s = float("inf")
        self.tries: list[float] = []

    async def size(self, key: str) -> int:
        if self._loop.time() < self.back_s:
            self.tries.append(self._loop.time())
            raise self._error
        return 7


def _when_back(
    error: RetryableError, *, calls: int, away_s: float, quick_retries_max: int
) -> tuple[list[float], list[float]]:
    """When calls end that were made while the store was away, as of its return; and the tries."""
    ended: list[float] = []
    tries: list[float] = []

    async def main(loop: VirtualLoop) -> None:
        away = _Away(loop, error)
        away.back_s = loop.time() + away_s
        began_s = loop.time()
        store = Retrying(
            away,  # type: ignore[arg-type]
            clock=VirtualClock(loop),
            random=SeededRandom(3),
            deadline_s=120.0,
            quick_retries_max=quick_retries_max,
        )

        async def ask() -> None:
            assert await store.size("k") == 7
            ended.append(loop.time() - away.back_s)

        await asyncio.gather(*(ask() for _ in range(calls)))
        tries.extend(at_s - began_s for at_s in away.tries)

    run(main, SeededRandom(1))
    return ended, tries


AWAY_ERROR = RetryableError("size", "k", "connection refused")


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1, 40])
@pytest.mark.parametrize("quick_retries_max", [0, 100])
def test_all_calls_go_on_within_a_second_of_the_stores_return(
    calls: int, quick_retries_max: int
) -> None:
    for away_s in (3.0, 10.3, 29.9):
        ended, _ = _when_back(
            AWAY_ERROR, calls=calls, away_s=away_s, quick_retries_max=quick_retries_max
        )
        assert len(ended) == calls
        assert max(ended) < 1.0


@pytest.mark.slow
def test_many_calls_together_do_not_press_on_a_store_that_is_away() -> None:
    _, tries = _when_back(AWAY_ERROR, calls=40, away_s=60.0, quick_retries_max=10)
    later = [at_s for at_s in tries if at_s > 10]
    # Each wait is one of 2.5 to 5 s, cut short for one call every 0.4 s.
    assert len(later) < 50 * (40 / 2.5 + 1 / 0.4)
    ended_alone = _when_back(AWAY_ERROR, calls=1, away_s=60.0, quick_retries_max=10)[1]
    assert len([at_s for at_s in ended_alone if at_s > 10]) < 50 / 0.4


def test_a_store_that_is_asked_too_much_is_left_alone_as_long_as_ever() -> None:
    slow_down = OverloadedError("size", "k", "503 SlowDown")
    _, tries = _when_back(slow_down, calls=1, away_s=60.0, quick_retries_max=0)
    gaps = [later - at_s for at_s, later in pairwise(tries)]
    assert min(gaps) >= 2.5


class _ReadOnly(_Failing):
    """A store that answers reads, and fails all puts."""

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        return bytes(end - start)


@pytest.mark.slow
def test_puts_that_fail_wait_as_long_as_ever_while_reads_go_on() -> None:
    """A store that fails some calls is not away: what it answers to others is no sign of its
    return, and many bodies would be sent again every 0.2 s."""
    failing = _ReadOnly(RetryableError("put", "k", "500 InternalError"))

    async def main(loop: VirtualLoop) -> None:
        store = Retrying(failing, clock=VirtualClock(loop), random=SeededRandom(3))

        async def read() -> None:
            for _ in range(600):
                await store.get_range("k", 0, 1)
                await asyncio.sleep(0.05)

        async def put() -> None:
            with pytest.raises(RetryableError, match="500 InternalError"):
                await store.put("k", [b"x"])

        await asyncio.gather(read(), *(put() for _ in range(50)))

    run(main, SeededRandom(1))
    # The quick ones, and per call one in 2.5 to 5 s; one of all of them every 0.4 s.
    assert failing.calls < 50 + 100 + 50 * 30 / 2.5 + 30 / 0.4


def test_a_try_that_hung_until_after_the_stores_return_is_made_again_soon() -> None:
    async def main(loop: VirtualLoop) -> None:
        began_s = loop.time()

        class Hanging:
            async def size(self, key: str) -> int:
                at_s = loop.time() - began_s
                if at_s < 5:
                    if key == "hangs":
                        await asyncio.sleep(10)
                    raise AWAY_ERROR
                return 7

        store = Retrying(
            Hanging(),  # type: ignore[arg-type]
            clock=VirtualClock(loop),
            random=SeededRandom(3),
            quick_retries_max=0,
        )

        async def others() -> None:
            for _ in range(50):
                assert await store.size("k") == 7
                await asyncio.sleep(0.3)

        other = asyncio.ensure_future(others())
        assert await store.size("hangs") == 7
        # Not after a wait of 2.5 to 5 s.
        assert 10 <= loop.time() - began_s < 10.3
        await other

    run(main, SeededRandom(1))
