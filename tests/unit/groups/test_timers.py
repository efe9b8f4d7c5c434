"""Timers of a group on a loop."""

import asyncio

import pytest

from penstock.groups.messages import JOIN_TIMER, Timer
from penstock.groups.timers import GroupTimers
from unit.groups.fakes import pass_ms


async def test_a_timer_fires_once_and_when_it_is_due() -> None:
    loop = asyncio.get_running_loop()
    fired: list[tuple[Timer, float]] = []
    start_s = loop.time()
    timers = GroupTimers(loop, lambda timer, _: fired.append((timer, loop.time() - start_s)))
    session = Timer("session", "m")
    timers.set(session, 1000)
    # Moved out many times, moved in once, taken back and set anew.
    for _ in range(5):
        await pass_ms(900)
        timers.set(session, 1000)
    timers.set(JOIN_TIMER, 60_000)
    timers.set(JOIN_TIMER, 100)
    await pass_ms(150)
    timers.set(JOIN_TIMER, 100)
    timers.cancel(JOIN_TIMER)
    timers.cancel(JOIN_TIMER)
    await pass_ms(5000)
    assert [(timer, round(at, 3)) for timer, at in fired] == [
        (JOIN_TIMER, 4.6),
        (session, 5.5),
    ]
    assert len(timers) == 0


async def test_none_fires_after_all_were_taken_back() -> None:
    fired: list[Timer] = []
    timers = GroupTimers(asyncio.get_running_loop(), lambda timer, _: fired.append(timer))
    timers.set(JOIN_TIMER, 10)
    timers.set(Timer("session", "m"), 10)
    timers.cancel_all()
    await pass_ms(100)
    assert not fired


def test_a_timer_without_delay_fires_on_the_loop_of_production() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def work() -> None:
        fired = asyncio.Event()
        timers = GroupTimers(asyncio.get_running_loop(), lambda *_: fired.set())
        for _ in range(2):
            fired.clear()
            timers.set(JOIN_TIMER, 10)
            timers.set(JOIN_TIMER, 0)
            timers.set(JOIN_TIMER, 1)
            async with asyncio.timeout(60):
                await fired.wait()
        assert len(timers) == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
