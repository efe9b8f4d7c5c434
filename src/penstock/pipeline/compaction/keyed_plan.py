"""A plan chooses the partitions of compacted topics that are to be cleaned by key now. Pure.

It chooses like Kafka's log cleaner: enough of the log is dirty, or a dirty record is too old.
Records younger than `min.compaction.lag.ms`, or still in a WAL, are not cleaned yet. A run is the
smallest unit of this choice, as a segment is in Kafka. The high watermark here is that of a reader
of committed records, the last stable offset.
Source: Kafka docs, topic configs `min.cleanable.dirty.ratio`, `min.compaction.lag.ms` (KIP-58) and
`max.compaction.lag.ms` (KIP-354).
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from penstock.pipeline.api_messages import TopicState
from penstock.pipeline.compaction.items import (
    CompactionSettings,
    ItemPartition,
    KeyedItem,
)
from penstock.pipeline.compaction.listing import Listing, PartitionRuns

ANY_MS: Final = 2**63 - 1


def keyed_item(
    topic: TopicState,
    partition: int,
    runs: PartitionRuns,
    listing: Listing,
    settings: CompactionSettings,
    *,
    now_ms: int,
) -> KeyedItem | None:
    """The item that cleans a partition; None where there is nothing to clean, or not yet."""
    policies = {word.strip() for word in topic.configs.get("cleanup.policy", "").split(",")}
    if "compact" not in policies or not runs.bases:
        return None
    state = topic.partitions[partition]
    lag_ms = _integer(topic, "min.compaction.lag.ms", 0)
    # Without a lag a record may be of any time, the future's too.
    young_ms = now_ms - lag_ms if lag_ms > 0 else ANY_MS
    clean_end = max(state.clean_end, state.log_start)
    dirty_from = bisect_right(runs.ends, clean_end)
    count = _cleanable(runs, dirty_from, young_ms, state.high_watermark)
    if dirty_from >= count:
        return None
    clean, dirty = sum(runs.lengths[:dirty_from]), sum(runs.lengths[dirty_from:count])
    ratio = dirty / (clean + dirty)
    reason = ""
    if ratio > float(topic.configs.get("min.cleanable.dirty.ratio", "0.5")):
        reason = f"{ratio:.0%} of {count} runs is dirty"
    elif _oldest(runs.newest[dirty_from:count]) < now_ms - _integer(
        topic, "max.compaction.lag.ms", ANY_MS
    ):
        reason = "a dirty run is older than max.compaction.lag.ms"
    if not reason:
        return None
    numbers: dict[int, int] = {}
    inputs = [0] * (5 * count)
    inputs[0::5] = runs.bases[:count]
    inputs[1::5] = runs.ends[:count]
    inputs[2::5] = [numbers.setdefault(number, len(numbers)) for number in runs.objects[:count]]
    inputs[3::5] = runs.positions[:count]
    inputs[4::5] = runs.lengths[:count]
    return KeyedItem(
        objects=[listing.input_object(number) for number in numbers],
        partition=ItemPartition(
            topic_id=topic.topic_id,
            partition=partition,
            inputs=inputs,
            log_start=state.log_start,
            sums=runs.sums[:count],
        ),
        clean_end=clean_end,
        cleanable_end=runs.ends[count - 1],
        young_ms=young_ms,
        now_ms=now_ms,
        delete_retention_ms=_integer(topic, "delete.retention.ms", 86_400_000),
        deletes="delete" in policies,
        run_bytes_target=settings.run_bytes_target,
        object_bytes_target=settings.object_bytes_target,
        reason=reason,
    )


def _cleanable(runs: PartitionRuns, dirty_from: int, young_ms: int, stable_end: int) -> int:
    """Return how many of the first runs may be cleaned. The age counts only for dirty runs."""
    for at, number in enumerate(runs.objects):
        if (
            number < 0
            or runs.ends[at] > stable_end
            or (at >= dirty_from and runs.newest[at] > young_ms)
        ):
            return at
    return len(runs.objects)


def _oldest(newest: Sequence[int]) -> int:
    """The least of some timestamps; -1 is none."""
    return min((time_ms for time_ms in newest if time_ms >= 0), default=ANY_MS)


def _integer(topic: TopicState, name: str, default: int) -> int:
    return int(topic.configs.get(name, default))
