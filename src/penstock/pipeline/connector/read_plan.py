"""A read is divided into tasks: ranges of about equal bytes, cut where runs end. Pure."""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from penstock.pipeline.api_messages import RUN_FIELDS, Range, RunPage
from penstock.pipeline.connector.offsets_wanted import TopicRange

GOAL_BYTES_MIN: Final = 1 << 20
"""A task of Spark costs some 10 ms, in which a megabyte is read."""

RunLookup = Callable[[list[Range]], Iterator[RunPage]]
Runs = Mapping[tuple[str, int], Sequence[tuple[int, int, int]]]
"""Per (topic id, partition): (base offset, end offset, bytes) of its runs, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The parameters of a division.

    Args:
        parallelism: the number of tasks that run at a time, as far as is known: twice as many are
            planned, so that a slow task holds up less.
        tasks_min: the least number of tasks, if there are as many records.
        task_bytes: about the greatest number of bytes of a task.
        task_rows: the greatest number of offsets of a task.
    """

    parallelism: int
    task_bytes: int
    tasks_min: int | None = None
    task_rows: int | None = None


def divide(
    ranges: Sequence[TopicRange], division: Division, lookup: RunLookup
) -> list[list[TopicRange]]:
    """Ranges per task; those of one task are of about equal bytes. Nothing for empty ranges.

    Large ranges are cut at the ends of runs, for which their runs are looked up; small ones are
    put together.
    """
    ranges = [one for one in ranges if one.rows > 0]
    goal = _goal(ranges, division)
    large = [one for one in ranges if _pieces(one, goal, division.task_rows) > 1]
    runs = _runs(large, lookup) if large else {}
    cut = [
        piece
        for one in ranges
        for piece in _cut(one, goal, division.task_rows, runs.get((one.topic_id, one.partition)))
    ]
    tasks = _gather(cut, goal, division.task_rows)
    return tasks if division.tasks_min is None else _at_least(tasks, division.tasks_min)


def _goal(ranges: Sequence[TopicRange], division: Division) -> int:
    total = sum(max(one.size_bytes, 1) for one in ranges)
    goal = max(GOAL_BYTES_MIN, total // (2 * division.parallelism))
    goal = min(goal, division.task_bytes)
    if division.tasks_min is not None:
        goal = min(goal, total // division.tasks_min)
    return max(goal, 1)


def _pieces(one: TopicRange, goal: int, task_rows: int | None) -> int:
    # A range is cut in two when it is half as long again as it should be.
    pieces = max(1, round(one.size_bytes / goal))
    if task_rows is not None:
        pieces = max(pieces, -(-one.rows // task_rows))
    return min(pieces, one.rows)


def _runs(ranges: Sequence[TopicRange], lookup: RunLookup) -> Runs:
    runs: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    wanted = [Range(one.topic_id, one.partition, one.start, one.end) for one in ranges]
    for page in lookup(wanted):
        rows = page.rows
        for position in range(0, len(rows), RUN_FIELDS):
            index, base, end = rows[position : position + 3]
            size = rows[position + 5]
            runs.setdefault(page.partitions[index], []).append((base, end, size))
    for of_one in runs.values():
        of_one.sort()
    return runs


def _cut(
    one: TopicRange, goal: int, task_rows: int | None, runs: Sequence[tuple[int, int, int]] | None
) -> Iterator[TopicRange]:
    pieces = _pieces(one, goal, task_rows)
    if pieces == 1:
        yield one
        return
    offsets, sizes = _profile(one, runs or ())
    pieces = max(pieces, min(one.rows, round(sizes[-1] / goal))) if runs else pieces
    cuts = [one.start]
    for number in range(1, pieces):
        cut = _offset_at(offsets, sizes, sizes[-1] * number // pieces, goal // 4)
        if cut > cuts[-1]:
            cuts.append(cut)
    cuts.append(one.end)
    for start, end in pairwise(cuts):
        if end <= start:
            continue
        size = _size_at(offsets, sizes, end) - _size_at(offsets, sizes, start)
        # Rows are the only bound that is a promise: cut again where runs are uneven.
        step = task_rows or end - start
        for first in range(start, end, step):
            last = min(first + step, end)
            share = size * (last - first) // (end - start)
            yield replace(one, start=first, end=last, size_bytes=share)


def _profile(one: TopicRange, runs: Sequence[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """Bytes by offset: rising offsets from the range's start to its end, and the bytes before."""
    offsets, sizes = [one.start], [0]
    for base, end, size in runs:
        first, last = max(base, one.start), min(end, one.end)
        if last <= first or last <= offsets[-1]:
            continue
        share = size * (last - first) // max(end - base, 1)
        offsets.append(last)
        sizes.append(sizes[-1] + share)
    if offsets[-1] < one.end:
        # Not among the runs that were listed: newer than the listing, or a gap.
        left = one.size_bytes - sizes[-1] if len(offsets) == 1 else 0
        offsets.append(one.end)
        sizes.append(sizes[-1] + max(left, 0))
    return offsets, sizes


def _offset_at(offsets: list[int], sizes: list[int], size: int, slack: int) -> int:
    """The offset before which there are about `size` bytes: a run's end, if one is near."""
    after = min(max(bisect_left(sizes, size), 1), len(sizes) - 1)
    if sizes[after] - size <= slack:
        return offsets[after]
    if size - sizes[after - 1] <= slack:
        return offsets[after - 1]
    width = max(sizes[after] - sizes[after - 1], 1)
    share = (offsets[after] - offsets[after - 1]) * (size - sizes[after - 1]) // width
    return offsets[after - 1] + share


def _size_at(offsets: list[int], sizes: list[int], offset: int) -> int:
    after = min(max(bisect_left(offsets, offset), 1), len(offsets) - 1)
    width = max(offsets[after] - offsets[after - 1], 1)
    share = (sizes[after] - sizes[after - 1]) * (offset - offsets[after - 1]) // width
    return sizes[after - 1] + share


def _gather(
    pieces: Sequence[TopicRange], goal: int, task_rows: int | None
) -> list[list[TopicRange]]:
    tasks: list[list[TopicRange]] = []
    size = rows = 0
    for piece in pieces:
        full = size + piece.size_bytes > goal or (
            task_rows is not None and rows + piece.rows > task_rows
        )
        if not tasks or full:
            tasks.append([])
            size = rows = 0
        tasks[-1].append(piece)
        size += piece.size_bytes
        rows += piece.rows
    return tasks


def _at_least(tasks: list[list[TopicRange]], count: int) -> list[list[TopicRange]]:
    """So many tasks, or as many as there are offsets: the largest is cut in two, and again."""
    place = {
        (piece.topic_id, piece.partition): at
        for at, piece in enumerate(piece for task in tasks for piece in task)
    }

    def entry(task: list[TopicRange]) -> tuple[int, int, int, int, list[TopicRange]]:
        first = task[0]
        size, rows = sum(one.size_bytes for one in task), sum(one.rows for one in task)
        return -size, -rows, place[first.topic_id, first.partition], first.start, task

    heap = [entry(task) for task in tasks]
    heapq.heapify(heap)
    whole: list[tuple[int, int, int, int, list[TopicRange]]] = []
    while heap and len(heap) + len(whole) < count:
        largest = heapq.heappop(heap)
        if largest[1] == -1:
            whole.append(largest)
            continue
        for half in _halves(largest[-1]):
            heapq.heappush(heap, entry(half))
    return [task for *_, task in sorted([*heap, *whole], key=lambda one: one[2:4])]


def _halves(task: list[TopicRange]) -> tuple[list[TopicRange], list[TopicRange]]:
    if len(task) == 1:
        (one,) = task
        middle = one.start + one.rows // 2
        before = one.size_bytes * (middle - one.start) // one.rows
        return (
            [replace(one, end=middle, size_bytes=before)],
            [replace(one, start=middle, size_bytes=one.size_bytes - before)],
        )
    half, at = sum(one.size_bytes for one in task) // 2, 1
    gathered = task[0].size_bytes
    while at < len(task) - 1 and gathered + task[at].size_bytes <= half:
        gathered += task[at].size_bytes
        at += 1
    return task[:at], task[at:]
