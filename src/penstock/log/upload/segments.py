"""Describing one partition's batches for a segment's index. Pure."""

from collections.abc import Sequence

from penstock.log.upload.plan import PartitionMove
from penstock.model.errors import CorruptDataError
from penstock.segment import RunDescriber, SegmentRun


def segment_run(
    place: tuple[bytes, int], move: PartitionMove, views: Sequence[memoryview]
) -> SegmentRun:
    """Describe one partition's batches for the segment's index; checks that they follow on."""
    subject = f"partition key {move.partition_key}"
    described = RunDescriber(
        base_offset=move.runs[0].base_offset, operation="build segment", subject=subject
    )
    for view in views:
        described.add(view)
    if described.end_offset != move.runs[-1].end_offset or described.length != move.length:
        raise CorruptDataError(
            "build segment",
            subject,
            f"{described.length} bytes up to offset {described.end_offset}, the journal names "
            f"{move.length} bytes up to {move.runs[-1].end_offset}",
        )
    return described.describe(*place)
