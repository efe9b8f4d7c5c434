"""Engines: run one function on many items, on this machine or on Spark's executors.

An item holds everything that its task needs (the agents' URLs, what to read), so that the same task
runs in a thread, in a process and on an executor. Tasks run at least once, and perhaps twice at the
same time: each attempt gives what it writes a name of its own, and only a driver's commit makes the
result live. The caller iterates over results as they come, and draws progress from them.
"""

import logging
import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from threading import Event
from typing import Final, Generic, Protocol, TypeVar

from penstock.model.errors import RetryableError
from penstock.system.backoff import Backoff
from penstock.system.heard import Cause, heard

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

REST: Final = Backoff(first_s=0.5, most_s=30.0)
"""Before a further attempt of an item."""
_QUEUED_PER_WORKER: Final = 2
"""Items handed to a pool ahead of need: more would only cost memory."""


class Engine(Protocol):
    """Runs tasks. `parallelism`: how many of them at the same time, about."""

    @property
    def name(self) -> str:
        """The engine's name for --engine."""
        ...

    @property
    def parallelism(self) -> int:
        """The number of items that run at the same time; plans aim at a few times as many items."""
        ...

    def run(
        self, task: Callable[[T], R], items: Iterable[T], *, attempts: int = 3
    ) -> Generator[tuple[int, R], None, None]:
        """Run `task` on each item.

        An attempt that fails retriably (`RetryableError`, a lost worker) is followed by another.
        When an item fails for good, those that wait are cancelled, and its error is raised; those
        that run may go on until they end. The same where the iterator is closed early.

        Args:
            task: picklable, from a module that executors have too.
            items: picklable.

        Yields:
            (index of the item, its result), as they finish.
        """
        ...


class LocalEngine:
    """Threads of this process, or processes of this machine.

    Args:
        workers: how many; 0: as many as there are cores.
        processes: for tasks that hold the interpreter's lock. Tasks that mostly read, copy and
            run kernels do as well in threads.
    """

    name: Final = "local"

    def __init__(self, workers: int = 0, *, processes: bool = False) -> None:
        self.parallelism = workers or os.cpu_count() or 1
        self._processes = processes

    def run(
        self, task: Callable[[T], R], items: Iterable[T], *, attempts: int = 3
    ) -> Generator[tuple[int, R], None, None]:
        """See `Engine.run`."""
        attempt = Attempts(task, attempts)
        waiting = enumerate(items)
        repeated: list[tuple[int, T, int]] = []
        """Index, item and lost workers so far, of items whose worker died."""
        pool = self._open()
        running: dict[Future[R], tuple[int, T, int]] = {}
        try:
            while True:
                broken = False
                while not broken and len(running) < self.parallelism * _QUEUED_PER_WORKER:
                    if repeated:
                        index, item, lost = repeated.pop()
                    else:
                        following = next(waiting, None)
                        if following is None:
                            break
                        (index, item), lost = following, 0
                    try:
                        running[pool.submit(attempt, item)] = index, item, lost
                    except BrokenProcessPool:
                        # A worker died since the last look; this item wasn't among what it took.
                        repeated.append((index, item, lost))
                        broken = True
                if not running and not broken:
                    return
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    index, item, lost = running.pop(future)
                    try:
                        result = future.result()
                    except BrokenProcessPool as error:
                        # The death of one worker fails every item in the pool, and it isn't known
                        # which item was its: the failure counts for all of them.
                        broken = True
                        if lost + 1 >= attempts:
                            raise lost_worker(f"item {index}", str(error)) from error
                        repeated.append((index, item, lost + 1))
                        continue
                    yield index, result
                if broken:
                    pool.shutdown(wait=True, cancel_futures=True)
                    pool = self._open()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _open(self) -> Executor:
        if not self._processes:
            return ThreadPoolExecutor(self.parallelism, thread_name_prefix="pipeline")
        # Spawned, since a fork copies locks that other threads hold.
        return ProcessPoolExecutor(self.parallelism, multiprocessing.get_context("spawn"))


class Attempts(Generic[T, R]):
    """A task that is tried again while it fails retriably; picklable as the task is."""

    def __init__(self, task: Callable[[T], R], attempts: int) -> None:
        assert attempts > 0
        self._task = task
        self._attempts = attempts

    def __call__(self, item: T) -> R:
        """Run it. Raises: what its last attempt raised."""
        for attempt in range(1, self._attempts):
            try:
                return self._task(item)
            except RetryableError as error:
                rest_s = REST.after(attempt)
                heard(Cause.ATTEMPT, error, logger, f"tried again in {rest_s:g} s")
            Event().wait(rest_s)
        return self._task(item)


def lost_worker(subject: str, detail: str) -> RetryableError:
    """The error of items whose workers die again and again."""
    return RetryableError(
        "run", subject, f"its worker ended each time: {detail}", "is there enough memory for it?"
    )
