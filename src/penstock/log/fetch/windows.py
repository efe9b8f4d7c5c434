"""Windows remember where runs lie, as far as reads have asked: a few consecutive runs a partition.

Least recently used, bounded by runs in total and not by partitions: a run costs some 470 bytes
as an object, and a partition may have one or many.
"""

from bisect import bisect_right
from collections import OrderedDict
from typing import Final

from penstock.model.ids import PartitionKey
from penstock.state.rows import StoredRun

RUNS_MAX: Final = 100_000
"""Runs of all windows; together some 47 MB."""


class RunWindows:
    """Consecutive runs by partition, as the last query gave them."""

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        self._runs_max = runs_max
        self._windows: OrderedDict[PartitionKey, list[StoredRun]] = OrderedDict()
        self.run_count = 0

    def find(self, key: PartitionKey, offset: int) -> StoredRun | None:
        """The run that holds `offset` or the next one after it, if the window spans it."""
        window = self._windows.get(key)
        if window is None or not window[0].base_offset <= offset < window[-1].end_offset:
            return None
        self._windows.move_to_end(key)
        return window[bisect_right(window, offset, key=_end_offset)]

    def put(self, key: PartitionKey, window: list[StoredRun]) -> None:
        """Take a partition's window instead of the one that it had; an empty one is none."""
        self.forget(key)
        if not window:
            return
        self._windows[key] = window
        self.run_count += len(window)
        while self.run_count > self._runs_max:
            _, evicted = self._windows.popitem(last=False)
            self.run_count -= len(evicted)

    def forget(self, key: PartitionKey) -> None:
        """Drop what is known of a partition."""
        self.run_count -= len(self._windows.pop(key, ()))


def _end_offset(run: StoredRun) -> int:
    return run.end_offset
