"""An event loop in a thread of its own, for what listens beside a test that blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, Self, TypeVar

from support.listeners import abort_transports

T = TypeVar("T")
CALL_SECONDS_MAX = 60.0


class Listening(Protocol):
    """What is opened on the loop, and closed there at the end."""

    async def listen(self) -> None:
        """Take a free port."""
        ...

    async def close(self) -> None:
        """Listen no more."""
        ...


class LoopThread:
    """Owns the thread, and all that listens and works on its loop. Use as a context."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._opened: list[Listening] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_SECONDS_MAX)
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS_MAX)

    def listening(self, one: Listening) -> None:
        """Have it listen from now to the end."""
        self.call(one.listen())
        self._opened.append(one)

    async def _end_all(self) -> None:
        for one in self._opened:
            await one.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await abort_transports()
