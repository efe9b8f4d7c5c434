"""A second request is made only for what is slow, takes effect once, and is bounded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from typing_extensions import Buffer

from penstock.model.errors import ConflictError, NotFoundError, RetryableError
from penstock.objects import Hedged
from penstock.objects.bucket import BucketStore
from penstock.objects.local import LocalStore
from penstock.ports.objects import ObjectInfo, ObjectStore
from penstock.testing.conformance import ObjectStoreSuite
from support.simulated.device import SimulatedDevice
from support.simulated.inline_executor import InlineExecutor
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualLoop, run


class TestHedged(ObjectStoreSuite):
    """The contract; everything that reads is asked twice. Not puts: the slower one of two may
    come behind a delete, which the contract forbids and orphans' deleting allows for."""

    def make_store(self, folder: Path) -> ObjectStore:
        return Hedged(BucketStore(MemoryStore()), get_after_s=0.0, put_after_s=60.0, share=1.0)


class ScriptedStore:
    """Each call takes the next of `delays`, and fails if the next of `errors` says so."""

    def __init__(self, delays: Sequence[float], errors: Sequence[Exception | None] = ()) -> None:
        self.delays = list(delays)
        self.errors = list(errors)
        self.calls = 0
        self.ended = 0
        self.cancelled = 0

    async def _call(self) -> None:
        number = self.calls
        self.calls += 1
        done = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(self.delays[number], done.set_result, None)
        try:
            await done
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            timer.cancel()
        self.ended += 1
        error = self.errors[number] if number < len(self.errors) else None
        if error is not None:
            raise error

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self._call()

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        await self._call()
        return bytes(end - start)

    async def size(self, key: str) -> int:
        await self._call()
        return 1

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call()

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._call()
        return
        yield


def _timed(store: ScriptedStore, hedged: Hedged, **options: bool) -> float:
    async def main(loop: VirtualLoop) -> float:
        started_s = loop.time()
        if options:
            await hedged.put("k", [b"x"], **options)
        else:
            await hedged.get_range("k", 0, 1)
        return loop.time() - started_s

    return run(main, SeededRandom(1))


def test_what_is_quick_is_asked_once() -> None:
    store = ScriptedStore([0.4])
    assert _timed(store, Hedged(store)) == pytest.approx(0.4, abs=0.01)
    assert store.calls == 1


def test_what_is_slow_is_asked_again_and_the_first_answer_counts() -> None:
    store = ScriptedStore([30, 0.1])
    assert _timed(store, Hedged(store)) == pytest.approx(0.6, abs=0.01)
    assert (store.calls, store.cancelled) == (2, 1)
    store = ScriptedStore([0.7, 30])
    assert _timed(store, Hedged(store)) == pytest.approx(0.7, abs=0.01)
    assert (store.calls, store.cancelled) == (2, 1)


class SlowlyAnswering(LocalStore):
    """Puts take effect at once; the first is answered after `first_s`, others after 0.1 s."""

    def __init__(self, first_s: float) -> None:
        super().__init__(SimulatedDevice(), executor=InlineExecutor(SeededRandom(2)))
        self.first_s = first_s
        self.calls = 0

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self.calls += 1
        answered_s = self.first_s if self.calls == 1 else 0.1
        try:
            await super().put(key, parts, if_absent=if_absent)
        finally:
            done = asyncio.get_running_loop().create_future()
            timer = asyncio.get_running_loop().call_later(answered_s, done.set_result, None)
            try:
                await done
            finally:
                timer.cancel()


def test_a_conditional_put_that_meets_its_own_first_try_has_succeeded() -> None:
    async def main(loop: VirtualLoop) -> None:
        store = SlowlyAnswering(30)
        started_s = loop.time()
        await Hedged(store).put("k", [b"mi", b"ne"], if_absent=True)
        assert loop.time() - started_s == pytest.approx(1.1, abs=0.01)
        assert store.calls == 2
        assert bytes(await store.get_range("k", 0, 4)) == b"mine"

    run(main, SeededRandom(1))


@pytest.mark.parametrize("first_s", [0.1, 30])
def test_a_conditional_put_that_meets_anothers_object_is_a_conflict(first_s: float) -> None:
    async def main(loop: VirtualLoop) -> None:
        store = SlowlyAnswering(0.1)
        await store.put("k", [b"else"])
        store.calls, store.first_s = 0, first_s
        with pytest.raises(ConflictError):
            await Hedged(store).put("k", [b"mine"], if_absent=True)
        assert store.calls == (1 if first_s < 1 else 2)
        assert bytes(await store.get_range("k", 0, 4)) == b"else"

    run(main, SeededRandom(1))


def test_one_that_fails_leaves_it_to_the_other() -> None:
    lost = RetryableError("read", "k", "lost")
    store = ScriptedStore([1.0, 2.0], [lost, None])
    assert _timed(store, Hedged(store)) == pytest.approx(2.5, abs=0.01)
    store = ScriptedStore([1.0, 2.0], [lost, NotFoundError("read", "k", "none")])
    with pytest.raises(NotFoundError):
        _timed(store, Hedged(store))
    store = ScriptedStore([0.1], [lost])
    with pytest.raises(RetryableError):
        _timed(store, Hedged(store))
    assert store.calls == 1, "a quick failure is told at once"


def test_when_everything_is_slow_few_are_asked_twice() -> None:
    store = ScriptedStore([5.0] * 1000)
    hedged = Hedged(store, share=0.05)

    async def main(loop: VirtualLoop) -> None:
        for _ in range(200):
            await hedged.get_range("k", 0, 1)

    run(main, SeededRandom(1))
    assert hedged.hedge_count <= 10 + 200 * 0.05
    assert hedged.hedge_count >= 10


def test_a_caller_that_gives_up_takes_both_along() -> None:
    store = ScriptedStore([30, 30])
    hedged = Hedged(store)

    async def main(loop: VirtualLoop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await hedged.get_range("k", 0, 1)

    run(main, SeededRandom(1))
    assert store.cancelled == store.calls == 2
