"""Which partitions are cleaned by key, and up to where: as Kafka's cleaner chooses."""

from __future__ import annotations

import pytest

from penstock.pipeline.api_messages import PartitionState, RunPage, TopicState
from penstock.pipeline.compaction.items import CompactionSettings, KeyedItem
from penstock.pipeline.compaction.keyed_plan import keyed_item
from penstock.pipeline.compaction.listing import Listing, PartitionRuns

NOW_MS = 1_000_000
HOUR_MS = 3_600_000


def choose(
    lengths: list[int],
    *,
    newest: list[int] | None = None,
    wal_from: int | None = None,
    clean_end: int = -1,
    log_start: int = 0,
    **configs: str,
) -> KeyedItem | None:
    """Runs of ten offsets each."""
    count = len(lengths)
    listing = Listing()
    listing.numbers_of(
        RunPage(
            position=1,
            partitions=[],
            object_keys=["only"],
            object_bytes=[1],
            object_raw=[0],
            object_origins=[""],
            rows=[],
        )
    )
    runs = PartitionRuns(
        bases=[10 * n for n in range(count)],
        ends=[10 * n + 10 for n in range(count)],
        objects=[-1 if wal_from is not None and n >= wal_from else 0 for n in range(count)],
        positions=[0] * count,
        lengths=lengths,
        newest=newest or [0] * count,
    )
    state = PartitionState(
        log_start=log_start, high_watermark=10 * count, size_bytes=0, clean_end=clean_end
    )
    texts = {name.replace("_", "."): value for name, value in configs.items()}
    topic = TopicState(
        name="t",
        topic_id="0" * 32,
        configs={"cleanup.policy": "compact"} | texts,
        partitions=[state],
    )
    return keyed_item(topic, 0, runs, listing, CompactionSettings(), now_ms=NOW_MS)


def test_a_log_that_never_was_clean_is_cleaned_whole() -> None:
    item = choose([5, 5, 5])
    assert item is not None
    assert (item.clean_end, item.cleanable_end) == (0, 30)
    assert item.partition.inputs[0::5] == [0, 10, 20]
    assert item.reason == "100% of 3 runs is dirty"


def test_topics_that_only_delete_are_not_cleaned() -> None:
    assert choose([5], cleanup_policy="delete") is None
    both = choose([5], cleanup_policy="compact,delete")
    assert both is not None
    assert both.deletes


@pytest.mark.parametrize(("ratio", "cleans"), [("0.49", True), ("0.5", False)])
def test_enough_must_be_dirty(ratio: str, cleans: bool) -> None:
    item = choose([50, 50], clean_end=10, min_cleanable_dirty_ratio=ratio)
    assert (item is not None) == cleans


def test_nothing_dirty_is_nothing_to_do() -> None:
    assert choose([50, 50], clean_end=20, min_cleanable_dirty_ratio="0.0") is None


def test_what_lies_in_a_wal_waits_with_all_behind_it() -> None:
    item = choose([5, 5, 5], wal_from=1)
    assert item is not None
    assert item.cleanable_end == 10
    assert choose([5, 5], wal_from=0) is None


def test_what_is_young_waits_with_all_behind_it() -> None:
    ages = [NOW_MS - 500, NOW_MS - 99, NOW_MS - 500]
    item = choose([5, 5, 5], newest=ages, min_compaction_lag_ms="100")
    assert item is not None
    assert item.cleanable_end == 10
    assert item.young_ms == NOW_MS - 100


def test_without_a_lag_times_of_the_future_do_not_wait() -> None:
    item = choose([5], newest=[NOW_MS + HOUR_MS])
    assert item is not None
    assert item.young_ms > NOW_MS + HOUR_MS


def test_what_is_too_old_is_cleaned_however_little_it_is() -> None:
    def item(age_ms: int) -> KeyedItem | None:
        return choose(
            [500, 5],
            newest=[0, NOW_MS - age_ms],
            clean_end=10,
            max_compaction_lag_ms="1000",
        )

    assert item(1001) is not None
    assert item(999) is None


def test_the_logs_start_is_where_clean_begins() -> None:
    item = choose([5, 5, 5], log_start=12)
    assert item is not None
    assert (item.clean_end, item.partition.log_start) == (12, 12)
