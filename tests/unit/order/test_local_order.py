"""Submitted calls are in the lane one by one; what comes after a failed one fails with it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.model.errors import RetryableError, StorageFullError
from penstock.state.answers import AnyAnswer, Done
from penstock.state.commands import AnyCommand, Noop
from penstock.state.orders import LocalOrder
from support.simulated.clock import ManualClock


class Lane:
    """Answers when the test says so."""

    hidden_position = 0

    def __init__(self) -> None:
        self.taken: list[asyncio.Future[list[AnyAnswer]]] = []

    def submit_commands(self, commands: Sequence[AnyCommand]) -> asyncio.Future[list[AnyAnswer]]:
        future: asyncio.Future[list[AnyAnswer]] = asyncio.get_running_loop().create_future()
        self.taken.append(future)
        return future


def run(test: Callable[[Lane, LocalOrder], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        lane = Lane()
        journal: Any = SimpleNamespace(agent_id=1, epoch=1, position=1, time_ms=0)
        await test(lane, LocalOrder(journal, lane, clock=ManualClock()))

    asyncio.run(main())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_calls_are_in_the_lane_one_at_a_time_and_in_their_order() -> None:
    async def test(lane: Lane, order: LocalOrder) -> None:
        answers = [order.submit([Noop()]) for _ in range(3)]
        for number in range(3):
            assert len(lane.taken) == number + 1
            lane.taken[number].set_result([Done()])
            await turns()
        assert [await answer for answer in answers] == [[Done()]] * 3

    run(test)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["full", "cancelled"])
def test_what_stands_behind_a_failed_call_fails_with_it_and_is_never_in_the_lane(
    is_cancelled: bool,
) -> None:
    async def test(lane: Lane, order: LocalOrder) -> None:
        answers = [order.submit([Noop()]) for _ in range(3)]
        full = StorageFullError("append", "journal", "full")
        submitted: list[asyncio.Future[list[AnyAnswer]]] = []
        # What is submitted as soon as the failure is known is not behind it any more.
        answers[0].add_done_callback(lambda _: submitted.append(order.submit([Noop()])))
        if is_cancelled:
            lane.taken[0].cancel()
        else:
            lane.taken[0].set_exception(full)
        await turns()
        errors = [answer.exception() for answer in answers]
        assert all(isinstance(error, RetryableError) for error in errors)
        assert is_cancelled or errors == [full] * 3
        assert len(lane.taken) == 2
        lane.taken[1].set_result([Done()])
        assert await submitted[0] == [Done()]

    run(test)
