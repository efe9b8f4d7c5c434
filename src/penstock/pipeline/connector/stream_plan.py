"""A stream plans what it reads next, from its offsets and what the cluster has now. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.model.errors import ConflictError
from penstock.pipeline.api_messages import PartitionState, TopicState
from penstock.pipeline.connector.losses import Losses
from penstock.pipeline.connector.offsets import StreamOffsets, TopicOffsets
from penstock.pipeline.connector.offsets_wanted import Chosen, TopicRange, taken

Assigned = Mapping[str, tuple[int, ...]] | None
Ends = Mapping[tuple[str, int], int]
"""Per (topic id, partition)."""


def begin(chosen: Sequence[Chosen], starts: Sequence[int]) -> StreamOffsets:
    """The offsets of a query that has no checkpoint."""
    topics: dict[str, TopicOffsets] = {}
    for one, start in zip(chosen, starts, strict=True):
        known = topics.get(one.topic) or TopicOffsets(topic_id=one.topic_id, partitions={})
        topics[one.topic] = replace(known, partitions={**known.partitions, one.partition: start})
    return StreamOffsets(topics=topics, initial=True)


def high_watermarks(topics: Sequence[TopicState]) -> dict[tuple[str, int], int]:
    """The ends of all partitions: where an available-now query ends."""
    return {
        (topic.topic_id, partition): state.high_watermark
        for topic in topics
        for partition, state in enumerate(topic.partitions)
    }


def advance(
    start: StreamOffsets,
    topics: Sequence[TopicState],
    losses: Losses,
    *,
    assigned: Assigned = None,
    rows_max: int | None = None,
    last: Ends | None = None,
) -> StreamOffsets:
    """Return the end of the batch that begins at `start`; `start` itself: there is nothing to read.

    Args:
        topics: the present state of all topics that the stream follows.
        rows_max: the greatest number of offsets; partitions share it by how much waits in each.
        last: the batch doesn't go past these, and reads no partition that isn't among them.

    Raises:
        ConflictError: a topic was deleted and made again, or a log has gone back.
        NotFoundError: a topic was deleted, unless losses are allowed.
        LogTruncatedError: records are gone that were to be read, unless losses are allowed.
    """
    found = {topic.name: topic for topic in topics}
    for name, before in start.topics.items():
        _check_known(name, before, found.get(name), losses)
    begins = {
        name: _begins(topic, start.topics.get(name), assigned, losses, last)
        for name, topic in found.items()
    }
    room = {
        (name, partition): _end(found[name], partition, first, last) - first
        for name, firsts in begins.items()
        for partition, (first, _) in firsts.items()
    }
    granted = share(room, rows_max)
    answer = dict(start.topics)
    for name, firsts in begins.items():
        if name not in start.topics and not firsts:
            continue
        known = start.topics.get(name) or TopicOffsets(topic_id=found[name].topic_id, partitions={})
        lost = sum(
            first - known.partitions.get(partition, 0)
            for partition, (first, skipped) in firsts.items()
            if skipped
        )
        answer[name] = TopicOffsets(
            topic_id=known.topic_id,
            partitions={
                **known.partitions,
                **{p: first + granted[name, p] for p, (first, _) in firsts.items()},
            },
            begun={
                partition: first
                for partition, (first, _) in firsts.items()
                if start.initial or partition not in known.partitions
            },
            lost=known.lost + lost,
        )
    if not start.initial and _settled(answer) == _settled(start.topics):
        return start
    return StreamOffsets(topics=answer)


def ranges(
    start: StreamOffsets, end: StreamOffsets, topics: Sequence[TopicState], losses: Losses
) -> list[TopicRange]:
    """Return a batch's ranges, each time the same as long as its records are there.

    Raises: see `advance`.
    """
    found = {topic.name: topic for topic in topics}
    answer = []
    for name, known in end.topics.items():
        before = start.topics.get(name)
        if before is not None and before.topic_id != known.topic_id:
            raise _recreated(name, before.topic_id, known.topic_id)
        topic = found.get(name)
        if topic is None or topic.topic_id != known.topic_id:
            firsts = _first_offsets(before, known, initial=start.initial)
            if any(offset > firsts[p] for p, offset in known.partitions.items()):
                _check_known(name, known, topic, losses)
            continue
        for partition, first in _first_offsets(before, known, initial=start.initial).items():
            last = known.partitions[partition]
            if last == first:
                continue
            state = _state(topic, partition)
            if last < first:
                if start.initial:
                    # An end from before the start, where Spark says neither to the other.
                    continue
                raise _went_back(name, partition, first, last)
            if last > state.high_watermark:
                raise _went_back(name, partition, last, state.high_watermark)
            if first < state.log_start:
                available = min(state.log_start, last)
                losses.truncated(name, partition, wanted=first, available=available)
                first = available
            chosen = Chosen(topic=name, topic_id=topic.topic_id, partition=partition, state=state)
            if first < last:
                answer.append(chosen.range(first, last))
    return answer


def check_start(start: StreamOffsets, topics: Sequence[TopicState], losses: Losses) -> None:
    """Check what `advance` checks before it plans, for a batch whose end was planned without its
    start.

    Args:
        start: the start of what the stream follows.

    Raises: see `advance`.
    """
    if start.initial:
        return
    found = {topic.name: topic for topic in topics}
    for name, before in start.topics.items():
        topic = found.get(name)
        _check_known(name, before, topic, losses)
        if topic is None:
            continue
        for partition, first in before.partitions.items():
            state = _state(topic, partition)
            if first > state.high_watermark:
                raise _went_back(name, partition, first, state.high_watermark)


def remembered(start: StreamOffsets, end: StreamOffsets, lost: Mapping[str, int]) -> StreamOffsets:
    """The end of a batch with all that its start knew, as `advance` would have planned it.

    Args:
        lost: per topic, the records that the batch skipped.
    """
    topics = dict(end.topics)
    for name, before in start.settled().topics.items() if not start.initial else ():
        known = end.topics.get(name, before)
        topics[name] = replace(
            known,
            partitions={**before.partitions, **known.partitions},
            lost=max(known.lost, before.lost + lost.get(name, 0)),
        )
    return StreamOffsets(topics=topics)


def available(start: StreamOffsets, topics: Sequence[TopicState], assigned: Assigned) -> int:
    """Return how many offsets wait to be read."""
    total = 0
    for topic in topics:
        known = start.topics.get(topic.name)
        for partition, state in taken(assigned, topic):
            first = known.partitions.get(partition, 0) if known else 0
            total += max(0, state.high_watermark - max(first, state.log_start))
    return total


def share(
    waiting: Mapping[tuple[str, int], int], rows_max: int | None
) -> dict[tuple[str, int], int]:
    """Share `rows_max` among partitions, by how many offsets wait in each.

    As in Spark's Kafka source a share below one is one, so that no partition starves. So the sum
    may be above `rows_max`, by fewer than there are partitions.
    """
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return dict(waiting)
    return {
        partition: min(count, max(1, rows_max * count // total)) if count else 0
        for partition, count in waiting.items()
    }


def _begins(
    topic: TopicState,
    known: TopicOffsets | None,
    assigned: Assigned,
    losses: Losses,
    last: Ends | None,
) -> dict[int, tuple[int, bool]]:
    """Return for each partition its next offset, and whether records before it were skipped."""
    if known is not None and known.topic_id != topic.topic_id:
        raise _recreated(topic.name, known.topic_id, topic.topic_id)
    answer = {}
    for partition, state in taken(assigned, topic):
        new = known is None or partition not in known.partitions
        if new and last is not None and (topic.topic_id, partition) not in last:
            continue
        # A partition that comes while the query runs began at 0, and is wanted from there on.
        first = 0 if known is None else known.partitions.get(partition, 0)
        if first > state.high_watermark:
            raise _went_back(topic.name, partition, first, state.high_watermark)
        skipped = first < state.log_start
        if skipped:
            losses.truncated(topic.name, partition, wanted=first, available=state.log_start)
            first = state.log_start
        answer[partition] = (first, skipped)
    for partition in known.partitions if known is not None else ():
        _state(topic, partition)
    return answer


def _end(topic: TopicState, partition: int, first: int, last: Ends | None) -> int:
    end = topic.partitions[partition].high_watermark
    if last is not None:
        end = min(end, last.get((topic.topic_id, partition), first))
    return max(first, end)


def _first_offsets(
    before: TopicOffsets | None, known: TopicOffsets, *, initial: bool
) -> dict[int, int]:
    """Return the start of a batch in each partition of its end."""
    answer = {}
    for partition in known.partitions:
        first = None if before is None else before.partitions.get(partition)
        if first is None or initial:
            # What `before` says then is of now, not of when the batch was planned.
            first = known.begun.get(partition, first)
        answer[partition] = 0 if first is None else first
    return answer


def _check_known(name: str, known: TopicOffsets, topic: TopicState | None, losses: Losses) -> None:
    if topic is None:
        losses.deleted(name)
    elif topic.topic_id != known.topic_id:
        raise _recreated(name, known.topic_id, topic.topic_id)


def _state(topic: TopicState, partition: int) -> PartitionState:
    if partition >= len(topic.partitions):
        raise ConflictError(
            "read stream",
            f"{topic.name}-{partition}",
            f"was read before, and the topic has {len(topic.partitions)} partitions now",
            "the cluster has gone back to an earlier state; begin a new checkpoint",
        )
    return topic.partitions[partition]


def _settled(topics: Mapping[str, TopicOffsets]) -> dict[str, TopicOffsets]:
    return {name: replace(topic, begun={}) for name, topic in topics.items()}


def _went_back(name: str, partition: int, wanted: int, high_watermark: int) -> ConflictError:
    return ConflictError(
        "read stream",
        f"{name}-{partition}",
        f"was read up to offset {wanted}, and its high watermark is {high_watermark}",
        "the log has gone back (a restore?); begin a new checkpoint",
    )


def _recreated(name: str, known: str, now: str) -> ConflictError:
    return ConflictError(
        "read stream",
        f"topic {name!r}",
        f"is another one than was read before: its id was {known} and is {now}",
        "it was deleted and made again; begin a new checkpoint to read it",
    )
