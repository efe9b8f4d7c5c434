"""Retries end at the deadline, wait with jitter, and never turn one put into a conflict."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence

import pytest
from typing_extensions import Buffer

from penstock.model.errors import (
    ConflictError,
    NotFoundError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.objects import LocalStore, Retrying
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.system.waiting import wait
from penstock.testing import Faulty, ManualClock, SeededRandom, SimulatedDevice


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


def _run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())


def _retrying(store: ObjectStore, clock: ManualClock, deadline_s: float = 30.0) -> Retrying:
    return Retrying(
        store, clock=clock, random=SeededRandom(9), deadline_s=deadline_s, wait=clock.wait
    )


def test_the_last_error_comes_out_before_the_deadline() -> None:
    async def main() -> None:
        clock = ManualClock()
        failing = _Failing(RetryableError("get", "k", "503"))
        with pytest.raises(RetryableError, match="503"):
            await _retrying(failing, clock).get_range("k", 0, 1)
        assert 8 < failing.calls < 60
        assert 15 < clock.monotonic_s() < 30
        with pytest.raises(RetryableError, match="503"):
            async for _ in _retrying(failing, clock).list(""):
                pass
        assert clock.monotonic_s() < 60

    _run(main())


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("get", "k", "none"),
        ConflictError("get", "k", "there"),
        StorageFullError("get", "k", "full"),
    ],
)
def test_what_waiting_does_not_mend_is_not_tried_again(error: PenstockError) -> None:
    async def main() -> None:
        clock = ManualClock()
        failing = _Failing(error)
        with pytest.raises(type(error)):
            await _retrying(failing, clock).put("k", [b"x"])
        assert (failing.calls, clock.monotonic_s()) == (1, 0.0)

    _run(main())


@pytest.mark.parametrize("seed", range(30))
def test_a_conditional_put_whose_reply_was_lost_has_succeeded(seed: int) -> None:
    async def main() -> None:
        clock, inner = ManualClock(), LocalStore(SimulatedDevice())
        faulty = Faulty(inner, random=SeededRandom(seed), fail_percent=30, lost_percent=40)
        store = _retrying(faulty, clock, deadline_s=1e6)
        await store.put("k", [b"mi", b"ne"], if_absent=True)
        assert await inner.get_range("k", 0, 4) == b"mine"

    _run(main())


@pytest.mark.parametrize("seed", range(30))
def test_a_conditional_put_that_lost_to_another_is_a_conflict(seed: int) -> None:
    async def main() -> None:
        clock, inner = ManualClock(), LocalStore(SimulatedDevice())
        await inner.put("k", [b"else"])
        faulty = Faulty(inner, random=SeededRandom(seed), fail_percent=60)
        with pytest.raises(ConflictError):
            await _retrying(faulty, clock, deadline_s=1e6).put("k", [b"mine"], if_absent=True)
        assert await inner.get_range("k", 0, 4) == b"else"

    _run(main())


@pytest.mark.parametrize("seed", range(10))
def test_a_broken_listing_goes_on_where_it_was(seed: int) -> None:
    async def main() -> None:
        clock, inner = ManualClock(), LocalStore(SimulatedDevice())
        keys = [f"k/{n:02d}" for n in range(20)]
        for key in keys:
            await inner.put(key, [])
        faulty = Faulty(inner, random=SeededRandom(seed), fail_percent=10)
        listed = [info.key async for info in _retrying(faulty, clock, deadline_s=1e6).list("k/")]
        assert listed == keys

    _run(main())


def test_the_real_wait_ends_and_can_be_cancelled() -> None:
    async def main() -> None:
        await wait(0)
        task = asyncio.ensure_future(wait(3600))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    _run(main())


def test_when_the_budget_is_used_up_each_wait_is_a_long_one() -> None:
    """Many calls on a store that is away must not press on it; what succeeds earns quick ones."""

    async def main() -> None:
        clock = ManualClock()
        waits: list[float] = []

        async def wait(seconds: float) -> None:
            waits.append(seconds)
            await clock.wait(seconds)

        faulty = Faulty(LocalStore(SimulatedDevice()), random=SeededRandom(1), fail_percent=100)
        store = Retrying(
            faulty,
            clock=clock,
            random=SeededRandom(2),
            deadline_s=60,
            delay_max_s=8.0,
            quick_retries_max=3,
            wait=wait,
        )
        with pytest.raises(RetryableError):
            await store.size("k")
        assert all(seconds <= 0.2 for seconds in waits[:3])
        assert all(4.0 <= seconds <= 8.0 for seconds in waits[3:])
        assert len(waits) > 5

    asyncio.run(main())
