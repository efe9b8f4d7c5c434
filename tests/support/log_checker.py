"""Decide from a history of what clients saw whether a log kept its promises. Pure.

The names of the anomalies are those of Jepsen's Kafka workload (jepsen.tests.kafka), so that a
reader can compare; `offset-gap`, `unsent-read`, `commit-regression`, `commit-from-nowhere`,
`lost-topic` and `undead-topic` are our own. A history is complete: the last read of each
partition is from its start to its end, after all faults have ended.

| anomaly | what was seen |
| --- | --- |
| inconsistent-offsets | one offset, two values: among acknowledgements and reads at any time |
| duplicate | one value at two offsets, though its producer was idempotent |
| lost-write | acknowledged at an offset below the end of the log, and not there |
| unseen | acknowledged at an offset at or above the end of the log |
| nonmonotonic-send | an idempotent producer's values in another order than they were sent |
| nonmonotonic-poll | one reader's offsets of a partition went back |
| poll-skip | one reader jumped over offsets that hold records |
| offset-gap | the last read has a hole, though nothing was deleted |
| unsent-read | a value that nobody sent |
| commit-regression | a group's offset lower than one that was acknowledged before |
| commit-from-nowhere | a group's offset that nobody had tried to commit |
| lost-topic, undead-topic | an acknowledged creation or deletion that is not so |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Send:
    """One value that a producer sent. Values are unique in a history.

    offset is the acknowledged one; None when no acknowledgement came, which may mean anything.
    """

    place: Place
    value: str
    producer: str
    idempotent: bool
    offset: int | None


@dataclass(frozen=True, slots=True)
class Poll:
    """What one reader got from one partition, in its order: (offset, value)."""

    reader: str
    place: Place
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """One try of a group to commit an offset; acknowledged or not known."""

    group: str
    place: Place
    offset: int
    acknowledged: bool


@dataclass(frozen=True, slots=True)
class CommittedRead:
    """What a group's offset was found to be; None for none."""

    group: str
    place: Place
    offset: int | None


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """A try to create or delete a topic. Each topic is created and deleted at most once."""

    topic: str
    created: bool
    acknowledged: bool


@dataclass(slots=True)
class History:
    """All that clients did and saw.

    sends are in the order in which each producer sent; group_events in real-time order per
    (group, partition); final holds the last read of each partition.
    """

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    final: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)
    log_start: dict[Place, int] = field(default_factory=dict)
    group_events: list[Commit | CommittedRead] = field(default_factory=list)
    topic_events: list[TopicEvent] = field(default_factory=list)
    topics_found: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise."""

    name: str
    detail: str


def check(history: History) -> list[Anomaly]:
    """All anomalies of a history; empty when every promise was kept."""
    return [
        *_values_of_offsets(history),
        *_writes(history),
        *_order_of_sends(history),
        *_final_reads(history),
        *_polls(history),
        *_commits(history.group_events),
        *_topics(history),
    ]


def _values_of_offsets(history: History) -> Iterable[Anomaly]:
    seen: dict[tuple[Place, int], str] = {}

    def note(place: Place, offset: int, value: str, where: str) -> Iterable[Anomaly]:
        earlier = seen.setdefault((place, offset), value)
        if earlier != value:
            yield Anomaly(
                "inconsistent-offsets",
                f"{place} offset {offset} was {earlier!r} and is {value!r} in {where}",
            )

    for send in history.sends:
        if send.offset is not None:
            yield from note(send.place, send.offset, send.value, f"an answer to {send.producer}")
    for poll in history.polls:
        for offset, value in poll.records:
            yield from note(poll.place, offset, value, f"a poll of {poll.reader}")
    for place, records in history.final.items():
        for offset, value in records:
            yield from note(place, offset, value, "the last read")


def _writes(history: History) -> Iterable[Anomaly]:
    sent = {send.value: send for send in history.sends}
    offsets: dict[str, list[tuple[Place, int]]] = defaultdict(list)
    for place, records in history.final.items():
        for offset, value in records:
            offsets[value].append((place, offset))
            if value not in sent:
                yield Anomaly("unsent-read", f"{place} offset {offset} holds {value!r}")
            elif sent[value].place != place:
                yield Anomaly("unsent-read", f"{value!r} was sent to another place than {place}")
    for send in history.sends:
        found = offsets.get(send.value, [])
        if len(found) > 1 and send.idempotent:
            yield Anomaly("duplicate", f"{send.value!r} is at {found}")
        if send.offset is None:
            continue
        records = history.final.get(send.place, [])
        end = records[-1][0] + 1 if records else history.log_start.get(send.place, 0)
        if send.offset < history.log_start.get(send.place, 0):
            continue
        if (send.place, send.offset) not in found:
            name = "lost-write" if send.offset < end else "unseen"
            yield Anomaly(
                name, f"{send.value!r} was acknowledged at {send.place} {send.offset}; end {end}"
            )


def _order_of_sends(history: History) -> Iterable[Anomaly]:
    place_of = {
        (place, value): offset
        for place, records in history.final.items()
        for offset, value in records
    }
    last: dict[tuple[str, Place], tuple[int, str]] = {}
    for send in history.sends:
        if not send.idempotent:
            # A plain producer's retries may overtake one another, as in Kafka.
            continue
        offset = place_of.get((send.place, send.value))
        if offset is None:
            continue
        before = last.get((send.producer, send.place))
        if before is not None and before[0] >= offset:
            yield Anomaly(
                "nonmonotonic-send",
                f"{send.producer} sent {before[1]!r} before {send.value!r}, which are at "
                f"{before[0]} and {offset} of {send.place}",
            )
        last[send.producer, send.place] = (offset, send.value)


def _final_reads(history: History) -> Iterable[Anomaly]:
    for place, records in history.final.items():
        expected = history.log_start.get(place, 0)
        for offset, _ in records:
            if offset != expected:
                yield Anomaly("offset-gap", f"{place} has {offset} where {expected} was due")
            expected = offset + 1


def _polls(history: History) -> Iterable[Anomaly]:
    final_offsets = {place: {o for o, _ in records} for place, records in history.final.items()}
    for poll in history.polls:
        stored = final_offsets.get(poll.place, set())
        for (before, _), (after, _) in zip(poll.records, poll.records[1:], strict=False):
            if after <= before:
                yield Anomaly(
                    "nonmonotonic-poll", f"{poll.reader} got {after} after {before} of {poll.place}"
                )
            elif any(offset in stored for offset in range(before + 1, after)):
                yield Anomaly(
                    "poll-skip", f"{poll.reader} got {after} after {before} of {poll.place}"
                )


def _commits(events: Iterable[Commit | CommittedRead]) -> Iterable[Anomaly]:
    acknowledged: dict[tuple[str, Place], int] = {}
    tried: dict[tuple[str, Place], set[int]] = defaultdict(set)
    for event in events:
        key = (event.group, event.place)
        least = acknowledged.get(key)
        if isinstance(event, Commit):
            tried[key].add(event.offset)
            if event.acknowledged:
                acknowledged[key] = max(event.offset, -1 if least is None else least)
            continue
        if least is not None and (event.offset is None or event.offset < least):
            yield Anomaly(
                "commit-regression", f"{key} had {least} acknowledged and was found {event.offset}"
            )
        if event.offset is not None:
            if event.offset not in tried[key]:
                yield Anomaly("commit-from-nowhere", f"{key} was found at {event.offset}")
            # What was read once must not be unread later.
            acknowledged[key] = max(event.offset, -1 if least is None else least)


def _topics(history: History) -> Iterable[Anomaly]:
    deletions = {e.topic: e for e in history.topic_events if not e.created}
    for event in history.topic_events:
        if not event.created or not event.acknowledged:
            continue
        deletion = deletions.get(event.topic)
        if deletion is None and event.topic not in history.topics_found:
            yield Anomaly("lost-topic", f"{event.topic} was made and is not there")
        if deletion is not None and deletion.acknowledged and event.topic in history.topics_found:
            yield Anomaly("undead-topic", f"{event.topic} was deleted and is there")
