"""Lives of a log under a random load, each ended by a power cut or a crash, and what must hold.

Everything is drawn from a seed. After each cut the log is opened on what the cut left, all of it
is read, and the history of what was promised is checked.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.log.append.plan import PartitionAppend
from penstock.log.opening.rebuild import SNAPSHOTS_FOLDER
from penstock.model.errors import (
    PenstockError,
    RetryableError,
    StorageFullError,
)
from penstock.model.ids import PartitionKey, partition_key
from penstock.records.batch import check_batch
from penstock.state.answers import BatchStatus, Refusal, Refused, TopicCreated
from penstock.state.commands import CreateTopic, DeleteTopic, Noop
from support.batches import ANY, make_batch
from support.log_checker import Place, Poll
from support.power_promises import (
    CONFIGS,
    Batch,
    Knowledge,
    Producer,
    PromiseBrokenError,
    TopicState,
    check_named,
    inspect,
    records_in,
    stored_keys,
)
from support.simulated.clock import ManualClock
from support.simulated.cut import PowerCutError
from support.simulated.device import SimulatedDevice
from support.simulated.randomness import SeededRandom
from support.simulated_log import (
    DATABASE,
    GRACE_S,
    SimulatedLog,
    Tail,
    keep_database,
)

NOW = 1_790_000_000_000
CODECS = ("none", "none", "none", "gzip", "snappy", "lz4", "zstd")
PATIENCE_S = 60


def settle(path: Path) -> None:
    """Leave all of a database in its one file: else SQLite has copies of most pages in its WAL."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


class World:
    """What outlives each life.

    Args:
        plant, plant_tail, fsync: a bug, to see that it is found.
        loses_database: each cut takes the database, or a part of it, as well.
        loses_snapshot: each cut takes the newest of two snapshots as well: the one before it and
            the journal from there on are enough.
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
        loses_database: bool = False,
        loses_snapshot: bool = False,
    ) -> None:
        self.seed = seed
        self._loses_database = loses_database
        self._loses_snapshot = loses_snapshot
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
        else:
            self.device = self.device.power_loss(self.random)
            keep_database(life.journal.states.choose(), following)
        if self._loses_database:
            self._damage(following / DATABASE)
        if self._loses_snapshot:
            self._lose_snapshot()

    def _lose_snapshot(self) -> None:
        found = self.device.list(SNAPSHOTS_FOLDER)
        # The only one may be what the journal was trimmed behind, once its successor was lost.
        if len(found) > 1:
            self.device.remove(f"{SNAPSHOTS_FOLDER}/{found[-1]}")
            self.device.sync_directory(SNAPSHOTS_FOLDER)

    def _damage(self, path: Path) -> None:
        kind = self.random.below(6)
        data = path.read_bytes()
        if kind == 0:
            path.unlink()
        elif kind == 1:
            path.write_bytes(data[: self.random.below(len(data))])
        elif kind == 2:
            at = self.random.below(max(1, len(data) - 4096))
            path.write_bytes(data[:at] + self.random.token_bytes(4096) + data[at + 4096 :])
        elif kind == 3:
            wal = path.with_name(path.name + "-wal")
            if wal.exists():
                settle(path)
            flipped = bytearray(path.read_bytes())
            flipped[self.random.below(len(flipped))] ^= 1 << self.random.below(8)
            path.write_bytes(flipped)
        elif kind == 4:
            # Then it stands where the last checkpoint has left it.
            path.with_name(path.name + "-wal").unlink(missing_ok=True)
        else:
            path.unlink()
            path.with_name(path.name + "-wal").unlink(missing_ok=True)

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
            await life.start()
        except PenstockError as error:
            raise PromiseBrokenError(f"the log does not open: {error}") from error
        try:
            await asyncio.wait_for(inspect(life, self.known), PATIENCE_S)
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
        everything: asyncio.Future[Any] = asyncio.gather(*actors)
        ended: asyncio.Future[Any] = asyncio.create_task(life.ended.wait())
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
            raise PromiseBrokenError(f"nothing goes on: {life.own_wal.uploader.last_error}")
        self.known.segment_count += life.own_wal.uploader.segment_count

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
        data = make_batch(
            *(value.encode() for value in values),
            time=self.clock.now_ms(),
            codec=CODECS[self.random.below(len(CODECS))],
            producer=(producer.producer_id, 0 if producer.idempotent else -1, sequence),
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
                await life.own_wal.uploader.drain(PATIENCE_S)
            elif choice in (5, 6, 7, 8):
                if choice == 8:
                    self.clock.advance(GRACE_S + 1)
                await self._keep(life)
            elif choice == 9:
                life.checkpoint()
            elif choice == 11:
                await life.upkeep.snapshot()
                self.known.snapshot_count += 1
            elif choice == 10:
                for key in list(life.log.tail.partitions()):
                    life.log.tail.forget(key)
            else:
                self.clock.advance(self.random.below(5))
            for _ in range(self.random.below(30)):
                await asyncio.sleep(0)

    async def _keep(self, life: SimulatedLog) -> None:
        before = {key async for key in stored_keys(life)}
        await life.log.keeper.run_once()
        after = {key async for key in stored_keys(life)}
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
            self.known.see_log_start(place, answer)

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
        self.known.see_log_start(place, start)
        self.known.high_watermarks[place] = max(end, self.known.high_watermarks.get(place, 0))
        if start == end:
            return []
        offset = start + self.random.below(end - start)
        read = await life.log.reader.read_loaded(key, offset, 1 + self.random.below(12_000))
        found = [] if read is None else records_in(b"".join(read.views))
        found = [row for row in found if row[0] >= offset]
        if not found or found[0][0] != offset:
            # A trim may be committed and not yet in the view; it is after the next commit.
            await life.log.commit([Noop()])
            head = life.view.head(key)
            if head is not None and head.log_start <= offset:
                raise PromiseBrokenError(f"{place} offset {offset} is due, got {found[:1]}")
        return found

    async def _clean_up(self, life: SimulatedLog) -> None:
        """In the end the WAL is empty, and the store holds what is named and nothing else."""
        if not await life.own_wal.uploader.drain(PATIENCE_S):
            raise PromiseBrokenError(f"it does not drain: {life.own_wal.uploader.last_error}")
        if life.queries().wal_runs():
            raise PromiseBrokenError("drained, and runs are left in the WAL")
        for _ in range(3):
            self.clock.advance(GRACE_S + 1)
            await self._keep(life)
        await inspect(life, self.known)
        await check_named(life)
