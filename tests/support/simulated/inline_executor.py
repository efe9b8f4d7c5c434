"""An executor without threads: work runs on the event loop, after a delay that a seed draws.

What a thread does takes effect at one moment, and its caller learns it at a later one, so that
whatever else happens in between is tried as well. Work that its node (see `virtual_loop`) didn't
live to begin never runs.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from typing import Any, Final, ParamSpec, TypeVar

from penstock.ports.random import Random

P = ParamSpec("P")
T = TypeVar("T")

_STEPS: Final = 1 << 16


class InlineExecutor(Executor):
    """At most `workers` pieces of work at a time, begun in the order in which they came.

    Args:
        delay_s_max: until a piece takes effect, and from there until its caller knows.
    """

    def __init__(self, random: Random, *, workers: int = 4, delay_s_max: float = 0.002) -> None:
        self._random = random
        self._free = workers
        self.delay_s_max = delay_s_max
        self._waiting: deque[Callable[[], None]] = deque()
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """See `concurrent.futures.Executor`. On the event loop only."""
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        context = copy_context()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                self._finish()
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                self._later(self._settle, future, None, error)
            else:
                self._later(self._settle, future, result, None)

        self._waiting.append(lambda: context.run(self._later, work))
        self._begin()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work. No thread has to be waited for."""
        self._closed = True

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft()()

    def _later(self, callback: Callable[..., None], *args: Any) -> None:
        delay_s = self.delay_s_max * self._random.below(_STEPS) / _STEPS
        asyncio.get_running_loop().call_later(delay_s, callback, *args)

    def _settle(self, future: "Future[Any]", result: object, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
        self._finish()

    def _finish(self) -> None:
        self._free += 1
        self._begin()
