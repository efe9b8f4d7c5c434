from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.api_messages import Range, RunPage
from penstock.pipeline.connector.offsets_wanted import TopicRange
from penstock.pipeline.connector.read_plan import GOAL_BYTES_MIN, Division, divide

MIB = 1 << 20


class Cluster:
    """Runs of partitions, listed in pages as the API does."""

    def __init__(self, runs: dict[tuple[str, int], list[tuple[int, int, int]]], page: int = 3):
        self.runs = runs
        self.page = page
        self.asked: list[Range] = []

    def lookup(self, ranges: list[Range]) -> Iterator[RunPage]:
        self.asked += ranges
        rows = [
            (one, run)
            for one in ranges
            for run in self.runs.get((one.topic_id, one.partition), [])
            if run[0] < one.end and one.start < run[1]
        ]
        for first in range(0, len(rows), self.page):
            some = rows[first : first + self.page]
            partitions = list(dict.fromkeys((o.topic_id, o.partition) for o, _ in some))
            yield RunPage(
                position=1,
                partitions=partitions,
                object_keys=["k"],
                object_bytes=[0],
                object_raw=[0],
                object_origins=[""],
                rows=[
                    number
                    for one, (base, end, size) in some
                    for number in (
                        partitions.index((one.topic_id, one.partition)),
                        base,
                        end,
                        0,
                        0,
                        size,
                        0,
                        1,
                    )
                ],
            )


def a_range(partition: int, start: int, end: int, size_bytes: int, topic: str = "t") -> TopicRange:
    return TopicRange(
        topic=topic,
        topic_id=topic,
        partition=partition,
        start=start,
        end=end,
        size_bytes=size_bytes,
    )


def spans(tasks: list[list[TopicRange]]) -> list[tuple[int, int, int]]:
    return [(one.partition, one.start, one.end) for task in tasks for one in task]


def test_nothing_to_read_needs_no_task():
    assert divide([a_range(0, 5, 5, 100)], Division(parallelism=2, task_bytes=MIB), None) == []


def test_small_partitions_share_a_task_without_looking_up_runs():
    ranges = [a_range(partition, 0, 10, 1000) for partition in range(100)]
    tasks = divide(ranges, Division(parallelism=2, task_bytes=64 * MIB), None)
    assert len(tasks) == 1
    assert spans(tasks) == [(p, 0, 10) for p in range(100)]


def test_a_large_partition_is_cut_where_runs_end():
    cluster = Cluster({("t", 0): [(n * 10, n * 10 + 10, 8 * MIB) for n in range(16)]})
    tasks = divide(
        [a_range(0, 0, 160, 128 * MIB)],
        Division(parallelism=2, task_bytes=64 * MIB),
        cluster.lookup,
    )
    assert spans(tasks) == [(0, 0, 40), (0, 40, 80), (0, 80, 120), (0, 120, 160)]


def test_one_large_run_is_cut_within():
    cluster = Cluster({("t", 0): [(0, 1000, 400 * MIB)]})
    tasks = divide(
        [a_range(0, 100, 900, 320 * MIB)],
        Division(parallelism=1, task_bytes=80 * MIB),
        cluster.lookup,
    )
    assert spans(tasks) == [(0, 100, 300), (0, 300, 500), (0, 500, 700), (0, 700, 900)]


def test_uneven_runs_give_tasks_of_even_bytes():
    """Offsets say nothing of bytes: a compacted head and a fat tail."""
    runs = [(0, 100_000, MIB)] + [(100_000 + n, 100_001 + n, 10 * MIB) for n in range(10)]
    tasks = divide(
        [a_range(0, 0, 100_010, 101 * MIB)],
        Division(parallelism=2, task_bytes=25 * MIB),
        Cluster({("t", 0): runs}).lookup,
    )
    sizes = [sum(one.size_bytes for one in task) for task in tasks]
    assert max(sizes) <= 31 * MIB
    assert len(tasks) == 4


def test_so_many_partitions_at_least():
    cluster = Cluster({("t", 0): [(0, 100, 50_000)], ("t", 1): [(0, 100, 50_000)]})
    tasks = divide(
        [a_range(0, 0, 100, 50_000), a_range(1, 0, 100, 50_000)],
        Division(parallelism=2, task_bytes=64 * MIB, tasks_min=8),
        cluster.lookup,
    )
    assert len(tasks) >= 8


def test_few_records_are_never_cut_into_nothing():
    tasks = divide(
        [a_range(0, 7, 10, 300)],
        Division(parallelism=2, task_bytes=MIB, tasks_min=50),
        Cluster({}).lookup,
    )
    assert spans(tasks) == [(0, 7, 8), (0, 8, 9), (0, 9, 10)]


def test_only_what_is_cut_is_looked_up():
    cluster = Cluster({("t", 1): [(0, 1000, 100 * MIB)]})
    divide(
        [a_range(0, 0, 10, 10), a_range(1, 0, 1000, 100 * MIB)],
        Division(parallelism=2, task_bytes=64 * MIB),
        cluster.lookup,
    )
    assert [one.partition for one in cluster.asked] == [1]


@st.composite
def worlds(draw):
    runs, ranges = {}, []
    for partition in range(draw(st.integers(1, 4))):
        edges = sorted(draw(st.sets(st.integers(0, 500), min_size=2, max_size=8)))
        listed = []
        for base, end in pairwise(edges):
            if draw(st.booleans()):  # gaps stay where compaction took all
                listed.append((base, end, draw(st.integers(61, 3 * GOAL_BYTES_MIN))))
        runs["t", partition] = listed
        start = draw(st.integers(edges[0], edges[-1]))
        end = draw(st.integers(start, edges[-1]))
        size = draw(st.integers(0, 10 * GOAL_BYTES_MIN))
        ranges.append(a_range(partition, start, end, size))
    division = Division(
        parallelism=draw(st.integers(1, 8)),
        task_bytes=draw(st.integers(1, 4 * GOAL_BYTES_MIN)),
        tasks_min=draw(st.none() | st.integers(1, 40)),
        task_rows=draw(st.none() | st.integers(1, 60)),
    )
    return runs, ranges, division


@given(worlds())
def test_tasks_hold_each_offset_once_and_in_order(world):
    runs, ranges, division = world
    tasks = divide(ranges, division, Cluster(runs).lookup)
    assert all(task for task in tasks)
    for wanted in ranges:
        pieces = [(s, e) for p, s, e in spans(tasks) if p == wanted.partition]
        covered = [offset for s, e in pieces for offset in range(s, e)]
        assert covered == list(range(wanted.start, wanted.end))
        assert all(s < e for s, e in pieces)


@given(worlds())
def test_no_task_has_more_records_than_allowed(world):
    runs, ranges, division = world
    for task in divide(ranges, division, Cluster(runs).lookup):
        if division.task_rows is not None:
            assert sum(one.rows for one in task) <= division.task_rows


@given(worlds())
def test_so_many_tasks_at_least_as_are_wanted_and_as_there_are_records_for(world):
    runs, ranges, division = world
    tasks = divide(ranges, division, Cluster(runs).lookup)
    assert len(tasks) >= min(division.tasks_min or 0, sum(one.rows for one in ranges))


def test_tasks_that_are_missing_come_from_the_largest():
    """Three partitions, none of which is half as long again as a task should be."""
    ranges = [a_range(partition, 0, 100, size) for partition, size in enumerate((900, 1000, 950))]
    tasks = divide(ranges, Division(parallelism=2, task_bytes=MIB, tasks_min=4), Cluster({}).lookup)
    assert [spans([task]) for task in tasks] == [
        [(0, 0, 100)], [(1, 0, 50)], [(1, 50, 100)], [(2, 0, 100)],
    ]  # fmt: skip


@given(worlds())
def test_a_plan_made_again_is_the_same(world):
    runs, ranges, division = world
    assert divide(ranges, division, Cluster(runs).lookup) == divide(
        ranges, division, Cluster(runs, page=100).lookup
    )


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_twice_as_many_tasks_as_run_at_a_time(count):
    runs = [(n, n + 1, 100 * MIB // count) for n in range(count)]
    tasks = divide(
        [a_range(0, 0, count, 100 * MIB)],
        Division(parallelism=4, task_bytes=64 * MIB),
        Cluster({("t", 0): runs}).lookup,
    )
    assert len(tasks) == min(8, count)
