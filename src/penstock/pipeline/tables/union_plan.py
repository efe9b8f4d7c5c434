"""One view of table and log takes from the log what the table's snapshot does not hold. Pure.

The log's ends are pinned before the snapshot is loaded, so that a table may well hold more than
they say: then nothing of that partition is read from the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.model.errors import ConflictError, NotFoundError
from penstock.pipeline.api_messages import PartitionState, Range
from penstock.pipeline.tables.plan import check_history


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionPlan:
    """The log's part of a view. `lost`: what is neither in the table nor in the log any more;
    `begins`: by partition, the first offset that the snapshot does not hold."""

    ranges: tuple[Range, ...]
    begins: dict[int, int]
    lost: tuple[Range, ...]


def plan_union(
    topic_id: str,
    *,
    held: Mapping[int, int],
    epochs: Mapping[int, int],
    pinned: Sequence[PartitionState],
    now: Sequence[PartitionState],
) -> UnionPlan:
    """Return per partition [the snapshot's offset, pinned high watermark), where not empty.

    Args:
        held, epochs: what the snapshot holds: next offsets, and the leader epochs of the records
            before them.
        pinned: the partitions before the snapshot was loaded.
        now: the same partitions, or more, after it was.

    Raises:
        ConflictError: the table holds other records than the log, or the log went back meanwhile.
    """
    check_history(topic_id, now, held, epochs)
    ranges: list[Range] = []
    lost: list[Range] = []
    for partition, state in enumerate(pinned):
        if partition >= len(now) or now[partition].high_watermark < state.high_watermark:
            raise ConflictError(
                "read table and log",
                f"partition {partition} of topic {topic_id}",
                f"its high watermark was {state.high_watermark} and has gone back",
                "a restore goes on: read again once it is through",
            )
        # Where the table has nothing it begins at the log's start, as its job does.
        start = held.get(partition, state.log_start)
        end = state.high_watermark
        available = min(max(start, state.log_start, now[partition].log_start), end)
        if start < available:
            lost.append(Range(topic_id, partition, start, available))
        if max(start, available) < end:
            ranges.append(Range(topic_id, partition, max(start, available), end))
    # Also of partitions that came after the pin: the snapshot may hold records of them.
    begins = {number: state.log_start for number, state in enumerate(pinned)} | dict(held)
    return UnionPlan(ranges=tuple(ranges), begins=begins, lost=tuple(lost))


def lost_error(topic: str, lost: Range) -> NotFoundError:
    """Return the error of a view that lacks records."""
    return NotFoundError(
        "read table and log",
        f"{topic}-{lost.partition}",
        f"the table holds offsets below {lost.start} and the log begins at {lost.end}: "
        f"{lost.end - lost.start} offsets are in neither",
        "retention or DeleteRecords was faster than the table (penstock.table.retention.wait.ms): "
        "failOnDataLoss=false reads the rest",
    )


def cleaned_since(
    ranges: Sequence[Range], clean_ends: Mapping[int, int], now: Sequence[PartitionState]
) -> Iterator[Range]:
    """Yield the parts of ranges that compaction by key has cleaned since they were pinned: of a key
    that has a newer record past the pinned end, no record may be left there.

    Args:
        clean_ends: by partition, up to where it had cleaned when they were pinned.
    """
    for wanted in ranges:
        known_end = max(clean_ends[wanted.partition], wanted.start)
        clean_end = min(now[wanted.partition].clean_end, wanted.end)
        if known_end < clean_end:
            yield Range(wanted.topic_id, wanted.partition, known_end, clean_end)
