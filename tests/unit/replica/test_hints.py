"""How long a reader of the journal on PostgreSQL waits without hints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.replica.postgres.hints import Hints
from penstock.replica.postgres.lane import Lane
from penstock.replica.postgres.settings import PostgresSettings


class Unconnected:
    """A lane that nothing is sent on."""

    connection = None


@pytest.mark.parametrize(
    ("readers", "pause_s"), [(1, 0.003), (10, 0.003), (20, 0.006), (100, 0.030)]
)
async def test_all_readers_together_read_as_often_however_many_there_are(
    readers: int, pause_s: float
) -> None:
    settings = PostgresSettings(notifies=False, busy_poll_ms=3, readers_at_full_pace=10)
    delays: list[float] = []
    loop = cast("Any", asyncio.get_running_loop())

    def at_once(delay_s: float, call: Callable[..., None], *arguments: Any) -> Any:
        delays.append(delay_s)
        return loop.call_soon(call, *arguments)

    loop.time = lambda: 50.0
    loop.call_later = at_once
    hints = Hints(cast("Lane", Unconnected()), "unused", settings)
    hints.readers = readers
    hints.read()
    hints._returned_s = 50.0
    await hints.wait(0, 1.0)
    assert delays == pytest.approx([pause_s])


async def test_reading_and_applying_count_into_a_busy_readers_pace() -> None:
    settings = PostgresSettings(notifies=False, busy_poll_ms=3, busy_pause_ms=1, busy_ms=100)
    delays: list[float] = []
    loop = cast("Any", asyncio.get_running_loop())
    now_s = 50.0

    def at_once(delay_s: float, call: Callable[..., None], *arguments: Any) -> Any:
        delays.append(delay_s)
        return loop.call_soon(call, *arguments)

    loop.time = lambda: now_s
    loop.call_later = at_once
    hints = Hints(cast("Lane", Unconnected()), "unused", settings)
    await hints.wait(0, 1.0)
    for took_s in (0.0005, 0.002, 0.030):
        now_s += took_s
        hints.read()
        await hints.wait(0, 1.0)
    # An empty read, a little later, and one when nothing has come for long.
    now_s += 0.001
    await hints.wait(0, 1.0)
    now_s += 0.2
    await hints.wait(0, 1.0)
    assert delays == pytest.approx([1.0, 0.0025, 0.001, 0.001, 0.002, 1.0])
