"""Work that gives way: what is done between two turns of the loop is bounded, whoever asks."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from penstock.model.steps import Steps
from penstock.system.turns import Turns

ITEMS = 10
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
EITHER_LOOP = pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


class Probe:
    """A callback of each turn, which notes how much was done since the turn before."""

    def __init__(self) -> None:
        self.done = 0
        self.per_turn: list[int] = []
        self._before = 0
        self._handle: asyncio.Handle | None = None

    def start(self) -> None:
        self.per_turn.append(self.done - self._before)
        self._before = self.done
        self._handle = asyncio.get_running_loop().call_soon(self.start)

    def stop(self) -> None:
        assert self._handle is not None
        self._handle.cancel()
        self.per_turn.append(self.done - self._before)


def watched(
    work: Callable[[Probe, Turns], Any],
    turns: Turns | None = None,
    loop_factory: LoopFactory = asyncio.new_event_loop,
) -> list[int]:
    """What was done in each turn of a loop that does the work."""
    probe = Probe()

    async def run() -> None:
        probe.start()
        await work(probe, turns or Turns(items_max=ITEMS, bytes_max=1000, rows_max=5))
        probe.stop()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())
    return probe.per_turn


async def items(probe: Probe, turns: Turns, count: int, **cost: int) -> None:
    for _ in range(count):
        probe.done += 1
        if turns.spend(**cost):
            await turns.wait()


@EITHER_LOOP
@pytest.mark.parametrize(
    ("cost", "most"), [({"items": 1}, 10), ({"byte_count": 200}, 5), ({"rows": 1}, 5)]
)
def test_one_turn_has_room_for_so_much(
    cost: dict[str, int], most: int, loop_factory: LoopFactory
) -> None:
    per_turn = watched(
        lambda probe, turns: items(probe, turns, 100, **cost), loop_factory=loop_factory
    )
    assert sum(per_turn) == 100
    assert max(per_turn) == most


@EITHER_LOOP
def test_many_that_work_at_once_share_a_turn(loop_factory: LoopFactory) -> None:
    async def all_of_them(probe: Probe, turns: Turns) -> None:
        await asyncio.gather(*(items(probe, turns, 30, items=1) for _ in range(50)))

    per_turn = watched(all_of_them, loop_factory=loop_factory)
    assert sum(per_turn) == 1500
    # Each of the 50 does one item before it knows that the first turn is used up.
    per_turn.sort()
    assert per_turn[-1] <= ITEMS + 50
    assert per_turn[-2] <= ITEMS


def test_who_waits_first_goes_on_first() -> None:
    order: list[str] = []

    async def one(turns: Turns, name: str) -> None:
        await turns.wait()
        order.append(name)

    async def run(_probe: Probe, turns: Turns) -> None:
        first, second, third = (asyncio.ensure_future(one(turns, name)) for name in "abc")
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, third)

    watched(run)
    assert order == ["a", "c"]


def test_items_are_gone_through_in_turns() -> None:
    seen: list[int] = []

    async def run(probe: Probe, turns: Turns) -> None:
        async for item in turns.each(range(12), cost=5):
            seen.append(item)
            probe.done += 1

    assert max(watched(run)) == 2
    assert seen == list(range(12))


def test_steps_run_in_turns() -> None:
    async def run(probe: Probe, turns: Turns) -> None:
        def steps() -> Steps[str]:
            for _ in range(20):
                probe.done += 4
                yield 4
            return "result"

        assert await turns.run(steps()) == "result"

    assert max(watched(run)) == 12


def test_another_loop_has_turns_too() -> None:
    """Where a loop ended before its next turn came, the next loop asks for its own."""
    turns = Turns(items_max=ITEMS)
    loop = asyncio.new_event_loop()
    loop.call_soon(turns.spend, ITEMS)
    loop.stop()
    loop.run_forever()
    loop.close()
    assert sum(watched(lambda probe, known: items(probe, known, 25, items=1), turns)) == 25
