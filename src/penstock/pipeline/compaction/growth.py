"""Stretches of one partition's runs are chosen that become one run each. Pure.

The rule for each stretch below the target: it is at least `growth` times as long as its longest run
(short runs count as `small_bytes`). So copied bytes lie afterwards in a run that many times as
long, and can be copied again only a logarithmic number of times.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.listing import PartitionRuns


class Stretch(NamedTuple):
    """Runs [start, end) of a partition, and why they are joined: target, growth or old."""

    start: int
    end: int
    size_bytes: int
    reason: str


def choose_stretches(
    runs: PartitionRuns, settings: CompactionSettings, *, old_before_ms: int, clean_end: int = -1
) -> list[Stretch]:
    """The stretches to join, in offset order, without overlap.

    Args:
        old_before_ms: a run whose newest record is older needs less growth.
        clean_end: nothing is joined over this offset: below it the log is clean by key.
    """
    found: list[Stretch] = []
    for start, end in _open_ranges(runs, settings, clean_end):
        found += _choose(runs, start, end, settings, old_before_ms)
    return found


def _open_ranges(
    runs: PartitionRuns, settings: CompactionSettings, clean_end: int
) -> Iterator[tuple[int, int]]:
    """Ranges of adjacent runs that lie in objects and are below the target."""
    target = settings.run_bytes_target
    start, end = 0, len(runs.lengths)
    bases = runs.bases
    splits = -1
    if clean_end > 0 and bases and bases[0] < clean_end:
        splits = next((at for at, base in enumerate(bases) if base >= clean_end), -1)
    for at, (number, length) in enumerate(zip(runs.objects, runs.lengths, strict=True)):
        if number < 0 or length >= target:
            if at - start > 1:
                yield start, at
            start = at + 1
        elif at == splits:
            if at - start > 1:
                yield start, at
            start = at
    if end - start > 1:
        yield start, end


def _choose(
    runs: PartitionRuns, start: int, end: int, settings: CompactionSettings, old_before_ms: int
) -> Iterator[Stretch]:
    lengths = runs.lengths
    target, runs_max = settings.run_bytes_target, settings.item_runs_max
    if end - start <= runs_max and sum(lengths[start:end]) < target:
        yield from _grown(runs, start, end, settings, old_before_ms)
        return
    size = 0
    for at in range(start, end):
        size += lengths[at]
        if size >= target:
            yield Stretch(start, at + 1, size, "target")
        elif at + 1 - start >= runs_max:
            yield from _grown(runs, start, at + 1, settings, old_before_ms)
        else:
            continue
        start, size = at + 1, 0
    if end - start > 1:
        yield from _grown(runs, start, end, settings, old_before_ms)


def _grown(
    runs: PartitionRuns, start: int, end: int, settings: CompactionSettings, old_before_ms: int
) -> list[Stretch]:
    """The longest stretches that grow enough. One that doesn't can only hold such that lie left or
    right of its longest run."""
    small, growth, old_growth = settings.small_bytes, settings.growth, settings.old_growth
    lengths, newest = runs.lengths, runs.newest
    found: list[Stretch] = []
    waiting = [(start, end)]
    while waiting:
        start, end = waiting.pop()
        if end - start < 2:
            continue
        counted = [length if length > small else small for length in lengths[start:end]]  # noqa: FURB136 - a call of max costs more
        total, longest = sum(counted), max(counted)
        if total >= growth * longest:
            found.append(Stretch(start, end, sum(lengths[start:end]), "growth"))
            continue
        old = start
        while old < end and newest[old] < old_before_ms:
            old += 1
        if old - start > 1:
            counted_old = counted[: old - start]
            if sum(counted_old) >= old_growth * max(counted_old):
                found.append(Stretch(start, old, sum(lengths[start:old]), "old"))
                waiting.append((old, end))
                continue
        middle = start + counted.index(longest)
        waiting += [(start, middle), (middle + 1, end)]
    found.sort()
    return found
