"""A read takes partitions, and ranges of them, out of what a cluster has now. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.model.errors import InvalidRequestError, NotFoundError
from penstock.pipeline.api_messages import PartitionState, TopicState
from penstock.pipeline.connector.losses import Losses
from penstock.pipeline.connector.options import EARLIEST, LATEST, ReadOptions, Wanted

TimeLookup = Callable[[list[tuple[str, int, int]]], list[int]]
"""Per (topic id, partition, ms): the first offset of that time or later, or -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRange:
    """Offsets [start, end) of a partition that is to be read, and about how many bytes they are."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    size_bytes: int = 0

    @property
    def rows(self) -> int:
        """Offsets, of which compaction may have removed some."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """One partition that a read takes, as it is now."""

    topic: str
    topic_id: str
    partition: int
    state: PartitionState

    def range(self, start: int, end: int) -> TopicRange:
        """A range of it, its size by the partition's mean."""
        offsets = max(1, self.state.high_watermark - self.state.log_start)
        return TopicRange(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            start=start,
            end=end,
            size_bytes=self.state.size_bytes * (end - start) // offsets,
        )


def choose(options: ReadOptions, topics: Sequence[TopicState]) -> list[Chosen]:
    """The partitions that `subscribe`, `subscribePattern` or `assign` name.

    Args:
        topics: those of the names, or those that match the pattern.

    Raises:
        NotFoundError: a topic or partition that is named isn't there.
    """
    found = {topic.name: topic for topic in topics}
    for name in options.names or options.assigned or ():
        if name not in found:
            raise NotFoundError("read", f"topic {name!r}", "there is no such topic")
    return [
        Chosen(topic=topic.name, topic_id=topic.topic_id, partition=partition, state=state)
        for topic in sorted(topics, key=lambda topic: topic.name)
        for partition, state in taken(options.assigned, topic)
    ]


def taken(
    assigned: Mapping[str, tuple[int, ...]] | None, topic: TopicState
) -> Iterator[tuple[int, PartitionState]]:
    """The partitions of a topic that a read takes: those assigned, or all.

    Raises:
        NotFoundError: an assigned one isn't there.
    """
    if assigned is None:
        yield from enumerate(topic.partitions)
        return
    for partition in assigned[topic.name]:
        if partition >= len(topic.partitions):
            raise NotFoundError(
                "read",
                f"{topic.name}-{partition}",
                f"the topic has {len(topic.partitions)} partitions, from 0 on",
            )
        yield partition, topic.partitions[partition]


def starts(
    options: ReadOptions, chosen: Sequence[Chosen], lookup: TimeLookup, losses: Losses
) -> list[int]:
    """Return the offset to begin at, per chosen partition, after `check_each`.

    Raises:
        InvalidRequestError: an offset above the high watermark, or a time at which there is no
            record yet.
        LogTruncatedError: an offset below the log's start, unless losses are allowed.
    """
    positions = _positions(options.starting, chosen, lookup)
    answer = []
    for one, position in zip(chosen, positions, strict=True):
        state = one.state
        if position is None:
            if options.strategy == "error":
                raise InvalidRequestError(
                    "read",
                    f"{one.topic}-{one.partition}",
                    "has no record as late as the starting timestamp",
                    "startingOffsetsByTimestampStrategy=latest begins at its end",
                )
            position = state.high_watermark
        elif position == EARLIEST:
            position = state.log_start
        elif position == LATEST:
            position = state.high_watermark
        if position > state.high_watermark:
            raise _too_high("startingOffsets", one, position)
        if position < state.log_start:
            losses.truncated(one.topic, one.partition, wanted=position, available=state.log_start)
            position = state.log_start
        answer.append(position)
    return answer


def ends(options: ReadOptions, chosen: Sequence[Chosen], lookup: TimeLookup) -> list[int]:
    """Return the offset to end at, per chosen partition, never after its high watermark.

    Raises:
        InvalidRequestError: an offset above the high watermark.
    """
    positions = _positions(options.ending, chosen, lookup)
    answer = []
    for one, position in zip(chosen, positions, strict=True):
        if position is None or position == LATEST:
            position = one.state.high_watermark
        if position > one.state.high_watermark:
            raise _too_high("endingOffsets", one, position)
        answer.append(position)
    return answer


def _positions(wanted: Wanted, chosen: Sequence[Chosen], lookup: TimeLookup) -> list[int | None]:
    """Offsets, EARLIEST or LATEST; None where no record is as late as the time wanted."""
    if wanted.point is not None:
        return [wanted.point for _ in chosen]
    if wanted.each is not None:
        return [wanted.each[one.topic][one.partition] for one in chosen]
    if wanted.times is not None:
        times = [wanted.times[one.topic][one.partition] for one in chosen]
    else:
        assert wanted.time_ms is not None
        times = [wanted.time_ms for _ in chosen]
    items = [
        (one.topic_id, one.partition, time_ms) for one, time_ms in zip(chosen, times, strict=True)
    ]
    found = lookup(items) if items else []
    return [
        # A record that may not be read yet is not there yet, as in Kafka's ListOffsets.
        offset if 0 <= offset < one.state.high_watermark else None
        for one, offset in zip(chosen, found, strict=True)
    ]


def check_each(options: ReadOptions, chosen: Sequence[Chosen]) -> None:
    """Offsets or times that are given one by one are given for each partition, and for no other.

    Raises:
        InvalidRequestError: they aren't.
    """
    for option, wanted in (("starting", options.starting), ("ending", options.ending)):
        if wanted.each is not None:
            _check_each(f"{option}Offsets", wanted.each, chosen)
        if wanted.times is not None:
            _check_each(f"{option}OffsetsByTimestamp", wanted.times, chosen)


def _check_each(
    option: str, each: Mapping[str, Mapping[int, int]], chosen: Sequence[Chosen]
) -> None:
    partitions = {(one.topic, one.partition) for one in chosen}
    named = {(topic, partition) for topic, numbers in each.items() for partition in numbers}
    for problem, those in (("leaves out", partitions - named), ("names", named - partitions)):
        if those:
            topic, partition = min(those)
            more = f" and {len(those) - 1} more" if len(those) > 1 else ""
            raise InvalidRequestError(
                "read",
                f"option {option}",
                f"{problem} {topic}-{partition}{more}",
                "it says one for each partition that is read, and for no other",
            )


def _too_high(option: str, one: Chosen, position: int) -> InvalidRequestError:
    return InvalidRequestError(
        "read",
        f"{one.topic}-{one.partition}",
        f"{option} says {position}, its high watermark is {one.state.high_watermark}",
    )
