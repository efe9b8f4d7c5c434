"""The bound on how often a byte is copied, which is what the rule of growth is for."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.compaction.growth import Stretch, choose_stretches
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.listing import PartitionRuns

SETTINGS = CompactionSettings(run_bytes_target=4096, small_bytes=16, item_runs_max=50)


def partition(lengths: list[int], newest: list[int] | None = None) -> PartitionRuns:
    count = len(lengths)
    return PartitionRuns(
        bases=list(range(count)),
        ends=list(range(1, count + 1)),
        objects=[0] * count,
        positions=[0] * count,
        lengths=lengths,
        newest=newest or [0] * count,
    )


def chosen(lengths: list[int], *, old: bool = False) -> list[tuple[int, int, str]]:
    stretches = choose_stretches(partition(lengths), SETTINGS, old_before_ms=1 if old else 0)
    return [(each.start, each.end, each.reason) for each in stretches]


def test_large_runs_are_left_alone() -> None:
    assert chosen([5000, 4096, 5000, 9999]) == []


def test_neighbours_are_joined_up_to_the_target() -> None:
    assert chosen([2000, 2000, 2000, 3000]) == [(0, 3, "target")]


def test_below_the_target_runs_must_grow() -> None:
    assert chosen([100, 100, 100]) == []
    assert chosen([100, 100, 100, 100]) == [(0, 4, "growth")]
    assert chosen([1000, 100, 100, 100, 100]) == [(1, 5, "growth")]


def test_old_ones_must_grow_less() -> None:
    assert chosen([100, 100], old=True) == [(0, 2, "old")]
    assert chosen([1000, 100], old=True) == []


def test_short_ones_cost_nothing() -> None:
    assert chosen([16, 1, 1, 1]) == [(0, 4, "growth")]


def test_old_ones_are_joined_before_young_ones() -> None:
    runs = partition([100, 100, 100], [0, 0, 50])
    assert choose_stretches(runs, SETTINGS, old_before_ms=10) == [Stretch(0, 2, 200, "old")]


def test_runs_in_a_wal_part_stretches() -> None:
    runs = partition([100] * 9)
    runs.objects[4] = -1
    found = choose_stretches(runs, SETTINGS, old_before_ms=0)
    assert [(each.start, each.end) for each in found] == [(0, 4), (5, 9)]


def test_many_runs_are_joined_in_lots() -> None:
    found = chosen([1] * 120)
    assert [(start, end) for start, end, _ in found] == [(0, 50), (50, 100), (100, 120)]


@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=200),
    old=st.booleans(),
    arrivals=st.integers(1, 9),
)
def test_a_byte_is_copied_a_logarithmic_number_of_times(
    lengths: list[int], old: bool, arrivals: int
) -> None:
    """Runs come some at a time, and whatever is chosen is joined before the next come."""
    growth = SETTINGS.old_growth
    rows: list[tuple[int, list[tuple[int, int]]]] = []
    """Per run its length, and (length at first, copies) of each run that went into it."""
    for start in range(0, len(lengths), arrivals):
        rows += [(length, [(length, 0)]) for length in lengths[start : start + arrivals]]
        while True:
            runs = partition([length for length, _ in rows])
            stretches = choose_stretches(runs, SETTINGS, old_before_ms=1 if old else 0)
            if not stretches:
                break
            for first, end, size_bytes, _ in reversed(stretches):
                parts = [(at, n + 1) for _, inside in rows[first:end] for at, n in inside]
                rows[first:end] = [(size_bytes, parts)]
    for _, inside in rows:
        for length, copies in inside:
            counted = max(length, SETTINGS.small_bytes)
            # Short runs count as long ones, so what many of them make may grow for their number.
            bound = math.log(SETTINGS.run_bytes_target / counted, growth) + 1
            bound += math.log(SETTINGS.small_bytes, growth) if length < SETTINGS.small_bytes else 0
            assert copies <= math.ceil(bound), (length, copies)
