"""A new table begins in its topic at the log's start, its end, an instant, or offsets.

The offsets are the table's property BEGIN_PROPERTY, and count where no snapshot says any: until the
first commit, and after a rollback to before it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import pyarrow.compute as pc

from penstock.model.errors import InvalidRequestError
from penstock.pipeline.api_messages import RUN_FIELDS, Range, TopicState
from penstock.pipeline.client import PipelineClient
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.ranges import read_range
from penstock.pipeline.tables.offsets import BEGIN_PROPERTY, Holdings, encode_offsets
from penstock.pipeline.tables.rows import decode_records

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def begin_property(topic_id: str, offsets: Mapping[int, int]) -> dict[str, str]:
    """The property of a new table; none where it begins at the log's start."""
    if not offsets:
        return {}
    return {BEGIN_PROPERTY: encode_offsets(Holdings({topic_id: dict(offsets)}))}


def begin_offsets(client: PipelineClient, topic: TopicState, begin: str) -> dict[int, int]:
    """The first offset of each partition, within its log; {}: all that the log has.

    Args:
        begin: earliest or "", latest, an instant with its zone (the first record of that time or
            a later one), or PARTITION:OFFSET,... (other partitions from their log's start).

    Raises:
        InvalidRequestError: it is none of these, or names a partition that isn't there.
    """
    if begin in {"", EARLIEST}:
        return {}
    if begin == LATEST:
        return {number: state.high_watermark for number, state in enumerate(topic.partitions)}
    instant = _instant_ms(begin)
    if instant is not None:
        return _offsets_at(client, topic, instant)
    given = _given(topic, begin)
    return {
        number: min(max(given.get(number, 0), state.log_start), state.high_watermark)
        for number, state in enumerate(topic.partitions)
    }


def _instant_ms(begin: str) -> int | None:
    try:
        instant = datetime.fromisoformat(begin)
    except ValueError:
        return None
    if instant.tzinfo is None:
        raise _refused(begin, "has no zone")
    return int(instant.timestamp() * 1000)


def _given(topic: TopicState, begin: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for part in begin.split(","):
        partition, _, offset = part.partition(":")
        if not (partition.strip().isdecimal() and offset.strip().isdecimal()):
            raise _refused(begin, f"{part} is not PARTITION:OFFSET")
        if int(partition) >= len(topic.partitions):
            raise _refused(begin, f"topic {topic.name} has {len(topic.partitions)} partitions")
        found[int(partition)] = int(offset)
    return found


def _offsets_at(client: PipelineClient, topic: TopicState, instant_ms: int) -> dict[int, int]:
    offsets = {number: state.high_watermark for number, state in enumerate(topic.partitions)}
    areas = [
        Range(
            topic_id=topic.topic_id,
            partition=number,
            start=state.log_start,
            end=state.high_watermark,
        )
        for number, state in enumerate(topic.partitions)
        if state.log_start < state.high_watermark
    ]
    if not areas:
        return offsets
    # Runs with a record of that time or later, by partition and offset; mostly the first has it.
    late: dict[int, list[Range]] = {}
    starts = {area.partition: area.start for area in areas}
    for page in client.runs(areas):
        for index in range(0, len(page.rows), RUN_FIELDS):
            number, base, end, _, _, _, max_timestamp, _ = page.rows[index : index + RUN_FIELDS]
            partition = page.partitions[number][1]
            start, end = max(base, starts[partition]), min(end, offsets[partition])
            if max_timestamp >= instant_ms and start < end:
                late.setdefault(partition, []).append(
                    Range(topic_id=topic.topic_id, partition=partition, start=start, end=end)
                )
    with ObjectAccess(client) as objects:
        for partition, runs in late.items():
            for run in sorted(runs, key=lambda run: run.start):
                found = _first_at(client, objects, run, instant_ms)
                if found is not None:
                    offsets[partition] = found
                    break
    return offsets


def _first_at(
    client: PipelineClient, objects: ObjectAccess, run: Range, instant_ms: int
) -> int | None:
    for part in read_range(client, objects, run):
        for records in decode_records(
            part.body, partition=run.partition, start=run.start, end=run.end
        ):
            times = records.rows.column("timestamp").cast("int64")
            late = pc.greater_equal(times, instant_ms * 1000).fill_null(False)  # noqa: FBT003
            offsets = records.rows.column("offset").filter(late)
            if len(offsets):
                return int(offsets[0].as_py())
    return None


def _refused(begin: str, detail: str) -> InvalidRequestError:
    return InvalidRequestError(
        "begin a table",
        begin,
        detail,
        "give earliest, latest, an instant as 2024-02-29T12:00:00Z, or PARTITION:OFFSET,...",
    )
