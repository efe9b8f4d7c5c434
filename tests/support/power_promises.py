"""What clients of a log that is cut off again and again have done and seen, and what must hold of
the log then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from penstock.model.errors import NotFoundError, PenstockError
from penstock.model.ids import PartitionKey, partition_key
from penstock.records.batch import stored_header
from penstock.records.decode import decode_batch
from penstock.recovery.verify import FindingKind, VerifyReport, verify
from support.log_checker import History, Place, Poll, Send, TopicEvent, check
from support.simulated_log import SimulatedLog

CONFIGS: tuple[dict[str, str], ...] = (
    {"retention.ms": "-1"},
    {"retention.ms": "-1"},
    {"retention.ms": "-1", "cleanup.policy": "compact", "retention.bytes": "1"},
    {"retention.ms": "30000"},
    {"retention.ms": "-1", "retention.bytes": "9000"},
)


class PromiseBrokenError(AssertionError):
    """What was promised is not so."""


@dataclass
class Batch:
    """What a producer sends at once, and where it was stored once that is known."""

    place: Place
    values: list[str]
    producer: str
    sequence: int
    data: bytes
    base_offset: int | None = None


@dataclass
class TopicState:
    """A topic that somebody tried to make."""

    name: str
    partitions: int
    configs: dict[str, str]
    acknowledged: bool = False
    deletion_tried: bool = False
    deleted: bool = False

    @property
    def never_trims(self) -> bool:
        """Nothing but DeleteRecords may raise its log start."""
        return self.configs in CONFIGS[:3]


@dataclass
class Producer:
    """Idempotent if it has an id; then it sends again what was not answered, in order."""

    name: str
    idempotent: bool
    producer_id: int = -1
    next_sequences: dict[Place, int] = field(default_factory=dict)
    pending: list[Batch] = field(default_factory=list)


@dataclass
class Knowledge:
    """All that clients did and saw, over all lives."""

    batches: list[Batch] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    topics: dict[str, TopicState] = field(default_factory=dict)
    log_starts: dict[Place, int] = field(default_factory=dict)
    high_watermarks: dict[Place, int] = field(default_factory=dict)
    trims: dict[Place, int] = field(default_factory=dict)
    """The highest log start that anybody asked for by DeleteRecords."""
    producer_ids: list[int] = field(default_factory=list)
    segment_count: int = 0
    snapshot_count: int = 0
    trim_count: int = 0
    deleted_object_count: int = 0
    read_count: int = 0
    cuts: list[str] = field(default_factory=list)

    def see_log_start(self, place: Place, start: int) -> None:
        """A log's start never goes back."""
        before = self.log_starts.get(place, 0)
        if start < before:
            raise PromiseBrokenError(f"log start of {place} went back from {before} to {start}")
        self.log_starts[place] = start


async def inspect(life: SimulatedLog, known: Knowledge) -> None:
    """Read everything after a restart."""
    report = await _verified(life)
    damage = [finding for finding in report.findings if finding.is_damage]
    if damage:
        raise PromiseBrokenError(f"damaged: {damage}")
    final: dict[Place, list[tuple[int, str]]] = {}
    starts: dict[Place, int] = {}
    for topic in life.view.topics():
        for number in range(topic.partitions):
            place = topic.name, number
            key = partition_key(topic.topic_key, number)
            start, end = life.log.log_start(key), life.log.high_watermark(key)
            known.see_log_start(place, start)
            if end < known.high_watermarks.get(place, 0):
                raise PromiseBrokenError(f"high watermark of {place} went back to {end}")
            known.high_watermarks[place] = end
            state = known.topics[topic.name]
            if state.never_trims and start > known.trims.get(place, 0):
                raise PromiseBrokenError(f"{place} was trimmed to {start}, nobody asked for it")
            starts[place] = start
            final[place] = await read_all(life, key, start, end)
            if (final[place][-1][0] + 1 if final[place] else start) != end:
                raise PromiseBrokenError(f"{place} does not reach its high watermark {end}")
    _check_history(life, known, final, starts)


async def check_named(life: SimulatedLog) -> None:
    """The store holds what is named, and nothing else."""
    report = await _verified(life)
    orphans = [f for f in report.findings if f.kind is FindingKind.ORPHAN]
    if orphans:
        raise PromiseBrokenError(f"orphans stay: {orphans}")
    named = {row.key for row in life.queries().objects("", 10_000)}
    stored = {key async for key in stored_keys(life)}
    if named != stored:
        raise PromiseBrokenError(f"the store differs from what is named: {named ^ stored}")


async def _verified(life: SimulatedLog) -> VerifyReport:
    return await verify(
        queries=life.queries(), store=life.store, wal=life.wal_reader, device=life.device
    )


async def read_all(
    life: SimulatedLog, key: PartitionKey, start: int, end: int
) -> list[tuple[int, str]]:
    """Offsets and values of a partition from `start` to `end`. Raises: PromiseBrokenError."""
    found: list[tuple[int, str]] = []
    offset = start
    while offset < end:
        try:
            read = await life.log.reader.read_loaded(key, offset, 20_000)
        except (PenstockError, NotFoundError) as error:
            raise PromiseBrokenError(f"key {key} offset {offset}: {error}") from error
        if read is None:
            raise PromiseBrokenError(f"key {key} offset {offset} is not there, the end is {end}")
        found += [row for row in records_in(b"".join(read.views)) if row[0] >= offset]
        offset = read.end_offset
    return found


def _check_history(
    life: SimulatedLog,
    known: Knowledge,
    final: dict[Place, list[tuple[int, str]]],
    starts: dict[Place, int],
) -> None:
    found = {topic.name for topic in life.view.topics()}
    gone = {t.name for t in known.topics.values() if t.deletion_tried and t.name not in found}
    history = History(
        polls=[poll for poll in known.polls if poll.place[0] not in gone],
        final=final,
        log_start=starts,
        topics_found=found,
    )
    for topic in known.topics.values():
        history.topic_events.append(TopicEvent(topic.name, True, topic.acknowledged))
        if topic.deletion_tried:
            history.topic_events.append(TopicEvent(topic.name, False, topic.deleted))
    for batch in known.batches:
        if batch.place[0] in gone:
            continue
        for index, value in enumerate(batch.values):
            offset = None if batch.base_offset is None else batch.base_offset + index
            history.sends.append(
                Send(batch.place, value, batch.producer, batch.sequence >= 0, offset)
            )
        _check_whole(batch, final.get(batch.place, []), starts.get(batch.place, 0))
    anomalies = check(history)
    if anomalies:
        raise PromiseBrokenError(str(anomalies[:10]))
    if len(set(known.producer_ids)) != len(known.producer_ids):
        raise PromiseBrokenError(f"producer ids given twice: {known.producer_ids}")


def _check_whole(batch: Batch, records: list[tuple[int, str]], start: int) -> None:
    """A batch is there whole or not at all, save what lies below the log start."""
    offsets = {value: offset for offset, value in records}
    held = [offsets.get(value) for value in batch.values]
    kept = [offset for offset in held if offset is not None]
    first_kept = len(held) - len(kept)
    adjacent = kept == list(range(kept[0], kept[0] + len(kept))) if kept else True
    if not adjacent or (kept and first_kept and (held[0] is not None or kept[0] != start)):
        raise PromiseBrokenError(f"torn batch: {held} of {batch.place} from {start}")


async def stored_keys(life: SimulatedLog) -> AsyncIterator[str]:
    """Of all segments in the store."""
    async for info in life.store.list("segments/"):
        yield info.key


def records_in(data: bytes) -> list[tuple[int, str]]:
    """Offsets and values of batches."""
    found = []
    position = 0
    while position < len(data):
        header = stored_header(data, position)
        for record in decode_batch(memoryview(data)[position : position + header.length]):
            value = (record.value or b"").decode()
            found.append((header.base_offset + record.offset_delta, value))
        position += header.length
    return found
