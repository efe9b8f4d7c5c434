"""Lives of a log under a random load, each ended by a power cut or a crash, and what must hold.

Everything is drawn from a seed. After each cut the log is opened on what the cut left, all of it
is read, and the history of what was promised is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.append.plan import PartitionAppend
from penstock.log.verify import FindingKind, VerifyReport, verify
from penstock.metadata.answers import BatchStatus, Refusal, Refused, TopicCreated
from penstock.metadata.commands import CreateTopic, DeleteTopic, Noop
from penstock.model.errors import (
    NotFoundError,
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.model.ids import PartitionKey, partition_key
from penstock.records.batch import BatchLimits, check_batch, stored_header
from penstock.records.decode import Record, decode_batch
from penstock.records.encode import encode_batch
from penstock.testing.clock import ManualClock
from penstock.testing.cut import PowerCutError
from penstock.testing.device import SimulatedDevice
from penstock.testing.randomness import SeededRandom
from support.log_checker import History, Place, Poll, Send, TopicEvent, check
from support.simulated_log import GRACE_S, SimulatedLog, Tail, keep_database

NOW = 1_790_000_000_000
CODECS = ("none", "none", "none", "gzip", "snappy", "lz4", "zstd")
PATIENCE_S = 60
ANY = BatchLimits(
    message_bytes_max=1 << 30,
    timestamp_before_max_ms=2**63 - 1,
    timestamp_after_max_ms=2**63 - 1,
    log_append_time=False,
    compacts=False,
)
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
    trim_count: int = 0
    deleted_object_count: int = 0
    read_count: int = 0
    cuts: list[str] = field(default_factory=list)


class World:
    """What outlives each life.

    Args:
        plant, plant_tail, fsync: a bug, to see that it is found.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        lives: int = 3,
        steps: int = 30,
        plant: Callable[[SimulatedLog], None] | None = None,
        plant_tail: Tail | None = None,
        fsync: bool = True,
        crashes_too: bool = True,
        only_crashes: bool = False,
    ) -> None:
        self.seed = seed
        self.folder = folder
        self.random = SeededRandom(seed)
        self.stepped = self.random.below(3) > 0
        self._lives = lives
        self._steps = steps
        self._plant = plant
        self._plant_tail = plant_tail
        self._fsync = fsync
        self._crashes_too = crashes_too
        self._only_crashes = only_crashes
        self._life = 0
        self._value = 0
        self.device = SimulatedDevice()
        self.clock = ManualClock(now_ms=NOW)
        self.known = Knowledge()
        self.producers = [Producer(f"p{n}", idempotent=n < 3) for n in range(4)]

    def run(self) -> Knowledge:
        """All lives, then a last one that cleans up. Raises: PromiseBrokenError."""
        for number in range(self._lives + 1):
            is_last = number == self._lives
            asyncio.run(self._live(is_last=is_last))
        return self.known

    # -- one life ------------------------------------------------------------------------------

    def _cut(self, life: SimulatedLog) -> None:
        """Keep what is there after this moment. In the switch: nothing else happens meanwhile."""
        following = self.folder / str(self._life + 1)
        if self._only_crashes or (self._crashes_too and self.random.below(4) == 0):
            # The process died, and the device lives on: all that was written is there, and what
            # was not synced may still be lost by a later cut.
            keep_database(life.folder, following)
            return
        self.device = self.device.power_loss(self.random)
        keep_database(life.order.states.choose(), following)

    async def _live(self, *, is_last: bool) -> None:
        folder = self.folder / str(self._life)
        folder.mkdir(exist_ok=True, parents=True)
        try:
            life = SimulatedLog(
                folder=folder,
                device=self.device,
                clock=self.clock,
                random=self.random,
                stepped=self.stepped,
                on_cut=self._cut,
                plant=self._plant,
                plant_tail=self._plant_tail,
                fsync=self._fsync,
            )
        except PenstockError as error:
            raise PromiseBrokenError(f"the log does not open: {error}") from error
        try:
            await asyncio.wait_for(self._inspect(life), PATIENCE_S)
            if is_last:
                await asyncio.wait_for(self._clean_up(life), PATIENCE_S)
                return
            life.switch.calls_left = 1 + self.random.below(12 * self._steps)
            await self._load(life)
            self.known.cuts.append(life.switch.last_call)
        finally:
            await life.end()
            self._life += 1
        faults = [error for error in life.fatal if not isinstance(error, PowerCutError)]
        if faults:
            raise PromiseBrokenError(f"it gave up by itself: {faults!r}") from faults[0]

    async def _load(self, life: SimulatedLog) -> None:
        actors = [
            asyncio.create_task(self._produce(life, producer), name=producer.name)
            for producer in self.producers
        ]
        actors += [
            asyncio.create_task(self._administer(life), name="administrator"),
            asyncio.create_task(self._consume(life), name="reader"),
        ]
        everything = asyncio.gather(*actors)
        ended = asyncio.create_task(life.ended.wait())
        await asyncio.wait([everything, ended], timeout=PATIENCE_S, return_when="FIRST_COMPLETED")
        hangs = not everything.done() and not ended.done()
        life.switch.cut()
        # What was committed before the cut and is on its way back may still be answered.
        for _ in range(3):
            await asyncio.sleep(0)
        for task in (*actors, ended):
            task.cancel()
        outcomes = await asyncio.gather(*actors, ended, return_exceptions=True)
        await asyncio.gather(everything, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, PowerCutError | asyncio.CancelledError):
                continue
            if isinstance(outcome, PenstockError):
                raise PromiseBrokenError(f"a client got {outcome}") from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        if hangs:
            raise PromiseBrokenError(f"nothing goes on: {life.log.uploader.last_error}")
        self.known.segment_count += life.log.uploader.segment_count

    # -- actors --------------------------------------------------------------------------------

    def _some_place(self, life: SimulatedLog) -> tuple[Place, PartitionKey] | None:
        topics = sorted(life.view.topics(), key=lambda topic: topic.name)
        if not topics:
            return None
        topic = topics[self.random.below(len(topics))]
        number = self.random.below(topic.partitions)
        return (topic.name, number), partition_key(topic.topic_key, number)

    async def _produce(self, life: SimulatedLog, producer: Producer) -> None:
        if producer.idempotent and producer.producer_id < 0:
            producer.producer_id, _ = await life.log.allocate_producer_id()
            self.known.producer_ids.append(producer.producer_id)
        for _ in range(self._steps):
            if not producer.idempotent:
                producer.pending = []
            if not producer.pending:
                for _ in range(1 + self.random.below(3)):
                    self._make_batch(life, producer)
            await self._send(life, producer)
            for _ in range(self.random.below(4)):
                await asyncio.sleep(0)

    def _make_batch(self, life: SimulatedLog, producer: Producer) -> None:
        found = self._some_place(life)
        if found is None:
            return
        place, _ = found
        count = 1 + self.random.below(4)
        values = []
        for _ in range(count):
            self._value += 1
            values.append(f"{self._value}-" + "x" * (self.random.below(8) ** 3 * 3))
        sequence = producer.next_sequences.get(place, 0) if producer.idempotent else -1
        if producer.idempotent:
            producer.next_sequences[place] = sequence + count
        records = [
            Record(
                offset_delta=index,
                timestamp=self.clock.now_ms(),
                key=None,
                value=value.encode(),
                headers=(),
            )
            for index, value in enumerate(values)
        ]
        data = encode_batch(
            records,
            codec=CODECS[self.random.below(len(CODECS))],
            producer_id=producer.producer_id,
            producer_epoch=0 if producer.idempotent else -1,
            base_sequence=sequence,
        )
        batch = Batch(place, values, producer.name, sequence, bytes(data))
        producer.pending.append(batch)
        self.known.batches.append(batch)

    async def _send(self, life: SimulatedLog, producer: Producer) -> None:
        """All that is pending, in order, some of it in one request."""
        loop = asyncio.get_running_loop()
        requests: list[list[tuple[Batch, PartitionAppend]]] = []
        for batch in producer.pending:
            topic = life.view.topic(batch.place[0])
            if topic is None:
                continue
            append = PartitionAppend(
                partition_key(topic.topic_key, batch.place[1]),
                check_batch(memoryview(bytearray(batch.data)), ANY, self.clock.now_ms()),
            )
            together = requests and self.random.below(2)
            if together:
                requests[-1].append((batch, append))
            else:
                requests.append([(batch, append)])
        waiting = []
        for request in requests:
            answer: asyncio.Future[PenstockError | None] = loop.create_future()

            def done(
                error: PenstockError | None,
                request: list[tuple[Batch, PartitionAppend]] = request,
                answer: asyncio.Future[PenstockError | None] = answer,
            ) -> None:
                if error is None:
                    self._take_answers(request)
                if not answer.done():
                    answer.set_result(error)

            life.log.append([append for _, append in request], timeout_ms=60_000, done=done)
            waiting.append(answer)
        for error in await asyncio.gather(*waiting):
            # A retriable one leaves the batch pending: a full WAL, as the clock leaps.
            if error is not None and not isinstance(error, RetryableError | StorageFullError):
                raise PromiseBrokenError(f"refused: {error}") from error
        producer.pending = [batch for batch in producer.pending if self._is_pending(life, batch)]

    def _is_pending(self, life: SimulatedLog, batch: Batch) -> bool:
        return batch.base_offset is None and life.view.topic(batch.place[0]) is not None

    def _take_answers(self, request: list[tuple[Batch, PartitionAppend]]) -> None:
        for batch, append in request:
            if append.status is BatchStatus.REFUSED:
                if append.base_offset in (Refusal.UNKNOWN_TOPIC, Refusal.UNKNOWN_PARTITION):
                    continue
                if self._follows_unanswered(batch):
                    continue
                raise PromiseBrokenError(
                    f"{batch.producer} was refused by {Refusal(append.base_offset).name} at "
                    f"{batch.place} sequence {batch.sequence}"
                )
            if batch.base_offset is not None and batch.base_offset != append.base_offset:
                raise PromiseBrokenError(f"a repeat of {batch} is at {append.base_offset}")
            batch.base_offset = append.base_offset

    def _follows_unanswered(self, batch: Batch) -> bool:
        """Whether one of its producer before it is not stored as far as is known."""
        return any(
            other.base_offset is None and 0 <= other.sequence < batch.sequence
            for other in self.known.batches
            if (other.producer, other.place) == (batch.producer, batch.place)
        )

    async def _administer(self, life: SimulatedLog) -> None:
        await self._create_topic(life)
        await self._create_topic(life)
        for _ in range(self._steps // 2):
            choice = self.random.below(16)
            if choice == 0 and len(life.view.topics()) < 5:
                await self._create_topic(life)
            elif choice == 1 and len(life.view.topics()) > 2:
                await self._delete_topic(life)
            elif choice in (2, 3):
                await self._delete_records(life)
            elif choice == 4:
                await life.log.uploader.drain(PATIENCE_S)
            elif choice in (5, 6, 7, 8):
                if choice == 8:
                    self.clock.advance(GRACE_S + 1)
                await self._keep(life)
            elif choice == 9:
                life.checkpoint()
            elif choice == 10:
                for key in list(life.log.tail.partitions()):
                    life.log.tail.forget(key)
            else:
                self.clock.advance(self.random.below(5))
            for _ in range(self.random.below(30)):
                await asyncio.sleep(0)

    async def _keep(self, life: SimulatedLog) -> None:
        before = {key async for key in _stored(life)}
        await life.log.keeper.run_once()
        after = {key async for key in _stored(life)}
        self.known.deleted_object_count += len(before - after)

    async def _create_topic(self, life: SimulatedLog) -> None:
        name = f"t{len(self.known.topics)}"
        topic = TopicState(name, 1 + self.random.below(3), CONFIGS[self.random.below(len(CONFIGS))])
        self.known.topics[name] = topic
        (answer,) = await life.log.commit(
            [
                CreateTopic(
                    name=name,
                    topic_id=self.random.token_bytes(16),
                    partitions=topic.partitions,
                    configs=topic.configs,
                )
            ]
        )
        assert isinstance(answer, TopicCreated), answer
        topic.acknowledged = True

    async def _delete_topic(self, life: SimulatedLog) -> None:
        found = self._some_place(life)
        assert found is not None
        topic = life.view.topic(found[0][0])
        assert topic is not None
        state = self.known.topics[topic.name]
        state.deletion_tried = True
        (answer,) = await life.log.commit([DeleteTopic(topic_id=bytes(topic.topic_id))])
        assert not isinstance(answer, Refused), answer
        state.deleted = True

    async def _delete_records(self, life: SimulatedLog) -> None:
        found = self._some_place(life)
        if found is None:
            return
        place, key = found
        start, end = life.log.log_start(key), life.log.high_watermark(key)
        offset = start + self.random.below(end - start + 1)
        if self.random.below(4) == 0:
            offset = -1
        wanted = (1 << 62) if offset < 0 else offset
        self.known.trims[place] = max(self.known.trims.get(place, 0), wanted)
        (answer,) = await life.log.delete_records([(key, offset)])
        if answer >= 0:
            self.known.trim_count += 1
            self._see_log_start(place, answer)

    async def _consume(self, life: SimulatedLog) -> None:
        for turn in range(self._steps):
            found = self._some_place(life)
            if found is not None:
                place, key = found
                records = await self._read_some(life, place, key)
                if records:
                    reader = f"r{self._life}-{turn}"
                    self.known.polls.append(Poll(reader, place, tuple(records)))
                    self.known.read_count += len(records)
            for _ in range(self.random.below(6)):
                await asyncio.sleep(0)

    async def _read_some(
        self, life: SimulatedLog, place: Place, key: PartitionKey
    ) -> list[tuple[int, str]]:
        start, end = life.log.log_start(key), life.log.high_watermark(key)
        self._see_log_start(place, start)
        self.known.high_watermarks[place] = max(end, self.known.high_watermarks.get(place, 0))
        if start == end:
            return []
        offset = start + self.random.below(end - start)
        read = await life.log.reader.read_loaded(key, offset, 1 + self.random.below(12_000))
        found = [] if read is None else _records(b"".join(read.views))
        found = [row for row in found if row[0] >= offset]
        if not found or found[0][0] != offset:
            # A trim may be committed and not yet in the view; it is after the next commit.
            await life.log.commit([Noop()])
            head = life.view.head(key)
            if head is not None and head.log_start <= offset:
                raise PromiseBrokenError(f"{place} offset {offset} is due, got {found[:1]}")
        return found

    def _see_log_start(self, place: Place, start: int) -> None:
        before = self.known.log_starts.get(place, 0)
        if start < before:
            raise PromiseBrokenError(f"log start of {place} went back from {before} to {start}")
        self.known.log_starts[place] = start

    # -- what must hold ------------------------------------------------------------------------

    @staticmethod
    async def _verify(life: SimulatedLog) -> VerifyReport:
        return await verify(
            queries=life.queries(), store=life.store, wal=life.wal_reader, device=life.device
        )

    async def _inspect(self, life: SimulatedLog) -> None:
        """Read everything after a restart."""
        report = await self._verify(life)
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
                self._see_log_start(place, start)
                if end < self.known.high_watermarks.get(place, 0):
                    raise PromiseBrokenError(f"high watermark of {place} went back to {end}")
                self.known.high_watermarks[place] = end
                state = self.known.topics[topic.name]
                if state.never_trims and start > self.known.trims.get(place, 0):
                    raise PromiseBrokenError(f"{place} was trimmed to {start}, nobody asked for it")
                starts[place] = start
                final[place] = await _read_all(life, key, start, end)
                if (final[place][-1][0] + 1 if final[place] else start) != end:
                    raise PromiseBrokenError(f"{place} does not reach its high watermark {end}")
        self._check_history(life, final, starts)

    def _check_history(
        self,
        life: SimulatedLog,
        final: dict[Place, list[tuple[int, str]]],
        starts: dict[Place, int],
    ) -> None:
        known = self.known
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
            self._check_whole(batch, final.get(batch.place, []), starts.get(batch.place, 0))
        anomalies = check(history)
        if anomalies:
            raise PromiseBrokenError(str(anomalies[:10]))
        if len(set(known.producer_ids)) != len(known.producer_ids):
            raise PromiseBrokenError(f"producer ids given twice: {known.producer_ids}")

    @staticmethod
    def _check_whole(batch: Batch, records: list[tuple[int, str]], start: int) -> None:
        """A batch is there whole or not at all, save what lies below the log start."""
        offsets = {value: offset for offset, value in records}
        held = [offsets.get(value) for value in batch.values]
        kept = [offset for offset in held if offset is not None]
        first_kept = len(held) - len(kept)
        adjacent = kept == list(range(kept[0], kept[0] + len(kept))) if kept else True
        if not adjacent or (kept and first_kept and (held[0] is not None or kept[0] != start)):
            raise PromiseBrokenError(f"torn batch: {held} of {batch.place} from {start}")

    async def _clean_up(self, life: SimulatedLog) -> None:
        """In the end the WAL is empty, and the store holds what is named and nothing else."""
        if not await life.log.uploader.drain(PATIENCE_S):
            raise PromiseBrokenError(f"it does not drain: {life.log.uploader.last_error}")
        if life.queries().wal_runs():
            raise PromiseBrokenError("drained, and runs are left in the WAL")
        for _ in range(3):
            self.clock.advance(GRACE_S + 1)
            await self._keep(life)
        await self._inspect(life)
        report = await self._verify(life)
        orphans = [f for f in report.findings if f.kind is FindingKind.ORPHAN]
        if orphans:
            raise PromiseBrokenError(f"orphans stay: {orphans}")
        named = {row.key for row in life.queries().objects("", 10_000)}
        stored = {key async for key in _stored(life)}
        if named != stored:
            raise PromiseBrokenError(f"the store differs from what is named: {named ^ stored}")


async def _stored(life: SimulatedLog):  # type: ignore[no-untyped-def]
    async for info in life.store.list("segments/"):
        yield info.key


def _records(data: bytes) -> list[tuple[int, str]]:
    found = []
    position = 0
    while position < len(data):
        header = stored_header(data, position)
        for record in decode_batch(memoryview(data)[position : position + header.length]):
            value = (record.value or b"").decode()
            found.append((header.base_offset + record.offset_delta, value))
        position += header.length
    return found


async def _read_all(
    life: SimulatedLog, key: PartitionKey, start: int, end: int
) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    offset = start
    while offset < end:
        try:
            read = await life.log.reader.read_loaded(key, offset, 20_000)
        except (PenstockError, NotFoundError) as error:
            raise PromiseBrokenError(f"key {key} offset {offset}: {error}") from error
        if read is None:
            raise PromiseBrokenError(f"key {key} offset {offset} is not there, the end is {end}")
        found += [row for row in _records(b"".join(read.views)) if row[0] >= offset]
        offset = read.end_offset
    return found
