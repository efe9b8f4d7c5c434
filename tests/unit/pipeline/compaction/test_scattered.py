"""Old small objects are gathered, so that an idle cluster has few objects."""

from __future__ import annotations

from dataclasses import replace

from msgspec.structs import replace as with_changes

from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.plan import plan
from support.run_listings import NOW_MS, Run, object_bytes, pages, rows_of, topics

SETTINGS = CompactionSettings(old_ms=1000, small_object_bytes=5000)


def lone_runs(count: int, *, length: int = 100) -> list[Run]:
    """One run of each of so many partitions, each in an object of its own."""
    return [Run(0, number, 0, 5, f"o{number}", 16, length) for number in range(count)]


def gathered(
    runs: list[Run],
    *,
    whole: bool = True,
    topic_count: int = 1,
    settings: CompactionSettings = SETTINGS,
) -> list[list[str]]:
    """The objects that each item empties."""
    sizes = {key: object_bytes(runs, key) for key in {run.key for run in runs}}
    found = plan(
        pages(runs, 99, sizes), topics(topic_count, 50), settings, now_ms=NOW_MS, whole=whole
    )
    for item in found.items:
        assert len(rows_of(item)) == item.run_count
    return [[each.key for each in item.objects] for item in found.items]


def test_old_small_objects_become_one() -> None:
    assert gathered(lone_runs(5)) == [["o0", "o1", "o2", "o3", "o4"]]


def test_a_few_stay() -> None:
    assert gathered(lone_runs(3)) == []


def test_young_ones_stay() -> None:
    young = [replace(run, newest=NOW_MS) for run in lone_runs(5)]
    assert gathered(young) == []
    assert gathered([*lone_runs(4), *young[4:]]) == [["o0", "o1", "o2", "o3"]]


def test_large_ones_stay() -> None:
    assert gathered(lone_runs(5, length=5000)) == []


def test_one_that_is_much_longer_stays() -> None:
    """Or its bytes would be moved each time that a few short ones have come."""
    settings = with_changes(SETTINGS, small_bytes=10)
    runs = [*lone_runs(5), Run(0, 9, 0, 5, "long", 16, 4000)]
    assert gathered(runs, settings=settings) == []
    assert gathered(runs[:-1], settings=settings) == [["o0", "o1", "o2", "o3", "o4"]]


def test_an_object_stays_where_one_of_its_runs_does() -> None:
    """What another topic has in it isn't planned here, so nothing would be gained."""
    runs = [*lone_runs(5), Run(1, 0, 0, 5, "o2", 400, 100)]
    assert gathered(runs) == [["o0", "o1", "o3", "o4"]]
    assert gathered(runs, topic_count=2) == [["o0", "o1", "o2", "o3", "o4"]]


def test_a_partition_is_in_an_object_once() -> None:
    runs = [*lone_runs(5), Run(0, 4, 5, 9, "", 0, 100), Run(0, 4, 9, 12, "o5", 16, 100)]
    assert gathered(runs) == [["o0", "o1", "o2", "o3", "o4"]]


def test_nothing_is_gathered_where_not_all_runs_are_known() -> None:
    assert gathered(lone_runs(5), whole=False) == []
