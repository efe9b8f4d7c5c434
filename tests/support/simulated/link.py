"""A network between a node and a service: requests and replies that are late, lost, or come twice.

What is asked runs as a task of the service's node, not of the caller's: it goes on when the caller
is paused, is killed or gives up waiting, and may take effect long after that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from penstock.model.errors import PenstockError, RetryableError
from penstock.ports.random import Random
from support.simulated.virtual_loop import Node, VirtualLoop

T = TypeVar("T")

_PERMILLE: Final = 1000
_STEPS: Final = 1 << 16


class SimulatedLink:
    """One way to one service.

    Args:
        server: the node on which requests are carried out.
        delay_s: least and greatest time of a request and of a reply.
        timeout_s: the caller's patience, after which the outcome is unknown to it.
        in_order: requests arrive in the order in which they were made, as over one connection.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        random: Random,
        *,
        server: Node,
        delay_s: tuple[float, float] = (0.0005, 0.003),
        timeout_s: float = 5.0,
        in_order: bool = False,
    ) -> None:
        self._loop = loop
        self._random = random
        self.server = server
        self.delay_s = delay_s
        self.timeout_s = timeout_s
        self._in_order = in_order
        self._last_arrival_s = 0.0
        self.cut = False
        """Nothing gets through: requests and replies under way are lost, too."""
        self.fail_permille = 0
        """Requests that never arrive; the caller learns it soon."""
        self.lost_permille = 0
        """Requests that are carried out, and whose reply is lost; the caller learns it soon."""
        self.twice_permille = 0
        """Requests that arrive a second time, a good deal later."""
        self.slow_permille = 0
        """Requests that take up to twice the caller's patience to arrive."""

    async def call(self, operation: str, subject: str, work: Callable[[], Awaitable[T]]) -> T:
        """Have `work` done at the server; its result or its error.

        Raises:
            RetryableError: the request or the reply was lost, or took too long.
        """
        loop = self._loop
        outcome: asyncio.Future[T] = loop.create_future()
        arrival_s = loop.time() + self._delay()
        if self._happens(self.slow_permille):
            arrival_s += 2 * self.timeout_s * self._draw()
        if self._in_order:
            arrival_s = self._last_arrival_s = max(arrival_s, self._last_arrival_s + 1e-6)
        context = loop.context_of(loop.world)
        fails = self._happens(self.fail_permille)
        loses = self._happens(self.lost_permille)

        def arrive() -> None:
            if not self.cut:
                loop.spawn(self.server, self._serve(work, outcome, loses=loses), name=operation)

        if fails:
            loop.call_at(
                arrival_s,
                _fail,
                outcome,
                operation,
                subject,
                "the request was lost",
                context=context,
            )
        else:
            loop.call_at(arrival_s, arrive, context=context)
            if self._happens(self.twice_permille):
                later_s = arrival_s + self.timeout_s * self._draw()
                loop.call_at(later_s, arrive, context=context)
        # The caller's own timer: a paused caller doesn't notice how late it is.
        timer = loop.call_later(
            self.timeout_s, _fail, outcome, operation, subject, "no reply in time"
        )
        try:
            return await outcome
        finally:
            timer.cancel()

    async def _serve(
        self, work: Callable[[], Awaitable[T]], outcome: "asyncio.Future[T]", *, loses: bool
    ) -> None:
        result: Any = None
        error: PenstockError | None = None
        try:
            result = await work()
        except PenstockError as failure:
            error = failure
        loop = self._loop

        def reply() -> None:
            if self.cut or outcome.done():
                return
            if loses:
                outcome.set_exception(RetryableError("call", self.server.name, "reply was lost"))
            elif error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        loop.call_later(self._delay(), reply, context=loop.context_of(loop.world))

    def _delay(self) -> float:
        least, most = self.delay_s
        return least + (most - least) * self._draw()

    def _draw(self) -> float:
        return self._random.below(_STEPS) / _STEPS

    def _happens(self, permille: int) -> bool:
        return bool(permille) and self._random.below(_PERMILLE) < permille


def _fail(outcome: "asyncio.Future[Any]", operation: str, subject: str, detail: str) -> None:
    if not outcome.done():
        outcome.set_exception(RetryableError(operation, subject, detail))
