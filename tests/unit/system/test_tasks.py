"""An error that no one waits for is taken, so that the event loop doesn't report it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from penstock.system.tasks import take_error


@pytest.mark.slow
@pytest.mark.parametrize(("taken", "reports"), [(True, 0), (False, 1)])
async def test_only_an_error_that_was_not_taken_is_reported(*, taken: bool, reports: int) -> None:
    reported: list[dict[str, Any]] = []

    async def fail() -> None:
        raise ValueError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    task = loop.create_task(fail())
    if taken:
        task.add_done_callback(take_error)
    await asyncio.wait([task])
    del task
    gc.collect()
    assert len(reported) == reports


async def test_those_who_wait_have_it_all_the_same_and_a_cancelled_task_has_none() -> None:
    loop = asyncio.get_running_loop()
    failed = loop.create_future()
    failed.add_done_callback(take_error)
    failed.set_exception(ValueError("1"))
    cancelled = loop.create_future()
    cancelled.add_done_callback(take_error)
    cancelled.cancel()
    with pytest.raises(ValueError, match="1"):
        await failed
    with pytest.raises(asyncio.CancelledError):
        await cancelled
