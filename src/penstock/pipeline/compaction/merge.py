"""Merging the small batches of one partition's runs, where joining would copy them. Pure.

docs/compaction.md, "Which batches are merged", has the rules. Offsets and labels are made final
first, and each run's sum is compared with the journal's, as joining does it.
"""

from struct import Struct
from typing import Final

import numpy as np

from penstock.kernels.merging import Merger
from penstock.kernels.settle import settle
from penstock.model.errors import CorruptDataError
from penstock.pipeline.compaction.items import ItemPartition, JoinItem
from penstock.pipeline.compaction.join import OPERATION, damaged, join_partition, rows_of
from penstock.records.sums import partition_seed
from penstock.segment import RunDescriber, SegmentRun

_OFFSET: Final = Struct(">q")


class PartitionMerger:
    """Merges partition by partition, in memory that is used again. One thread."""

    def __init__(self) -> None:
        self._merger = Merger()

    def __call__(
        self, item: JoinItem, partition: ItemPartition, space: memoryview
    ) -> tuple[SegmentRun, int]:
        """One partition's run, of the bytes of its runs one behind the other; and how many batches
        became part of a larger one.

        Raises:
            CorruptDataError: as `penstock.pipeline.compaction.join.join_runs`.
        """
        try:
            return self._merge(item, partition, space)
        except CorruptDataError:
            # Joining looks at the same bytes run by run, and names object and place.
            join_partition(item, partition, space)
            raise

    def _merge(
        self, item: JoinItem, partition: ItemPartition, space: memoryview
    ) -> tuple[SegmentRun, int]:
        merging = partition.merging
        assert merging is not None
        subject = f"partition {partition.partition} of topic id {partition.topic_id}"
        seed = partition_seed(bytes.fromhex(partition.topic_id), partition.partition)
        kept_from = _settled(item, partition, space, seed, subject)
        kept = space[kept_from:]
        first = partition.inputs[0] if not kept_from else _OFFSET.unpack_from(kept)[0]
        described = RunDescriber(base_offset=first, operation=OPERATION, subject=subject, seed=seed)
        before = self._merger.merged_batches
        for batches in self._merger.merge(kept, merging, subject=subject):
            described.add(batches)
        run = described.describe(bytes.fromhex(partition.topic_id), partition.partition)
        return run, self._merger.merged_batches - before


def _settled(
    item: JoinItem, partition: ItemPartition, space: memoryview, seed: int, subject: str
) -> int:
    """Make offsets and labels final: where the bytes that are kept begin."""
    data = np.frombuffer(space, dtype=np.uint8)
    at = wanted = 0
    for run, (base_offset, end_offset, index, _, length) in enumerate(rows_of(partition)):
        behind, following, begin, found = settle(
            data,
            at,
            at + length,
            expected=base_offset,
            raw=item.objects[index].raw,
            log_start=partition.log_start,
            seed=seed,
        )
        if behind != at + length or following != end_offset:
            detail = f"its batches end at offset {following - 1}"
            raise damaged(subject, item, base_offset, end_offset, index, detail)
        partition.check_sum(run, found)
        # The very last batch stays in any case; where it is, only joining looks.
        if at < begin < len(space):
            wanted = begin
        at += length
    return wanted
