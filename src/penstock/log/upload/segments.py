"""Describing one partition's batches for a segment's index. Pure."""

from collections.abc import Sequence
from typing import Final

from penstock.log.upload.plan import PartitionMove
from penstock.model.errors import CorruptDataError
from penstock.records.batch import HEADER, LENGTH_END
from penstock.segment import Mark, SegmentRun

JOINED_BYTES: Final = 8 * 1024
"""Views that are smaller than this on average are joined."""
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
    unpack = HEADER.unpack_from
    for view in views:
        at, end = 0, len(view)
        while at < end:
            # Of each batch of a segment: by position, since names cost twice the time.
            offset, length, _, _, _, _, delta, _, newest_here, _, _, _, count = unpack(view, at)
            length += LENGTH_END
            if offset < expected or length > end - at:
                raise CorruptDataError(
                    "build segment",
                    f"partition key {move.partition_key}",
                    f"batch of offset {offset} where {expected} is due",
                )
            if position + at - marked >= MARK_BYTES:
                marked = position + at
                marks.append(Mark(base_offset=offset, position=marked, max_timestamp=newest))
            expected = offset + delta + 1
            if newest_here > newest:  # noqa: PLR1730 - a call of max costs more
                newest = newest_here
            record_count += count
            batch_count += 1
            at += length
        position += end
    if expected != move.runs[-1].end_offset or position != move.length:
        raise CorruptDataError(
            "build segment",
            f"partition key {move.partition_key}",
            f"{position} bytes up to offset {expected}, the journal names {move.length} bytes "
            f"up to {move.runs[-1].end_offset}",
        )
    if position < len(views) * JOINED_BYTES:
        # Small ones cost more as buffers of a write than as a copy.
        views = [memoryview(b"".join(views))]
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
