"""The same instance for programs without an event loop: it has one of its own, in a thread."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.replica.service.machine import Machine
from penstock.replica.service.service import AsyncService
from penstock.replica.service.values import Answer, Settings, Status

T = TypeVar("T")


class Service:
    """Any thread: `with Service.open(...) as service`. Its calls wait; see `AsyncService`."""

    def __init__(self, service: AsyncService, loop: "_Loop") -> None:
        """Use `open`."""
        self._service = service
        self._loop = loop

    @classmethod
    def open(
        cls,
        machine: Machine,
        folder: str | Path,
        *,
        journal: str = "",
        snapshots: str = "",
        settings: Settings | None = None,
    ) -> "Service":
        """See `AsyncService.open`."""
        loop = _Loop()
        try:
            opening = AsyncService.open(
                machine, folder, journal=journal, snapshots=snapshots, settings=settings
            )
            return cls(loop.run(opening), loop)
        except BaseException:
            loop.close()
            raise

    def submit(self, value: Any, *, client: str | None = None, number: int | None = None) -> Answer:
        """See `AsyncService.submit`."""
        return self._loop.run(self._service.submit(value, client=client, number=number))

    def read(self, ask: Callable[[sqlite3.Connection], T], *, token: str | None = None) -> T:
        """See `AsyncService.read`."""
        return self._loop.run(self._service.read(ask, token=token))

    def token(self) -> str:
        """Give the token of what this instance has applied."""
        return self._service.token()

    def catch_up(self) -> None:
        """See `AsyncService.catch_up`."""
        self._loop.run(self._service.catch_up())

    def compare(self) -> bool:
        """See `AsyncService.compare`."""
        return self._loop.run(self._service.compare())

    @property
    def status(self) -> Status:
        """See `AsyncService.status`."""
        return self._service.status

    def close(self) -> None:
        """See `AsyncService.close`."""
        if self._loop.is_open:
            self._loop.run(self._service.close())
            self._loop.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="service", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work on the loop, and wait for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()
