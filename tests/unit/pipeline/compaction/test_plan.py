"""Plans: each run at most once, only neighbours, none in a WAL, and the same for the same input."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.api_messages import PartitionState
from penstock.pipeline.compaction.items import CompactionSettings, JoinItem, KeyedItem
from penstock.pipeline.compaction.plan import plan
from support.examples import examples
from support.run_listings import NOW_MS, Run, object_bytes, pages, rows_of, topic_id, topics

SMALL = CompactionSettings(
    run_bytes_target=1000,
    object_bytes_target=3000,
    small_bytes=10,
    old_ms=1000,
    item_runs_max=12,
    item_partitions_max=3,
)


@st.composite
def listings(draw: st.DrawFn) -> list[Run]:
    runs = []
    for topic in range(draw(st.integers(1, 3))):
        for partition in range(draw(st.integers(1, 3))):
            offset = draw(st.integers(0, 5))
            for number in range(draw(st.integers(0, 30))):
                offset += draw(st.integers(0, 1))
                count = draw(st.integers(1, 3))
                in_wal = draw(st.integers(0, 14)) == 0
                runs.append(
                    Run(
                        topic,
                        partition,
                        offset,
                        offset + count,
                        "" if in_wal else f"o{topic}-{partition}-{number}",
                        16,
                        draw(st.sampled_from([1, 9, 50, 200, 400, 999, 1000, 5000])),
                        draw(st.sampled_from([0, NOW_MS])),
                    )
                )
                offset += count
    return runs


@pytest.mark.slow
@given(runs=listings(), page_runs=st.integers(1, 40), whole=st.booleans())
def test_plans_keep_the_rules(runs: list[Run], page_runs: int, whole: bool) -> None:
    listed = {}
    orders: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        place = topic_id(run.topic), run.partition
        listed[*place, run.base, run.end, run.key, run.position, run.length] = run
        orders.setdefault(place, []).append(run)
    sizes = {run.key: (1 if n % 3 else 3) * run.length for n, run in enumerate(runs) if run.key}
    found = plan(pages(runs, page_runs, sizes), topics(3, 3), SMALL, now_ms=NOW_MS, whole=whole)
    seen = set()
    for item in found.items:
        assert isinstance(item, JoinItem)
        assert item.reason
        rows = rows_of(item)
        for row in rows:
            assert row in listed, "only runs that are in objects, as they were listed"
            assert row not in seen, "each run at most once"
            seen.add(row)
        places = [(bytes.fromhex(each.topic_id), each.partition) for each in item.partitions]
        assert places == sorted(set(places)), "as a segment wants them"
        assert len(places) <= SMALL.item_partitions_max
        assert len(item.objects) == len({each.key for each in item.objects})
        assert item.size_bytes <= SMALL.object_bytes_target
        if len(places) > 1:
            assert item.run_count <= SMALL.item_runs_max
        for each in item.partitions:
            order = orders[each.topic_id, each.partition]
            bases = each.inputs[0::5]
            first = [run.base for run in order].index(bases[0])
            between = order[first : first + len(bases)]
            assert [run.base for run in between] == bases, "only neighbours, none in a WAL between"
            assert len(bases) <= SMALL.item_runs_max
            assert len(bases) > 1 or whole, "one run alone is moved out of garbage only"
    again = plan(pages(runs, 7, sizes), topics(3, 3), SMALL, now_ms=NOW_MS, whole=whole)
    assert again == found, "however the pages break"


def one_partition(lengths: list[int], *, newest: int = NOW_MS) -> list[Run]:
    return [Run(0, 0, n, n + 1, f"o{n}", 16, length, newest) for n, length in enumerate(lengths)]


def test_what_is_not_listed_as_a_topic_is_left_alone() -> None:
    runs = one_partition([10] * 10)
    assert plan(pages(runs, 100), {}, SMALL, now_ms=NOW_MS, whole=False).items == []


def test_what_was_replaced_while_it_was_listed_is_left_for_the_next_plan() -> None:
    """A cleaning left of offsets 0 to 29 a run that begins at 7, behind the page with 0 to 9."""
    torn = [
        Run(0, 0, 0, 10, "o0", 16, 10, NOW_MS),
        Run(0, 0, 7, 30, "o1", 16, 10, NOW_MS),
        *(Run(0, 0, 30 + n, 31 + n, f"o{2 + n}", 16, 10, NOW_MS) for n in range(8)),
    ]
    whole = [Run(0, 1, n, n + 1, f"p{n}", 16, 10, NOW_MS) for n in range(8)]
    (item,) = plan(pages([*torn, *whole], 1), topics(1, 2), SMALL, now_ms=NOW_MS, whole=False).items
    assert [each.partition for each in item.partitions] == [1]


def test_small_partitions_share_an_object() -> None:
    runs = [
        Run(0, partition, n, n + 1, f"o{n}", 16 + 10 * partition, 10, NOW_MS)
        for partition in range(3)
        for n in range(4)
    ]
    (item,) = plan(pages(runs, 100), topics(1, 3), SMALL, now_ms=NOW_MS, whole=False).items
    assert [each.partition for each in item.partitions] == [0, 1, 2]
    assert [each.key for each in item.objects] == ["o0", "o1", "o2", "o3"]
    assert item.reason == "3 grow 4-fold"


def test_an_object_holds_a_partition_once() -> None:
    runs = one_partition([500] * 8)
    items = plan(pages(runs, 100), topics(1, 1), SMALL, now_ms=NOW_MS, whole=False).items
    assert [item.partitions[0].inputs[0::5] for item in items] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert {item.reason for item in items} == {"1 reach 0.000953674 MiB"}


def test_objects_with_little_live_are_emptied() -> None:
    runs = [Run(0, 0, 0, 5, "mostly dead", 16, 2000), Run(0, 0, 5, 9, "alive", 16, 2000)]
    sizes = {"mostly dead": 5000, "alive": 2100}
    found = plan(pages(runs, 9, sizes), topics(1, 1), SMALL, now_ms=NOW_MS, whole=True)
    (item,) = found.items
    assert [each.key for each in item.objects] == ["mostly dead"]
    assert "50% is live" in item.reason
    # Where other topics' runs may lie in it, nobody knows how much of it is live.
    assert not plan(pages(runs, 9, sizes), topics(1, 1), SMALL, now_ms=NOW_MS, whole=False).items


def test_a_run_that_is_longer_than_an_object_stays_where_it_is() -> None:
    length = SMALL.object_bytes_target + 1
    runs = [Run(0, 0, 0, 5, "mostly dead", 16, length)]
    sizes = {"mostly dead": 9 * length}
    assert not plan(pages(runs, 9, sizes), topics(1, 1), SMALL, now_ms=NOW_MS, whole=True).items


def test_nothing_is_joined_over_the_end_of_what_is_clean() -> None:
    states = topics(1, 1, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"})
    (topic,) = states.values()
    topic.partitions[0] = PartitionState(log_start=0, high_watermark=99, size_bytes=0, clean_end=4)
    runs = one_partition([50] * 8)
    (first, second) = plan(pages(runs, 9), states, SMALL, now_ms=NOW_MS, whole=False).items
    assert first.partitions[0].inputs[0::5] == [0, 1, 2, 3]
    assert second.partitions[0].inputs[0::5] == [4, 5, 6, 7]


def test_what_is_to_be_cleaned_is_joined_first_where_it_is_too_many_runs() -> None:
    states = topics(1, 1, **{"cleanup.policy": "compact"})
    few, many = one_partition([20] * 12), one_partition([20] * 13)
    large = one_partition([1000] * 13)
    for runs, kind in ((few, KeyedItem), (many, JoinItem), (large, KeyedItem)):
        items = plan(pages(runs, 99), states, SMALL, now_ms=NOW_MS, whole=False).items
        assert {type(item) for item in items} == {kind}


def test_a_plan_counts_what_there_is() -> None:
    runs = [*one_partition([10] * 4), Run(0, 0, 4, 5, "", 0, 77)]
    found = plan(pages(runs, 3), topics(1, 1), SMALL, now_ms=NOW_MS, whole=False)
    assert (found.run_count, found.size_bytes) == (4, 40)
    assert (found.planned_runs, found.planned_bytes) == (4, 40)


@settings(max_examples=examples(0.4))
@given(seed=st.integers(0, 2**32), partitions=st.integers(1, 5))
def test_planning_what_a_plan_made_ends(seed: int, partitions: int) -> None:
    """Done again and again with what it gives, there is soon nothing to do: no run goes in circles,
    and tiny ones aren't taken for garbage because their objects are mostly index."""
    choice = random.Random(seed)
    runs = [
        Run(0, partition, n, n + 1, f"o{n}", 16, choice.choice([1, 20, 100, 400, 700]))
        for partition in range(partitions)
        for n in range(choice.randrange(1, 60))
    ]
    sizes = {key: object_bytes(runs, key) for key in {run.key for run in runs}}
    for round_ in range(20):
        listed = pages(runs, 50, sizes)
        items = plan(listed, topics(1, 5), SMALL, now_ms=NOW_MS, whole=True).items
        if not items:
            break
        for number, item in enumerate(items):
            assert isinstance(item, JoinItem)
            key = f"r{round_}-{number}"
            for each in item.partitions:
                base, end = each.inputs[0], each.inputs[-4]
                runs = [
                    run
                    for run in runs
                    if run.partition != each.partition or not base <= run.base < end
                ]
                runs.append(Run(0, each.partition, base, end, key, 16, each.size_bytes))
            sizes[key] = object_bytes(runs, key)
        runs.sort(key=lambda run: (run.partition, run.base))
    else:
        raise AssertionError("it never ends")
