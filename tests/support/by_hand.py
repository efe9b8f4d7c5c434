"""An executor whose jobs run when the test says so."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class ByHand(Executor):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: work(*arguments, **keywords)))
        return future

    def run(self) -> None:
        """Do the oldest job, on this thread."""
        future, work = self.jobs.pop(0)
        future.set_result(work())
