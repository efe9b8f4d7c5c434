"""The segment object: many partitions' batches, sorted, with an index. Pure."""

from penstock.segment.format import (
    FOOTER_BYTES,
    HEADER_BYTES,
    BuiltSegment,
    Footer,
    IndexedRun,
    Mark,
    SegmentRun,
    build_segment,
    check_header,
    parse_footer,
    parse_index,
)
from penstock.segment.keys import (
    SEGMENTS_PREFIX,
    JobKey,
    SegmentKey,
    epoch_prefixes,
    job_object_key,
    object_key,
    parse_job_key,
    parse_object_key,
)
from penstock.segment.runs import RunDescriber
from penstock.segment.whole import AskedRanges, ask_index, read_index

__all__ = [
    "FOOTER_BYTES",
    "HEADER_BYTES",
    "SEGMENTS_PREFIX",
    "AskedRanges",
    "BuiltSegment",
    "Footer",
    "IndexedRun",
    "JobKey",
    "Mark",
    "RunDescriber",
    "SegmentKey",
    "SegmentRun",
    "ask_index",
    "build_segment",
    "check_header",
    "epoch_prefixes",
    "job_object_key",
    "object_key",
    "parse_footer",
    "parse_index",
    "parse_job_key",
    "parse_object_key",
    "read_index",
]
