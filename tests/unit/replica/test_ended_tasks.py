"""Tasks that are ended together leave no error that nothing takes."""

import asyncio
from contextlib import suppress

import pytest

from penstock.replica.ended_tasks import end_tasks
from penstock.system.heard import Cause, swallowed_counts
from support.simulated.randomness import SeededRandom
from support.simulated.virtual_loop import VirtualLoop, run


async def _fail(text: str) -> None:
    raise ValueError(text)


async def _fail_late(text: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(1)
        raise ValueError(text)


def _forgotten(loop: VirtualLoop) -> list[str]:
    loop.note_forgotten()
    loop.note_forgotten()
    return loop.faults


def test_errors_are_heard_save_the_one_that_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    async def main(loop: VirtualLoop) -> list[str]:
        async def work() -> None:
            tasks = [loop.create_task(_fail("first")), loop.create_task(_fail("second"))]
            await asyncio.wait(tasks)
            with pytest.raises(ValueError, match="first") as raised:
                tasks[0].result()
            await end_tasks(tasks, Cause.TAKEOVER, raised=raised.value)

        await loop.spawn(loop.node("one"), work())
        return _forgotten(loop)

    assert run(main, SeededRandom(1)) == []
    assert caplog.messages == ["failed while it was being ended: second"]


def test_a_caller_that_is_cancelled_meanwhile_leaves_none(caplog: pytest.LogCaptureFixture) -> None:
    before = swallowed_counts()[Cause.TAKEOVER]

    async def main(loop: VirtualLoop) -> list[str]:
        async def work() -> None:
            tasks = [loop.create_task(_fail("early")), loop.create_task(_fail_late("late"))]
            await asyncio.sleep(1)
            await end_tasks(tasks, Cause.TAKEOVER, raised=None)

        working = loop.spawn(loop.node("one"), work())
        await asyncio.sleep(1.5)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        assert caplog.messages == ["failed while it was being ended: early"]
        await asyncio.sleep(5)
        return _forgotten(loop)

    assert run(main, SeededRandom(1)) == []
    assert swallowed_counts()[Cause.TAKEOVER] == before + 2
