"""Which stretches of runs have small batches to merge, and into what. Pure.

Source: Kafka docs, topic configs `compression.type` and KIP-390 for `compression.*.level`.
"""

from penstock.pipeline.api_messages import TopicState
from penstock.pipeline.compaction.growth import Stretch
from penstock.pipeline.compaction.items import CompactionSettings
from penstock.pipeline.compaction.listing import PartitionRuns
from penstock.records.decode import CODECS
from penstock.records.merging import AS_PRODUCED, MERGED_BYTES_MAX, Merging


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
