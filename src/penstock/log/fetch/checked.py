"""Ranges of stored bytes that were checked are remembered, so that reads needn't check them again.

Ranges are of whole batches, by place: an object's key. They are forgotten when the bytes may have
changed (a block left the cache, a file was changed), and `again_s` after the first of a place was
checked, since bytes on a disk may rot while a page cache holds them. Bounded; least recently used
places go first.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

RANGES_MAX: Final = 100_000
"""The ranges of all places together, some 10 MB. Adjacent ranges join, so a place has few."""


class _Place:
    """Disjoint ranges that don't touch one another, ascending; `identity`: of the bytes."""

    __slots__ = ("ends", "identity", "starts", "until_s")

    def __init__(self, until_s: float, identity: Hashable) -> None:
        self.until_s = until_s
        self.identity = identity
        self.starts: list[int] = []
        self.ends: list[int] = []


class CheckedRanges:
    """Event loop only. Times are those of the caller's clock, in seconds."""

    def __init__(self, *, again_s: float, ranges_max: int = RANGES_MAX) -> None:
        self._again_s = again_s
        self._ranges_max = ranges_max
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self.range_count = 0

    def end_of(self, place: str, position: int, now_s: float, identity: Hashable = None) -> int:
        """Return up to where it is checked from `position` on; `position` itself where it isn't."""
        found = self._places.get(place)
        if found is None:
            return position
        if now_s >= found.until_s or found.identity != identity:
            self.forget(place)
            return position
        at = bisect_right(found.starts, position) - 1
        return max(position, found.ends[at]) if at >= 0 else position

    def add(
        self, place: str, start: int, end: int, now_s: float, identity: Hashable = None
    ) -> None:
        """The bytes [start, end) are right."""
        if end <= start:
            return
        found = self._places.get(place)
        if found is not None and found.identity != identity:
            self.forget(place)
            found = None
        if found is None:
            found = self._places[place] = _Place(now_s + self._again_s, identity)
        else:
            self._places.move_to_end(place)
        starts, ends = found.starts, found.ends
        # All that overlap or touch become one.
        first = bisect_right(ends, start - 1)
        last = bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        self.range_count += 1 - (last - first)
        starts[first:last], ends[first:last] = [start], [end]
        while self.range_count > self._ranges_max and len(self._places) > 1:
            self.forget(next(iter(self._places)))

    def forget(self, place: str) -> None:
        """Nothing of a place is known to be right any more."""
        found = self._places.pop(place, None)
        if found is not None:
            self.range_count -= len(found.starts)

    def forget_range(self, place: str, start: int, end: int) -> None:
        """The bytes [start, end) may be others now."""
        found = self._places.get(place)
        if found is None:
            return
        starts, ends = found.starts, found.ends
        first = bisect_right(ends, start)
        last = first
        left: list[tuple[int, int]] = []
        while last < len(starts) and starts[last] < end:
            if starts[last] < start:
                left.append((starts[last], start))
            if ends[last] > end:
                left.append((end, ends[last]))
            last += 1
        self.range_count += len(left) - (last - first)
        starts[first:last], ends[first:last] = [s for s, _ in left], [e for _, e in left]
        if not starts:
            del self._places[place]
