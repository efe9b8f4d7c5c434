"""Choosing the stretches of runs whose small batches are merged, and into what. Pure.

Source: Kafka docs, topic configs `compression.type` and KIP-390 for `compression.*.level`.
"""

from collections.abc import Collection, Sequence
from typing import Final

from penstock.pipeline.api_messages import TopicState
from penstock.pipeline.compaction.growth import Stretch
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.listing import PartitionRuns
from penstock.records.decode import CODECS
from penstock.records.merging import AS_PRODUCED, MERGED_BYTES_MAX, Merging

SMALL: Final = "small"
"""The reason of stretches that are rewritten for their batches' sake alone."""
_BATCHES_MIN: Final = 100
"""A stretch of fewer is left for a join."""

Tried = Collection[tuple[str, int, int, int]]
"""Topic id, partition, base and end offset of runs that merging has written."""


def small_stretches(
    topic: TopicState,
    partition: int,
    runs: PartitionRuns,
    taken: Sequence[Stretch],
    settings: CompactionSettings,
    tried: Tried,
) -> list[Stretch]:
    """Stretches of runs that no join takes, and whose batches are small: long ones too. What
    merging has written once isn't taken again, since it may have found nothing to merge there."""
    clean_end = topic.partitions[partition].clean_end
    busy = {index for one in taken for index in range(one.start, one.end)}
    found: list[Stretch] = []
    start, size, batches = -1, 0, 0

    def end_at(index: int) -> None:
        nonlocal start
        if start >= 0 and batches >= _BATCHES_MIN:
            found.append(Stretch(start, index, size, SMALL))
        start = -1

    for index, (base, end, number, length, count) in enumerate(
        zip(runs.bases, runs.ends, runs.objects, runs.lengths, runs.batches, strict=True)
    ):
        is_small = (
            number >= 0
            and index not in busy
            and length < count * settings.merged_below_bytes
            and length <= settings.object_bytes_target
            and (topic.topic_id, partition, base, end) not in tried
        )
        if start >= 0 and (
            not is_small
            or size >= settings.run_bytes_target
            or runs.bases[start] < clean_end <= base
        ):
            end_at(index)
        if is_small:
            if start < 0:
                start, size, batches = index, 0, 0
            size += length
            batches += count
    end_at(len(runs.bases))
    return found


def merging_of(
    topic: TopicState, runs: PartitionRuns, stretch: Stretch, settings: CompactionSettings
) -> Merging | None:
    """The form that the batches of a stretch are to have; None: they are copied as they are."""
    batches = sum(runs.batches[stretch.start : stretch.end])
    if batches < 2 or stretch.size_bytes >= batches * settings.merged_below_bytes:
        return None
    configs = topic.configs
    codec = configs.get("compression.type", "producer")
    return Merging(
        codec=CODECS.index({"uncompressed": "none"}.get(codec, codec))
        if codec != "producer"
        else AS_PRODUCED,
        gzip_level=int(configs.get("compression.gzip.level", -1)),
        lz4_level=int(configs.get("compression.lz4.level", 9)),
        zstd_level=int(configs.get("compression.zstd.level", 3)),
        bytes_max=min(MERGED_BYTES_MAX, int(configs.get("max.message.bytes", MERGED_BYTES_MAX))),
    )
