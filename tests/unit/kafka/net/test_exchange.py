"""The time that a handler takes of the loop: its steps without its waiting, however it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.kafka.net.exchange import Exchange
from penstock.kafka.registry import BY_MODULE


class StepClock:
    """Goes on by what the handler works alone."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic_s(self) -> float:
        return self.now_s


class HandledBy(Exchange):
    """An exchange whose handler is the test's."""

    def __init__(self, handler: Callable[[], Awaitable[Any]]) -> None:
        context: Any = None
        super().__init__(BY_MODULE["list_groups"], context, memoryview(b""), 0, 0.0)
        self.handler = handler

    async def _handle(self, *_: object) -> Any:
        return await self.handler()


def started(
    clock: StepClock, handler: Callable[[], Awaitable[Any]]
) -> tuple[Exchange, "asyncio.Future[None]"]:
    """An exchange that runs, measured; and what is done once it is over."""
    loop = asyncio.get_running_loop()
    exchange, over = HandledBy(handler), loop.create_future()
    measured_by: Any = clock
    exchange.start(loop, lambda: over.set_result(None), measured_by)
    return exchange, over


async def test_steps_are_counted_and_waiting_is_not() -> None:
    clock, gate = StepClock(), asyncio.get_running_loop().create_future()

    async def handler() -> list[bytes]:
        clock.now_s += 1.0
        found = await gate
        clock.now_s += 2.0
        return [found]

    exchange, over = started(clock, handler)
    await asyncio.sleep(0)
    clock.now_s += 100.0
    gate.set_result(b"found")
    await over
    assert (exchange.reply, exchange.error) == ([b"found"], None)
    assert exchange.work_s == 3.0


async def test_an_error_that_was_waited_for_reaches_the_handler() -> None:
    clock, gate = StepClock(), asyncio.get_running_loop().create_future()

    async def handler() -> list[bytes]:
        try:
            await gate
        except ValueError:
            clock.now_s += 2.0
        raise KeyError("of the handler")

    exchange, over = started(clock, handler)
    await asyncio.sleep(0)
    gate.set_exception(ValueError())
    await over
    assert isinstance(exchange.error, KeyError)
    assert exchange.work_s == 2.0


async def test_a_handler_whose_peer_is_gone_is_cancelled() -> None:
    clock, gate = StepClock(), asyncio.get_running_loop().create_future()
    cleaned = asyncio.get_running_loop().create_future()

    async def handler() -> list[bytes]:
        try:
            await gate
        finally:
            cleaned.set_result(None)
        return []

    exchange, over = started(clock, handler)
    await asyncio.sleep(0)
    exchange.drop()
    await cleaned
    await over
    assert exchange.reply is None
