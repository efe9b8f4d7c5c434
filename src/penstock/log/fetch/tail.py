"""The tail cache: batches just written, kept in memory with their final offsets.

A fetch at the tail needs no SQL and no file. Eviction is oldest first over all partitions, by
bytes. A partition's entries are contiguous in offsets, since a gap (a batch that was not kept)
starts its list again.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.model.ids import PartitionKey

ENTRY_BYTES: Final = 512
"""An entry's cost besides its batch: objects, list slots, its share of the request's buffer."""

_COMPACT_AT: Final = 256


@dataclass(slots=True, frozen=True)
class TailRead:
    """Whole batches, in order: views, their bytes in all, and the offset after the last."""

    views: list[memoryview]
    length: int
    end_offset: int


@dataclass(slots=True)
class _Partition:
    """`ends[i]` is the end offset of `views[i]`; what lies before `first` was evicted, and what
    ends at or before `start_offset` was forgotten."""

    start_offset: int
    ends: list[int] = field(default_factory=list)
    views: list[memoryview] = field(default_factory=list)
    first: int = 0

    @property
    def end_offset(self) -> int:
        return self.ends[-1] if len(self.ends) > self.first else self.start_offset

    def drop_first(self) -> None:
        self.start_offset = max(self.start_offset, self.ends[self.first])
        self.views[self.first] = _EMPTY
        self.first += 1
        if self.first >= _COMPACT_AT and self.first * 2 >= len(self.ends):
            del self.ends[: self.first], self.views[: self.first]
            self.first = 0


_EMPTY: Final = memoryview(b"")


class TailCache:
    """Recent batches of all partitions, at most `bytes_max`. Event loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._partitions: dict[PartitionKey, _Partition] = {}
        # Eviction order. The partition object itself is named, so that the queued evictions of a
        # list that was started again fall on the old object and touch nothing live.
        self._order: deque[tuple[_Partition, int]] = deque()
        self.bytes = 0

    def add(self, key: PartitionKey, base_offset: int, end_offset: int, view: memoryview) -> None:
        """Remember a stored batch, whose base offset has been patched."""
        partition = self._partitions.get(key)
        if partition is None or partition.end_offset != base_offset:
            partition = self._partitions[key] = _Partition(base_offset)
        partition.ends.append(end_offset)
        partition.views.append(view)
        size = len(view) + ENTRY_BYTES
        self._order.append((partition, size))
        self.bytes += size
        while self.bytes > self._bytes_max:
            oldest, oldest_size = self._order.popleft()
            oldest.drop_first()
            self.bytes -= oldest_size

    def start_offset(self, key: PartitionKey) -> int | None:
        """The first offset that is cached, or None when nothing is."""
        partition = self._partitions.get(key)
        if partition is None or len(partition.ends) == partition.first:
            return None
        return partition.start_offset

    def end_offset(self, key: PartitionKey) -> int | None:
        """The offset at which the next batch of a partition goes on; None: nothing is cached."""
        partition = self._partitions.get(key)
        if partition is None or len(partition.ends) == partition.first:
            return None
        return partition.end_offset

    def read(
        self, key: PartitionKey, offset: int, bytes_max: int, end_offset: int = 1 << 62
    ) -> TailRead | None:
        """Whole batches from the one that holds `offset` on.

        Args:
            bytes_max: stop before it is passed, but give at least one batch.
            end_offset: give no batch that begins at or after it.

        Returns:
            None when `offset` is not cached (older, or beyond the newest).
        """
        partition = self._partitions.get(key)
        if partition is None or offset < partition.start_offset:
            return None
        ends, views = partition.ends, partition.views
        index = bisect_right(ends, offset, partition.first)
        count = len(ends)
        if index == count:
            return None
        first = index
        length = len(views[index])
        index += 1
        while index < count:
            size = len(views[index])
            if length + size > bytes_max or ends[index - 1] >= end_offset:
                break
            length += size
            index += 1
        return TailRead(views[first:index], length, ends[index - 1])

    def forget_before(self, key: PartitionKey, offset: int) -> None:
        """Drop the batches of a partition that end at or before an offset. Their bytes leave as
        eviction reaches them."""
        partition = self._partitions.get(key)
        if partition is None or offset <= partition.start_offset:
            return
        end = bisect_right(partition.ends, offset, partition.first)
        for index in range(partition.first, end):
            partition.views[index] = _EMPTY
        partition.start_offset = offset

    def forget(self, key: PartitionKey) -> None:
        """Drop a partition (its topic was deleted). Its bytes leave as eviction reaches them."""
        partition = self._partitions.pop(key, None)
        if partition is not None:
            # Keep counting: the queued evictions still pop one entry each.
            partition.views = [_EMPTY] * len(partition.views)

    def partitions(self) -> Iterator[PartitionKey]:
        """The partitions that have an entry here."""
        return iter(self._partitions)
