"""Work that comes round: one owner for all of it, each job with an interval and a name."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import FatalStorageError
from penstock.system.background import Work, of_loop

MARKERS_S: Final = 60.0
"""How often markers that no uploader takes along are put into a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`run` is called each `interval_s` seconds, first after one interval, never twice at once.

    `matters`: see `Work`.
    """

    name: str
    interval_s: float
    run: Callable[[], Awaitable[object]]
    matters: bool = False

    @property
    def work(self) -> Work:
        """The name under which its failures are counted, and whether they matter."""
        return Work(name=self.name, matters=self.matters)


class Jobs:
    """Runs jobs until it is closed. Event loop only."""

    def __init__(self, jobs: list[Job], *, on_fatal: Callable[[BaseException], None]) -> None:
        """
        Args:
            on_fatal: called when a job finds out that it is unknown what is durable.
        """
        self._jobs = jobs
        self._on_fatal = on_fatal
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        loop = asyncio.get_running_loop()
        for job in self._jobs:
            of_loop().expect(job.work)
        self._tasks = [loop.create_task(self._repeat(job), name=job.name) for job in self._jobs]

    async def close(self) -> None:
        """Stop; a run under way is cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _repeat(self, job: Job) -> None:
        loop, background, work = asyncio.get_running_loop(), of_loop(), job.work
        then = f"; next try in {job.interval_s:g} s"
        while True:
            interval_over: asyncio.Future[None] = loop.create_future()
            timer = loop.call_later(job.interval_s, _finish, interval_over)
            try:
                await interval_over
            finally:
                timer.cancel()
            try:
                await job.run()
                background.succeeded(work)
            except FatalStorageError as error:
                self._on_fatal(error)
            except Exception as error:  # noqa: BLE001 - a bug in one round must not end the rounds
                background.failed(work, error, then)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
