"""The simulation's loop, executor, links and bucket."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import ConflictError, NotFoundError, RetryableError
from support.simulated.inline_executor import InlineExecutor
from support.simulated.link import SimulatedLink
from support.simulated.randomness import SeededRandom
from support.simulated.store import SimulatedBucket, SimulatedStore
from support.simulated.virtual_loop import StuckError, VirtualClock, VirtualLoop, run


def test_time_jumps_to_the_next_timer() -> None:
    async def main(loop: VirtualLoop) -> float:
        await asyncio.sleep(3600)
        return VirtualClock(loop).monotonic_s()

    assert 3600 <= run(main, SeededRandom(1)) < 3601


def test_a_main_task_that_nothing_can_wake_is_stuck_and_says_where() -> None:
    async def main(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(StuckError, match="main"):
        run(main, SeededRandom(1))


def test_turning_in_circles_is_stuck() -> None:
    async def main(loop: VirtualLoop) -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(StuckError):
        run(main, SeededRandom(1), steps_max=1000)


def test_what_a_dead_node_left_waiting_is_closed_with_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the collector would report it, in the middle of a later test."""
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    async def main(loop: VirtualLoop) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(60)

        node = loop.node("one")
        loop.spawn(node, wait())
        await asyncio.sleep(1)
        loop.kill(node)

    run(main, SeededRandom(1))
    gc.collect()
    assert not reported


def test_an_error_of_a_node_that_nothing_takes_is_a_fault_at_the_second_look() -> None:
    async def main(loop: VirtualLoop) -> list[list[str]]:
        async def fail(text: str) -> None:
            raise ValueError(text)

        node, killed = loop.node("one"), loop.node("two")
        loop.spawn(node, fail("forgotten"), name="work")
        loop.spawn(killed, fail("of a dead node"))
        taken = [loop.spawn(node, fail("taken")), loop.spawn(node, fail("taken late"))]
        with pytest.raises(ValueError, match="taken"):
            await taken[0]
        await asyncio.sleep(1)
        loop.kill(killed)
        looks = []
        for _ in range(3):
            loop.note_forgotten()
            looks.append([fault.splitlines()[0] for fault in loop.faults])
            taken[1].exception()
        assert "ValueError: forgotten" in loop.faults[0]
        return looks

    found = ["<one> work: nothing took its error"]
    assert run(main, SeededRandom(1)) == [[], found, found]


def test_an_error_that_a_paused_node_is_about_to_take_is_no_fault() -> None:
    async def main(loop: VirtualLoop) -> list[int]:
        async def fail() -> None:
            # The task ends, and who waits for it is woken, in one callback: no pause is between.
            loop.pause(node)
            raise ValueError("taken once the node goes on")

        async def work() -> None:
            task = asyncio.get_running_loop().create_task(fail())
            with pytest.raises(ValueError, match="goes on"):
                await task
            forgotten.append(asyncio.get_running_loop().create_task(fail()))

        def look() -> int:
            loop.note_forgotten()
            loop.note_forgotten()
            return len(loop.faults)

        node = loop.node("one")
        forgotten: list[asyncio.Task[None]] = []
        loop.spawn(node, work())
        looks = []
        for _ in range(3):
            await asyncio.sleep(1)
            looks.append(look())
            loop.resume(node)
        return looks

    assert run(main, SeededRandom(1)) == [0, 0, 1]


def test_an_error_in_what_a_link_carries_out_is_a_fault() -> None:
    """To the caller it is a reply that never comes, as if the server were away."""

    async def main(loop: VirtualLoop) -> list[str]:
        node = loop.node("server")
        link = SimulatedLink(loop, SeededRandom(4), server=node, timeout_s=1.0)

        async def work() -> None:
            raise AttributeError("no such thing")

        with pytest.raises(RetryableError, match="no reply in time"):
            await link.call("ask", "server", work)
        loop.note_forgotten()
        loop.note_forgotten()
        return loop.faults

    (fault,) = run(main, SeededRandom(1))
    assert fault.startswith("<server> ask: nothing took its error\n")
    assert fault.endswith("AttributeError: no such thing\n")


def test_a_paused_node_does_nothing_and_then_finds_itself_late() -> None:
    async def main(loop: VirtualLoop) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        one, two = loop.node("one"), loop.node("two")

        async def tick(name: str) -> None:
            for _ in range(3):
                await asyncio.sleep(1)
                seen.append((name, round(loop.time())))

        tasks = [loop.spawn(one, tick("one")), loop.spawn(two, tick("two"))]
        await asyncio.sleep(0.5)
        loop.pause(one)
        await asyncio.sleep(5)
        loop.resume(one)
        await asyncio.gather(*tasks)
        return sorted(seen)

    assert run(main, SeededRandom(1)) == [
        ("one", 6),
        ("one", 7),
        ("one", 8),
        ("two", 1),
        ("two", 2),
        ("two", 3),
    ]


def test_nothing_of_a_killed_node_runs_not_even_its_finally() -> None:
    seen: list[str] = []

    async def main(loop: VirtualLoop) -> None:
        node = loop.node("one")

        async def work() -> None:
            try:
                await asyncio.sleep(1)
                seen.append("went on")
            finally:
                seen.append("finally")

        loop.spawn(node, work())
        await asyncio.sleep(0.5)
        loop.kill(node)
        await asyncio.sleep(5)
        assert not seen

    run(main, SeededRandom(1))
    assert "went on" not in seen


def test_an_unhandled_error_is_a_fault() -> None:
    async def main(loop: VirtualLoop) -> list[str]:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)
        return loop.faults

    assert "ZeroDivisionError" in run(main, SeededRandom(1))[0]


def _interleaving(seed: int) -> tuple[str, int]:
    async def main(loop: VirtualLoop) -> tuple[str, int]:
        seen: list[str] = []
        pool = InlineExecutor(SeededRandom(seed))

        async def work(name: str) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                await loop.run_in_executor(pool, seen.append, name)

        tasks = {loop.spawn(loop.node(name), work(name)) for name in "abcd"}
        await asyncio.wait(tasks)
        return "".join(seen), loop.trace

    return run(main, SeededRandom(seed))


def test_seeds_interleave_differently_and_each_always_the_same() -> None:
    first = [_interleaving(seed) for seed in range(20)]
    assert len({text for text, _ in first}) > 10
    assert first == [_interleaving(seed) for seed in range(20)]


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "from pathlib import Path; import importlib.util as u;"
        f"s = u.spec_from_file_location('t', {__file__!r}); m = u.module_from_spec(s);"
        "s.loader.exec_module(m); print(m._interleaving(7))"
    )
    places = [str(Path(__file__).parents[3] / "src"), str(Path(__file__).parents[2])]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": number, "PYTHONPATH": os.pathsep.join(places)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("0", "1", "2")
    }
    assert len(outputs) == 1, outputs


def test_work_of_one_worker_runs_in_its_order() -> None:
    async def main(loop: VirtualLoop) -> list[int]:
        seen: list[int] = []
        pool = InlineExecutor(SeededRandom(3), workers=1)
        waits = [loop.run_in_executor(pool, seen.append, number) for number in range(20)]
        await asyncio.gather(*waits)
        return seen

    assert run(main, SeededRandom(1)) == list(range(20))


def _on_store(work: Any, **bucket_options: Any) -> Any:
    async def main(loop: VirtualLoop) -> Any:
        bucket = SimulatedBucket(loop, **bucket_options)
        link = SimulatedLink(loop, SeededRandom(4), server=loop.world)
        return await work(loop, bucket, link, SimulatedStore(bucket, link))

    return run(main, SeededRandom(1))


def test_a_store_keeps_what_it_was_given() -> None:
    async def work(loop: Any, bucket: Any, link: Any, store: Any) -> None:
        await store.put("a/b", [b"12", b"345"])
        assert await store.get_range("a/b", 1, 4) == b"234"
        assert await store.size("a/b") == 5
        assert [info.key async for info in store.list("a/")] == ["a/b"]
        with pytest.raises(ConflictError):
            await store.put("a/b", [b""], if_absent=True)
        await store.delete(["a/b", "c"])
        with pytest.raises(NotFoundError):
            await store.get_range("a/b", 0, 1)

    _on_store(work)


def test_a_put_whose_reply_is_lost_took_place() -> None:
    async def work(loop: Any, bucket: Any, link: Any, store: Any) -> None:
        link.lost_permille = 1000
        with pytest.raises(RetryableError):
            await store.put("key", [b"1"])
        assert "key" in bucket.objects

    _on_store(work)


def test_a_slow_put_may_take_place_after_its_caller_gave_up() -> None:
    async def work(loop: Any, bucket: Any, link: Any, store: Any) -> None:
        link.slow_permille = 1000
        late = 0
        for number in range(10):
            try:
                await store.put(f"key{number}", [b"1"])
            except RetryableError:
                late += f"key{number}" not in bucket.objects
        assert late
        await asyncio.sleep(20)
        assert len(bucket.objects) == 10

    _on_store(work)


def test_a_cut_link_loses_requests_and_replies() -> None:
    async def work(loop: Any, bucket: Any, link: Any, store: Any) -> None:
        link.cut = True
        with pytest.raises(RetryableError):
            await store.put("key", [b"1"])
        assert not bucket.objects

    _on_store(work)


def test_listings_lag() -> None:
    async def work(loop: Any, bucket: Any, link: Any, store: Any) -> None:
        await store.put("key", [b"1"])
        assert [info.key async for info in store.list("")] == []
        await asyncio.sleep(3)
        assert [info.key async for info in store.list("")] == ["key"]
        await store.delete(["key"])
        assert [info.key async for info in store.list("")] == ["key"]
        await asyncio.sleep(3)
        assert [info.key async for info in store.list("")] == []

    _on_store(work, list_lag_s=2.0)
