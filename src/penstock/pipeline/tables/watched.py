"""An engine that tells how much of the log its tasks have read."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from penstock.pipeline.engine import Engine

T = TypeVar("T")
R = TypeVar("R")


class WatchedEngine:
    """Another engine, whose results are looked at as they come.

    Args:
        read: called with each result's `bytes_read` and `decoded_bytes`, 0 for results that have
            none; not for items that have to run again.
    """

    def __init__(self, engine: Engine, read: Callable[[int, int], None]) -> None:
        self._engine = engine
        self._read = read

    @property
    def name(self) -> str:
        """The engine's."""
        return self._engine.name

    @property
    def parallelism(self) -> int:
        """The engine's."""
        return self._engine.parallelism

    def run(
        self, task: Callable[[T], R], items: Iterable[T], *, attempts: int = 3
    ) -> Generator[tuple[int, R], None, None]:
        """See `Engine.run`."""
        for index, result in self._engine.run(task, items, attempts=attempts):
            found: Any = result
            if not getattr(found, "unknown", None):
                self._read(getattr(found, "bytes_read", 0), getattr(found, "decoded_bytes", 0))
            yield index, result
