"""Choosing the runs that a plan has to list: not all of them each time. Pure.

A partition in which the last plan found nothing, and nothing was in a WAL, has nothing to do until
its offsets, its size or its clean end change. Of one that has changed, the runs of full length that
its log begins with are passed over: nothing is joined with them. What no offset shows (age, objects
of which little is live) is found by a plan of all runs, once in a while.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from penstock.pipeline.api_messages import PartitionState, Range, TopicState

WHOLE_MS: Final = 900_000
"""A plan lists all runs so often."""

_TRIED_MAX: Final = 100_000

Place = tuple[str, int]
"""Topic id and partition."""


class Seen(Struct, kw_only=True):
    """A plan's view of one partition. `full_end`: where the runs of full length end with which the
    listing began; -1: it began with none. `is_quiet`: nothing is to be done, and all of it lies in
    objects."""

    full_end: int
    is_quiet: bool


class Memory:
    """The memory of plans. One thread; a process that plans again and again keeps it."""

    def __init__(self, *, whole_ms: int = WHOLE_MS) -> None:
        self._whole_ms = whole_ms
        self._whole_at_ms: int | None = None
        self._quiet: dict[Place, PartitionState] = {}
        self._full_ends: dict[Place, int] = {}
        self.tried: set[tuple[str, int, int, int]] = set()
        """Topic id, partition, base and end offset of runs that merging has written: they aren't
        rewritten for their batches alone again. Bounded: forgotten where there are too many."""

    def ranges(self, topics: Iterable[TopicState], *, now_ms: int) -> list[Range] | None:
        """The ranges to list now; None: all runs."""
        at = self._whole_at_ms
        if at is None or not at <= now_ms < at + self._whole_ms:
            self._whole_at_ms = now_ms
            return None
        found: list[Range] = []
        for topic in topics:
            for number, state in enumerate(topic.partitions):
                place = topic.topic_id, number
                if state.log_start < state.high_watermark and self._quiet.get(place) != state:
                    # Cleaning by key goes over everything.
                    cleans = "compact" in topic.configs.get("cleanup.policy", "")
                    full_end = -1 if cleans else self._full_ends.get(place, -1)
                    start = max(state.log_start, full_end)
                    if start < state.high_watermark:
                        found.append(Range(topic.topic_id, number, start, state.high_watermark))
        return found

    def note(self, topics: Iterable[TopicState], seen: dict[Place, Seen]) -> None:
        """Remember what a plan saw of the partitions that it listed."""
        for topic in topics:
            for number, state in enumerate(topic.partitions):
                place = topic.topic_id, number
                found = seen.get(place)
                if found is None:
                    continue
                if found.is_quiet:
                    self._quiet[place] = state
                else:
                    self._quiet.pop(place, None)
                if found.full_end >= 0:
                    self._full_ends[place] = max(found.full_end, self._full_ends.get(place, -1))

    def note_tried(self, place: Place, base: int, end: int) -> None:
        """Merging has written this run."""
        if len(self.tried) >= _TRIED_MAX:
            self.tried.clear()
        self.tried.add((*place, base, end))

    def forget(self, places: Iterable[Place]) -> None:
        """Look at these again, since their runs were replaced."""
        for place in places:
            self._quiet.pop(place, None)
