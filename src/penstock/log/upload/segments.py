"""Describing one partition's batches for a segment's index. Pure."""

from collections.abc import Sequence
from typing import Final

from penstock.log.upload.plan import PartitionMove
from penstock.model.errors import CorruptDataError
from penstock.records.batch import stored_header
from penstock.segment import Mark, SegmentRun

MARK_BYTES: Final = 64 * 1024
"""A seek reads at most about this much beyond what it wants."""


def segment_run(
    place: tuple[bytes, int], move: PartitionMove, views: Sequence[memoryview]
) -> SegmentRun:
    """Describe one partition's batches for the segment's index; checks that they follow on."""
    topic_id, partition = place
    base_offset = move.runs[0].base_offset
    marks: list[Mark] = []
    position = record_count = batch_count = 0
    marked = -MARK_BYTES
    expected = base_offset
    newest = -1
    for view in views:
        at = 0
        while at < len(view):
            header = stored_header(view, at)
            if header.base_offset < expected or header.length > len(view) - at:
                raise CorruptDataError(
                    "build segment",
                    f"partition key {move.partition_key}",
                    f"batch of offset {header.base_offset} where {expected} is due",
                )
            if position + at - marked >= MARK_BYTES:
                marked = position + at
                marks.append(
                    Mark(base_offset=header.base_offset, position=marked, max_timestamp=newest)
                )
            expected = header.end_offset
            newest = max(newest, header.max_timestamp)
            record_count += header.record_count
            batch_count += 1
            at += header.length
        position += len(view)
    if expected != move.runs[-1].end_offset or position != move.length:
        raise CorruptDataError(
            "build segment",
            f"partition key {move.partition_key}",
            f"{position} bytes up to offset {expected}, the journal names {move.length} bytes "
            f"up to {move.runs[-1].end_offset}",
        )
    return SegmentRun(
        topic_id=topic_id,
        partition=partition,
        base_offset=base_offset,
        end_offset=expected,
        record_count=record_count,
        batch_count=batch_count,
        max_timestamp=newest,
        parts=views,
        length=position,
        marks=marks,
    )
